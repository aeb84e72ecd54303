"""Settings changed when a run is continued: each is applied or refused, and every change is printed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from covering import rest_slow
from torch import Tensor

from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.training import Run

OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "num_workers": 0,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "log_every_n_steps": 1,
    "val_check_interval": 1.0,
}


def with_queue(size: int, *parts: Any) -> list[Any]:  # Any: parts as a configuration has them
    """The default columns with a queue, and further parts."""
    return ["Duplicates", "Siblings", {"class_path": "Queue", "init_args": {"size": size}}, *parts]


def momentum(decay: float) -> dict[str, Any]:
    return {"class_path": "Momentum", "init_args": {"decay": decay}}


CONFIG: dict[str, Any] = {
    "model.optimizer.lr": 1e-3,
    "model.optimizer.weight_decay": 0.1,
    "model.schedule": "ConstantSchedule",
    "model.objectives.contrastive.columns": with_queue(8),
}
LEARNED = {"model.objectives.contrastive.loss.learn_temperature": True}


class Began(Exception):
    """Ends a run at its first step."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    return {
        "bert": tiny.save_bert(folder / "bert"),
        "wide": tiny.save_bert(folder / "wide", intermediate_size=48),
        "train": tiny.write_texts(folder / "texts.txt"),
        "others": tiny.write_texts(folder / "others.txt", tuple(f"{text} today" for text in tiny.TEXTS)),
        "pairs": tiny.write_pairs(folder / "pairs.tsv"),
        "other pairs": tiny.write_pairs(folder / "others.tsv", start=5),
    }


Begin = Callable[..., Run]


