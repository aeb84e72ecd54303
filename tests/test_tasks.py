"""Runs over several data sets: what is encoded, scored, refused, and what a step leaves alone."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import several
import tiny
import torch
from covering import rest_slow
from data_files import refuses
from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy, SingleDeviceStrategy, Strategy
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from contrastive_text.core.batch import StepBatch
from contrastive_text.data import AllTasks, BatchRoundRobin, Fusion, Mixture, TextDataModule, TextTask
from contrastive_text.data.collator import StepCollator
from contrastive_text.objectives import (
    Contrastive,
    Matryoshka,
    Objective,
    PairClassification,
    TextClassification,
)
from contrastive_text.pairings import Given, Neighbors
from contrastive_text.training import AdamW, LogGradients, PCGrad, WeightedSum
from contrastive_text.training.callbacks.run_summary import _negatives
from contrastive_text.training.held_out import HeldOutScores
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Adversarial, DeleteTokens, FeatureCutoff, SwapWords

Tasks = dict[str, TextTask]
FUSION = Fusion([["sentiment", "paraphrase", "similarity"], ["contrastive"]])


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Tasks:
    return several.write_tasks(tmp_path_factory.mktemp("tasks"))


def set_up(module: ContrastiveModule, data: TextDataModule) -> TextDataModule:
    data.set_module(module)
    data.setup("fit")
    return data


def steps(module: ContrastiveModule, tasks: Tasks, mixture: Mixture | None = None) -> list[StepBatch]:
    return list(set_up(module, several.data(tasks, mixture)).train_dataloader())


def test_a_step_holds_a_batch_of_each_task_and_names_its_objectives(bert: str, tasks: Tasks) -> None:
    module = several.module(bert)
    together = steps(module, tasks)
    assert [set(step.batches) for step in together] == [{"sst", "quora", "sts"}] * 3
    assert all(step.objectives is None for step in together)
    fused = steps(module, tasks, FUSION)
    assert [step.objectives for step in fused[:2]] == [tuple(turn) for turn in FUSION.turns]
    assert torch.equal(fused[0].batches["sst"].ids, fused[1].batches["sst"].ids)


def test_tasks_draw_apart_and_the_same_rows_whatever_the_mixture(bert: str, tasks: Tasks) -> None:
    module = several.module(bert)
    together, turns = steps(module, tasks), steps(module, tasks, BatchRoundRobin())
    keys = together[0].batches
    assert not set(keys["sst"].draw_keys.tolist()) & set(keys["quora"].draw_keys.tolist())
    for number, task in enumerate(("sst", "quora", "sts")):
        assert torch.equal(turns[number].batches[task].draw_keys, keys[task].draw_keys)


def test_views_of_a_task_stand_in_the_place_of_those_of_all(bert: str, tasks: Tasks) -> None:
    views = {"anchor": [SwapWords(1.0)], "sst": {"positive": [DeleteTokens(0.5)]}}
    module = several.module(bert, views=views)
    plain, altered = steps(several.module(bert), tasks)[0].batches, steps(module, tasks)[0].batches
    for name, part in altered.items():
        for role, changed in (("anchor", name != "sst"), ("positive", name == "sst")):
            one, other = (batch.split(batch.by_role(role)).ids for batch in (plain[name], part))
            assert torch.equal(one, other) is not changed, (name, role)


def test_what_no_objective_of_the_step_reads_is_not_encoded(bert: str, tasks: Tasks) -> None:
    module = several.module(bert)
    batch = steps(module, tasks)[0].batches["sst"]
    assert len(batch) == 12  # each text twice, for the contrastive objective
    assert module.encode(batch, "sst").embeddings.shape[0] == 12
    alone = module.encode(batch, "sst", ["sentiment"])
    assert alone.embeddings.shape[0] == 6
    assert [slot.role for slot in alone.slots] == ["anchor"]


def test_m10_the_loss_of_a_step_is_the_mean_over_the_tasks(bert: str, tasks: Tasks) -> None:
    parts = several.objectives()
    del parts["contrastive"]
    module = tiny.module(bert, dropout=0.0, objectives=parts, combine=WeightedSum(reduction="mean"))
    loss = module.training_step(steps(module, tasks)[0], 0)
    values = [float(module.figures[name]) for name in parts]
    assert float(loss.detach()) == pytest.approx(sum(values) / 3, rel=1e-6)


def test_neither_decay_nor_moments_move_what_a_step_leaves_out(bert: str, tasks: Tasks, tmp_path: Path) -> None:
    module = several.module(bert, optimizer=AdamW(lr=0.1, weight_decay=0.5))
    scorer = module.objectives["paraphrase"].scorer
    before = [weight.clone() for weight in scorer.parameters()]
    tiny.trainer(tmp_path, max_steps=1).fit(module, several.data(tasks, BatchRoundRobin()))  # sst's turn
    assert all(torch.equal(*pair) for pair in zip(before, scorer.parameters(), strict=True))
    tiny.trainer(tmp_path, max_steps=2).fit(module, several.data(tasks, BatchRoundRobin()))  # quora's
    assert not any(torch.equal(*pair) for pair in zip(before, scorer.parameters(), strict=True))


@pytest.mark.slow
def test_gradient_norms_and_cosines_are_logged_on_request(bert: str, tasks: Tasks, tmp_path: Path) -> None:
    seen = []
    for callbacks in ([], [LogGradients(every=2)]):
        trainer = tiny.trainer(tmp_path, max_steps=1, callbacks=callbacks)
        trainer.fit(several.module(bert), several.data(tasks))
        seen.append({name for name in trainer.logged_metrics if "gradient" in name})
    assert seen[0] == set()
    names = ("sentiment", "paraphrase", "similarity", "contrastive")
    assert {f"train/gradient/norm/{name}" for name in names} <= seen[1]
    assert "train/gradient/cosine/paraphrase/similarity" in seen[1]


def test_every_task_is_scored_and_overall_is_their_plain_mean(bert: str, tasks: Tasks, tmp_path: Path) -> None:
    scored = {
        name: TextTask(train=task.train, validation=task.train, pairing=task.pairing)
        for name, task in tasks.items()
    }
    module = several.module(bert, dropout=0.0)
    pairs = tiny.write_pairs(tmp_path / "dev.tsv")
    trainer = tiny.trainer(tmp_path)
    found = tiny.merged(trainer.validate(module, several.data(scored, validation=pairs), verbose=False))
    each = [found["val/sst/accuracy"], found["val/quora/accuracy"], found["val/sts/pearson"]]
    assert found["val/overall"] == pytest.approx(sum(each) / 3, abs=1e-4)
    assert "val/spearman" in found
    # By hand: the share of sentiments that the classifier gets right.
    data = several.data(scored)
    data.set_module(module)
    data.setup("validate")
    (batch,) = data.val_dataloader()[0]
    module.eval()
    with torch.no_grad():
        vectors = module.pooler(module.encoder(batch.batches["sst"]))[:24]
        part = module.objectives["sentiment"]
        right = (part.head(vectors).argmax(dim=1) == batch.batches["sst"].target).float().mean()
    assert found["val/sst/accuracy"] == pytest.approx(100 * float(right), abs=1e-4)


def scores_of(module: ContrastiveModule, *tasks: str) -> HeldOutScores:
    """Returns the empty scores of a file of each task."""
    loaders = [DataLoader([], collate_fn=StepCollator({task: None})) for task in tasks]  # type: ignore[dict-item,var-annotated]  # read nowhere
    return HeldOutScores(loaders, module.by_task, torch.device("cpu"))


def test_m12_overall_is_the_plain_mean_of_the_report_s_scores(bert: str) -> None:
    module = several.module(bert)
    scores = scores_of(module, *several.SIZES)
    for task, figure in zip(several.SIZES, (0.521, 0.830, 0.753), strict=True):
        objective, metrics = scores.tasks[task]
        metric = MeanMetric()
        metric.update(figure)
        scores.tasks[task] = (objective, {"": {next(iter(metrics[""])): metric}})
    assert float(scores.figures()["overall"]) == pytest.approx(70.1333, abs=5e-5)


# What makes no sense


def trained(module: ContrastiveModule, **trainer: object) -> None:
    """Starts a run of a trainer on one process, with some settings."""
    connector = SimpleNamespace(use_distributed_sampler=False)
    module._trainer = SimpleNamespace(  # type: ignore[assignment]  # a stand-in
        _accelerator_connector=connector, world_size=1, callbacks=[], **trainer
    )
    module.on_fit_start()


def under_ddp(bert: str, tasks: Tasks, mixture: Mixture) -> None:
    module = several.module(bert)
    module._trainer = pl.Trainer(strategy=DDPStrategy(), logger=False, enable_checkpointing=False)
    module._trainer.datamodule = set_up(module, several.data(tasks, mixture))
    module.on_fit_start()


def test_steps_without_an_objective_need_another_option_under_ddp(bert: str, tasks: Tasks) -> None:
    under_ddp(bert, tasks, AllTasks())
    with pytest.raises(ValueError, match=r"--trainer\.strategy ddp_find_unused_parameters_true"):
        under_ddp(bert, tasks, BatchRoundRobin())


@pytest.mark.parametrize(
    ("strategy", "precision", "words"),
    [
        (SingleDeviceStrategy(), "16-mixed", "precision: expected bf16-mixed or 32-true for PCGrad, got 16-"),
        (FSDPStrategy(), "32-true", "strategy: expected auto, ddp or one of its variants, or fsdp2, got FSDP"),
    ],
)
def test_pcgrad_refuses_float16_and_split_weights(
    strategy: Strategy, precision: str, words: str, bert: str
) -> None:
    with refuses(words):
        trained(several.module(bert, combine=PCGrad()), precision=precision, strategy=strategy)


SENTIMENT, CLASSES = {"a": TextClassification(3, task="sst")}, {"a": TextClassification(2)}


@pytest.mark.parametrize(
    ("objectives", "data", "words"),
    [
        ({"a": TextClassification(3)}, {}, "a.task: expected the data set that a reads (sst, q"),
        ({"a": TextClassification(3, task="x")}, {}, "a.task: expected one of the data sets (sst, "),
        (SENTIMENT, {}, "data.tasks.quora: expected an objective that reads quora, got no such objective"),
        (SENTIMENT, "sst", "objectives.a.task: expected one of the data sets (none: the data are"),
        ({"again": TextClassification(4, task="sst")}, "all", "again: expected the same labels as"),
        ({}, {"mixture": Fusion([["sentiment"], ["x"]])}, "data.mixture.turns: expected objectives (sentiment, "),
        ({}, {"mixture": Fusion([["sentiment"], ["contrastive"]])}, "turn, got no turn with paraphrase"),
        ({}, {"sts": TextTask(pairing=Given())}, "data.tasks.sts.train: expected a file, got null"),
        ({}, dict.fromkeys(several.SIZES, TextTask(train=[])), "data.train: expected a file, got no file"),
        ({"a": PairClassification(3)}, "sst", "pairing SameText: expected two texts for an objective"),
        (CLASSES, "quora", "expected a column for text in addition to the target"),
    ],
)  # fmt: skip
def test_tasks_and_objectives_that_do_not_meet_are_refused(
    objectives: dict[str, Objective], data: Any, words: str, bert: str, tasks: Tasks
) -> None:
    """The data are other tasks or a mixture, or one file; with ``all`` each task keeps its objectives."""
    changed = data if isinstance(data, dict) else {}
    own = several.objectives() if data == "all" or not objectives else {}
    module = tiny.module(bert, objectives={**own, **objectives})
    with refuses(words):
        if data in ("sst", "quora"):
            set_up(module, tiny.data(tasks[data].train))
        else:
            steps(module, {name: changed.get(name, task) for name, task in tasks.items()}, changed.get("mixture"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"objectives": {name: Contrastive()}}, "a name without a dot") for name in ("loss", "a.b", "")),
        ({"objectives": {"c": Contrastive()}, "weights": {"c": 0.0}}, "nothing would be trained"),
        ({"views": {"anchor": [Adversarial(objective="sentiment")]}}, "one of the objectives paraphrase, "),
    ],
)  # fmt: skip
def test_options_of_a_module_without_a_meaning_are_refused(
    options: dict[str, Any], words: str, bert: str
) -> None:
    with refuses(words):
        tiny.module(bert, **{"objectives": several.objectives(), **options})


@pytest.mark.parametrize("name", ["overall", "train", "anchor", "a/b"])
def test_tasks_with_names_that_mean_something_else_are_refused(tasks: Tasks, name: str) -> None:
    with refuses("expected a name of letters, digits and dashes, other than"):
        several.data({name: tasks["sst"]})


def test_views_of_no_task_and_held_out_files_that_nothing_predicts_are_refused(bert: str, tasks: Tasks) -> None:
    with refuses("model.views.sst2: expected a role, or one of the data sets"):
        steps(several.module(bert, views={"sst2": {"anchor": []}}), tasks)
    train = tasks["sst"].train
    with refuses("data.tasks.sst.validation: expected an objective that predicts sst"):
        held_out = several.data({"sst": TextTask(train=train, validation=train)})
        set_up(tiny.module(bert, objectives={"c": Contrastive()}), held_out)


def test_a_task_with_no_files_to_train_on_is_scored_alone_and_needs_no_turn(bert: str, tasks: Tasks) -> None:
    scored = {"sts": TextTask(train=[], validation=tasks["sts"].train, pairing=Given())}
    mixture = Fusion([["sentiment", "paraphrase"], ["contrastive"]])
    data = set_up(several.module(bert), several.data(tasks | scored, mixture))
    assert [*data.training.tasks] == ["sst", "quora"]
    assert data.facts()["scored, not trained"] == "sts"
    assert {task for step in data.training.steps for task in step.parts} == {"sst", "quora"}
    assert [*data.table("validation")] == ["sts"]


@pytest.mark.parametrize("combine", rest_slow([None, PCGrad()]), ids=["sum", "pcgrad"])
def test_bfloat16_trains_every_objective(combine: PCGrad | None, bert: str, tasks: Tasks, tmp_path: Path) -> None:
    module = several.module(bert, combine=combine, views={"sst": {"anchor": [FeatureCutoff(0.2)]}})
    before = {name: weight.clone() for name, weight in module.named_parameters()}
    tiny.trainer(tmp_path, max_steps=2, precision="bf16-mixed").fit(module, several.data(tasks, AllTasks()))
    for name, weight in module.named_parameters():
        assert weight.dtype == torch.float32
        assert weight.isfinite().all()
        # A key's bias cancels in the softmax of attention.
        assert not torch.equal(weight, before[name]) or "key.bias" in name or "token_type" in name, name


# What a review has found


def test_an_undefined_score_counts_0_and_a_warning_says_so(bert: str) -> None:
    module = several.module(bert)
    scores = scores_of(module, "sts")
    metrics = scores.tasks["sts"][1][""]
    assert [*metrics] == ["pearson", "spearman"]
    for metric in metrics.values():
        metric.update(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.5, 0.5]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The variance of predictions or target")  # torchmetrics' own
        with pytest.warns(UserWarning, match="sts: the score is not defined"):
            assert float(scores.figures()["overall"]) == 0.0


def test_a_figure_of_an_objective_that_rests_is_not_repeated(bert: str, tasks: Tasks, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=2)
    trainer.fit(several.module(bert), several.data(tasks, BatchRoundRobin()))
    assert trainer.logged_metrics["train/sentiment"].isnan()  # sst's turn was the step before
    assert trainer.logged_metrics["train/paraphrase"].isfinite()


def test_the_summary_counts_the_rows_that_a_step_has_under_its_mixture(bert: str, tasks: Tasks) -> None:
    objectives = {"a": Contrastive(task="sst"), "b": Contrastive(task="sts")}
    module = tiny.module(bert, objectives=objectives)
    some = {name: tasks[name] for name in ("sst", "sts")}
    data = set_up(module, several.data(some, AllTasks(weights={"sst": 3.0, "sts": 1.0})))
    assert (data.training.rows_per_step("sst"), data.training.rows_per_step("sts")) == (9, 3)
    said = {name: _negatives(part, data) for name, part in module.objective_parts().items()}
    assert said["a"].startswith("8 per anchor")
    assert said["b"].startswith("2 per anchor")


def test_held_out_texts_of_a_task_are_scored_as_they_stand_whatever_the_pairing(
    bert: str, tasks: Tasks, tmp_path: Path
) -> None:
    of_texts = Matryoshka(TextClassification(3, task="sst"), [16, 4])
    objectives = {"sentiment": of_texts, "contrastive": Contrastive(task="sst")}
    train = tasks["sst"].train
    found = []
    for pairing in (None, Neighbors()):
        torch.manual_seed(0)
        module = tiny.module(bert, dropout=0.0, objectives=objectives)
        data = several.data({"sst": TextTask(train=train, validation=train, pairing=pairing)})
        (scores,) = tiny.trainer(tmp_path).validate(module, data, verbose=False)
        found.append((scores["val/sst/accuracy"], scores["val/sst/accuracy@4"]))
    assert found[0] == found[1]


def test_held_out_files_shorter_than_the_processes_are_refused_by_name(
    bert: str, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrastive_text.data.run_tables.world_size", lambda: 25)
    train = tasks["sst"].train
    data = several.data({"sst": TextTask(train=train, validation=train)})
    data.set_module(tiny.module(bert, objectives={"a": TextClassification(3, task="sst")}))
    with pytest.raises(ValueError, match=r"expected a row for each of 25 processes in sst, got 24"):
        data.setup("validate")