@pytest.fixture(scope="module")
def begin(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Begin:
    """Builds a run in a folder of its own; values that name a file become its path."""

    def build(config: dict[str, Any] | None = None, validated: bool = False, **options: Any) -> Run:
        named = {
            name: files.get(value, value) if isinstance(value, str) else value
            for name, value in {**CONFIG, **(config or {})}.items()
        }
        encoder = named.pop("model.encoder.model_name_or_path", files["bert"])
        given = {"train": files["train"], **({"validation": files["pairs"]} if validated else {})}
        given["default_root_dir"] = str(tmp_path_factory.mktemp("run"))
        return Run.from_recipe("simcse", encoder, config=named, **given, **OPTIONS, **options)

    return build


@pytest.fixture(scope="module")
def saved(begin: Begin) -> Callable[[str], str]:
    """Gives a checkpoint from the end of an epoch of five steps, or from inside of it."""

    @cache
    def checkpoint(name: str) -> str:
        config, steps = LEARNED if name == "learned" else {}, 3 if name == "inside" else 5
        run = begin(config, validated=name == "validated", max_steps=steps)
        run.fit()
        return str(run.trainer.checkpoint_callback.best_model_path)  # type: ignore[union-attr]  # there is one

    return checkpoint


def weights_after(run: Run) -> dict[str, Tensor]:
    run.fit()
    return {name: weight.clone() for name, weight in run.module.encoder.state_dict().items()}


@pytest.fixture(scope="module")
def unchanged(begin: Begin, saved: Callable[[str], str]) -> dict[str, Tensor]:
    """Weights of a run that is continued for two steps as it was."""
    return weights_after(begin(max_steps=7, ckpt_path=saved("end")))


APPLIED: list[tuple[str, Any, str]] = [
    ("model.optimizer.lr", 0.02, "model.optimizer.lr 0.02 instead of 0.001"),
    ("model.optimizer.weight_decay", 0.5, "model.optimizer.weight_decay 0.5 instead of 0.1"),
    ("model.optimizer.betas", [0.5, 0.6], "model.optimizer.betas [0.5, 0.6] instead of [0.9, 0.999]"),
    ("model.optimizer.eps", 0.01, "model.optimizer.eps 0.01 instead of 1e-08"),
    ("model.schedule", "LinearSchedule", "model.schedule LinearSchedule("),
    ("model.schedule.warmup_steps", 9, "model.schedule.warmup_steps 9 instead of 0"),
    ("model.objectives.contrastive.loss.temperature", 0.5, "loss.temperature 0.5 instead of 0.05"),
    ("model.objectives.contrastive.columns", with_queue(4), "Queue(size=4)] instead of [Duplicates()"),
    ("model.objectives.contrastive.loss", "NTXent", "model.objectives.contrastive.loss NTXent("),
    ("model.views", {"positive": ["FeatureCutoff"]}, "model.views.positive [FeatureCutoff("),
    ("model.weights", {"contrastive": 3.0}, "model.weights {'contrastive': 3.0} instead of None"),
    ("model.pooler", "MeanPooler", "model.pooler MeanPooler() instead of CLSPooler()"),
    ("model.encoder.dropout", 0.4, "model.encoder.dropout 0.4 instead of None"),
    ("model.encoder.max_length", 6, "model.encoder.max_length 6 instead of 32"),
    ("data.batch_size", 10, "data.batch_size 10 instead of 8"),
    ("data.task.limit", 32, "data.task.limit 32 instead of None"),
    ("data.train", "others", "data.train "),
    ("seed_everything", 7, "data.seed 7 instead of 42"),
    ("trainer.accumulate_grad_batches", 2, "trainer.accumulate_grad_batches 2 instead of 1"),
    ("trainer.gradient_clip_val", 0.01, "trainer.gradient_clip_val 0.01 instead of 1.0"),
    ("trainer.precision", "bf16-mixed", "trainer.precision 'bf16-mixed' instead of '32-true'"),
]


@pytest.mark.parametrize("name, value, said", rest_slow(APPLIED, quick=0))
def test_a_changed_setting_is_in_force_from_the_first_resumed_step(
    begin: Begin,
    saved: Callable[[str], str],
    unchanged: dict[str, Tensor],
    capfd: pytest.CaptureFixture[str],
    name: str,
    value: Any,
    said: str,
) -> None:
    after = weights_after(begin({name: value}, max_steps=7, ckpt_path=saved("end")))
    assert said in capfd.readouterr().out.replace("init_args.", "")
    assert any(not torch.equal(weight, unchanged[key]) for key, weight in after.items())


GROUPS = [
    ({"model.optimizer.lr": 0.3}, "lr", 0.3),
    ({"model.optimizer.weight_decay": 0.5}, "weight_decay", 0.5),
    ({"model.optimizer.betas": [0.5, 0.6]}, "betas", (0.5, 0.6)),
    ({"model.optimizer.eps": 0.01}, "eps", 0.01),
    ({"model.optimizer.fused": False}, "fused", False),
    ({"model.schedule": "LinearSchedule"}, "lr", 1e-3 * (10 - 5) / 10),
    (
        {"model.schedule": {"class_path": "ConstantSchedule", "init_args": {"warmup_steps": 8}}},
        "lr",
        1e-3 * 5 / 8,
    ),
]


@pytest.mark.parametrize("config, setting, value", rest_slow(GROUPS))
def test_the_first_resumed_step_is_taken_with_the_settings_of_the_configuration(
    begin: Begin, saved: Callable[[str], str], config: dict[str, Any], setting: str, value: object
) -> None:
    run = begin(config, max_steps=10, ckpt_path=saved("end"))
    first: list[dict[str, Any]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        first.append({**optimizer.param_groups[0]})
        raise Began

    of = run.module.configure_optimizers

    def configured() -> Any:
        made = of()
        made["optimizer"].register_step_pre_hook(note)
        return made

    run.module.configure_optimizers = configured  # type: ignore[method-assign]  # to look at its optimizer
    with pytest.raises(Began):
        run.fit()
    found = first[0][setting]
    assert (tuple(found) if isinstance(found, list) else found) == pytest.approx(value)


@pytest.mark.slow
def test_a_constant_rate_makes_a_lengthened_run_the_run_that_was_longer_from_the_start(
    begin: Begin, unchanged: dict[str, Tensor]
) -> None:
    once = weights_after(begin(max_steps=7))
    assert all(torch.equal(weight, unchanged[name]) for name, weight in once.items())


SGD = {"class_path": "TorchOptimizer", "init_args": {"name": "SGD", "lr": 0.1}}
REFUSED: list[tuple[str, str, Any, str]] = [
    (
        "end",
        "model.optimizer",
        SGD,
        r"model\.optimizer: expected torch\.optim\.adamw\.AdamW, .* got torch\.optim\.sgd",
    ),
    ("end", "model.optimizer.bias_correction", False, r"model\.optimizer: expected torch\.optim\.adamw\.AdamW"),
    (
        "learned",
        "model.objectives.contrastive.loss.temperature",
        0.5,
        r"loss\.temperature: expected 0\.05, from which",
    ),
    ("end", "model.objectives.contrastive.loss.learn_temperature", True, "log_scale"),
    ("end", "model.combine", "Uncertainty", "log_variances"),
    ("end", "model.objectives.contrastive.head", None, "head"),
    (
        "end",
        "model.objectives.contrastive.columns",
        with_queue(8, momentum(0.9)),
        "momentum",
    ),
    ("end", "model.encoder.model_name_or_path", "wide", "size mismatch"),
    ("end", "model.prompts.named", {"query": "q: "}, r"model\.prompts: expected those"),
    ("inside", "data.batch_size", 4, r"ckpt_path: expected the 5 batches an epoch"),
    ("inside", "data.train", "others", r"ckpt_path: expected the rows of train"),
    ("inside", "seed_everything", 7, r"ckpt_path: expected the 5 batches an epoch"),
    ("inside", "data.task.limit", 32, r"ckpt_path: expected the 5 batches an epoch"),
    ("inside", "data.task.repeat", 9, r"ckpt_path: expected the 5 batches an epoch"),
]


@pytest.mark.parametrize("place, name, value, said", rest_slow(REFUSED))
def test_a_setting_that_a_checkpoint_has_the_result_of_is_refused_by_its_name(
    begin: Begin, saved: Callable[[str], str], place: str, name: str, value: Any, said: str
) -> None:
    learned = LEARNED if place == "learned" else {}
    with pytest.raises(ContrastiveTextError, match=said):
        begin({**learned, name: value}, max_steps=9, ckpt_path=saved(place)).fit()


RESTARTED = [
    ({"data.validation": "other pairs"}, "validation rows"),
    ({"checkpoint.monitor": "val/pearson"}, "score"),
    ({"checkpoint.mode": "min"}, "score"),
    ({"model.inference.pooler": "MeanPooler"}, "pooler in use"),
    ({"trainer.limit_val_batches": 1, "data.eval_batch_size": 4}, "limit_val_batches"),
]


@pytest.mark.parametrize("config, why", rest_slow(RESTARTED, quick=0))
def test_the_best_starts_again_where_its_score_means_something_else(
    begin: Begin, saved: Callable[[str], str], capfd: pytest.CaptureFixture[str], config: dict[str, Any], why: str
) -> None:
    run = begin(config, validated=True, max_steps=10, ckpt_path=saved("validated"))
    run.fit()
    said = capfd.readouterr().out
    assert f"The best checkpoint starts again: its score has another meaning ({why})" in said
    best = run.trainer.checkpoint_callback
    assert "step=10" in best.best_model_path  # type: ignore[union-attr]  # there is one
    assert best.kth_value == best.best_model_score == run.trainer.callback_metrics[best.monitor]  # type: ignore[union-attr,index]  # as above


@pytest.mark.slow
def test_the_best_so_far_stays_where_its_score_means_the_same(
    begin: Begin, saved: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = torch.load(saved("validated"), weights_only=True)["callbacks"]["BestCheckpoint"]["best_model_score"]
    run = begin({"model.optimizer.lr": 1e-9}, validated=True, max_steps=10, ckpt_path=saved("validated"))
    run.fit()
    assert "starts again" not in capfd.readouterr().out
    assert run.trainer.checkpoint_callback.best_model_score >= before  # type: ignore[union-attr,operator]  # there is one


@pytest.mark.slow
def test_early_stopping_has_the_patience_of_the_configuration_and_no_best_of_other_rows(begin: Begin) -> None:
    def stopping(patience: int) -> list[dict[str, Any]]:
        arguments = {
            "monitor": "val/spearman",
            "mode": "max",
            "patience": patience,
            "check_on_train_epoch_end": False,
        }
        return [{"class_path": "EarlyStopping", "init_args": arguments}]

    first = begin({"trainer.callbacks": stopping(9)}, validated=True, max_steps=5)
    first.fit()
    kept = first.trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]  # there is one
    for config in ({}, {"data.validation": "other pairs"}):
        run = begin({"trainer.callbacks": stopping(2), **config}, validated=True, max_steps=10, ckpt_path=kept)
        run.fit()
        (stop,) = run.trainer.early_stopping_callbacks
        assert stop.patience == 2
        if config:
            assert float(stop.best_score) == pytest.approx(float(run.trainer.callback_metrics["val/spearman"]))


@pytest.mark.slow
def test_another_folder_of_the_encoder_is_said_to_give_no_weights(
    begin: Begin,
    files: dict[str, str],
    saved: Callable[[str], str],
    unchanged: dict[str, Tensor],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    moved = tiny.save_bert(tmp_path / "moved", seed=1)
    after = weights_after(begin({"model.encoder.model_name_or_path": moved}, max_steps=7, ckpt_path=saved("end")))
    assert (
        f"{moved!r} instead of {files['bert']!r}; the weights are those of the checkpoint"
        in capfd.readouterr().out
    )
    assert all(torch.equal(weight, unchanged[name]) for name, weight in after.items())
    shutil.rmtree(moved)
