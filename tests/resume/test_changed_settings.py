"""Settings changed when a run is continued: each is applied or refused, and every change is printed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import tiny
import torch
from covering import rest_slow
from pytorch_lightning.callbacks import Callback

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.random import text_id
from contrastive_text.objectives import Queue
from contrastive_text.training import Run

OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "num_workers": 0,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "log_every_n_steps": 1,
    "val_check_interval": 1.0,
}


def with_queue(size: int) -> list[Any]:  # Any: parts as a configuration has them
    """The default columns with a queue."""
    return ["Duplicates", "Siblings", {"class_path": "Queue", "init_args": {"size": size}}]


CONFIG: dict[str, Any] = {
    "model.optimizer.lr": 1e-3,
    "model.optimizer.weight_decay": 0.1,
    "model.schedule": "ConstantSchedule",
    "model.objectives.contrastive.columns": with_queue(8),
}
OTHERS = tuple(f"{text} today" for text in tiny.TEXTS)
LEARNED = {"model.objectives.contrastive.loss.learn_temperature": True}


class Began(Exception):
    """Ends a run at its first step."""


class First(Callback):
    """Notes what the first step of a run is taken with, and ends the run there."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # Lightning's
        self.batch: Batch = batch
        self.weights = {name: weight.clone() for name, weight in pl_module.encoder.state_dict().items()}

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002  # Lightning's
        self.group = {**optimizer.param_groups[0]}
        raise Began


def first_step(run: Run) -> First:
    first = First()
    vars(run.trainer)["callbacks"].append(first)
    with pytest.raises(Began):
        run.fit()
    return first


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("files")
    return {
        "bert": tiny.save_bert(folder / "bert"),
        "moved": tiny.save_bert(folder / "moved", seed=1),
        "wide": tiny.save_bert(folder / "wide", intermediate_size=48),
        "train": tiny.write_texts(folder / "texts.txt"),
        "others": tiny.write_texts(folder / "others.txt", OTHERS),
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
        config = {"learned": LEARNED, "validated": {"trainer.callbacks": stopping(9)}}.get(name, {})
        run = begin(config, validated=name == "validated", max_steps=3 if name == "inside" else 5)
        run.fit()
        return str(run.trainer.checkpoint_callback.best_model_path)  # type: ignore[union-attr]  # there is one

    return checkpoint


CHANGED: list[tuple[str, Any, str]] = [
    ("model.optimizer.lr", 0.02, "model.optimizer.lr 0.02 instead of 0.001"),
    ("model.optimizer.weight_decay", 0.5, "model.optimizer.weight_decay 0.5 instead of 0.1"),
    ("model.optimizer.betas", [0.5, 0.6], "model.optimizer.betas [0.5, 0.6] instead of [0.9, 0.999]"),
    ("model.optimizer.eps", 0.01, "model.optimizer.eps 0.01 instead of 1e-08"),
    ("model.optimizer.fused", False, "model.optimizer.fused False instead of "),
    ("model.schedule.warmup_steps", 8, "model.schedule.warmup_steps 8 instead of 0"),
    ("model.objectives.contrastive.loss.temperature", 0.5, "loss.temperature 0.5 instead of 0.05"),
    ("model.objectives.contrastive.columns", with_queue(4), "Queue(size=4)] instead of [Duplicates()"),
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


@pytest.mark.slow
def test_changed_settings_are_said_and_in_force_from_the_first_resumed_step(
    begin: Begin, files: dict[str, str], saved: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {name: value for name, value, _ in CHANGED} | {"model.encoder.model_name_or_path": "moved"}
    run = begin(changes, max_steps=10, ckpt_path=saved("end"))
    first = first_step(run)
    out = capfd.readouterr().out.replace("init_args.", "")
    assert not [said for *_, said in CHANGED if said not in out]
    assert f"{files['moved']!r} instead of {files['bert']!r}; the weights are those of the checkpoint" in out
    kept = torch.load(saved("end"), weights_only=True)["state_dict"]
    assert all(torch.equal(weight, kept[f"encoder.{name}"]) for name, weight in first.weights.items())
    settings = {"lr": 0.02 * 5 / 8, "weight_decay": 0.5, "betas": (0.5, 0.6), "eps": 0.01, "fused": False}
    assert {**first.group, "betas": tuple(first.group["betas"])}.items() >= settings.items()
    objective = run.module.objective_parts()["contrastive"]
    assert objective.loss.temperature == 0.5
    assert objective.part(Queue).size == 4
    assert type(run.module.pooler).__name__ == "MeanPooler"
    assert {*run.module.encoder.dropout_in_effect.values()} == {0.4}
    assert len(first.batch) == 2 * 10 and int(first.batch.lengths.max()) == 6
    assert {*first.batch.text_ids.tolist()} <= {text_id(text) for text in OTHERS}


SGD = {"class_path": "TorchOptimizer", "init_args": {"name": "SGD", "lr": 0.1}}
REFUSED: list[tuple[str, str, Any, str]] = [
    (
        "end",
        "model.optimizer",
        SGD,
        r"model\.optimizer: expected torch\.optim\.adamw\.AdamW, .*torch\.optim\.sgd",
    ),
    (
        "learned",
        "model.objectives.contrastive.loss.temperature",
        0.5,
        r"loss\.temperature: expected 0\.05, the initial value",
    ),
    ("end", "model.objectives.contrastive.loss.learn_temperature", True, "log_scale"),
    ("end", "model.objectives.contrastive.head", None, "head"),
    ("end", "model.encoder.model_name_or_path", "wide", "size mismatch"),
    ("end", "model.prompts.named", {"query": "q: "}, r"model\.prompts: expected the prompts"),
    ("inside", "data.batch_size", 4, r"ckpt_path: expected the 5 batches an epoch"),
    ("inside", "data.train", "others", r"ckpt_path: expected the rows of train"),
    ("inside", "seed_everything", 7, r"ckpt_path: expected the 5 batches an epoch"),
]


@pytest.mark.parametrize("place, name, value, said", rest_slow(REFUSED))
def test_a_setting_that_a_checkpoint_has_the_result_of_is_refused_by_its_name(
    begin: Begin, saved: Callable[[str], str], place: str, name: str, value: Any, said: str
) -> None:
    learned = LEARNED if place == "learned" else {}
    with pytest.raises(ContrastiveTextError, match=said):
        begin({**learned, name: value}, max_steps=9, ckpt_path=saved(place)).fit()


def stopping(patience: int) -> list[dict[str, Any]]:
    arguments = {"monitor": "val/spearman", "mode": "max", "patience": patience}
    return [{"class_path": "EarlyStopping", "init_args": arguments | {"check_on_train_epoch_end": False}}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model.optimizer.lr": 1e-9}, None),
        ({"data.validation": "other pairs"}, "validation rows"),
        ({"checkpoint.monitor": "val/pearson"}, "score"),
        ({"checkpoint.mode": "min"}, "score"),
        ({"model.inference.pooler": "MeanPooler"}, "pooler in use"),
        ({"trainer.limit_val_batches": 1, "data.eval_batch_size": 4}, "limit_val_batches"),
    ],
)
def test_the_best_and_early_stopping_start_again_where_the_score_means_something_else(
    begin: Begin,
    saved: Callable[[str], str],
    capfd: pytest.CaptureFixture[str],
    config: dict[str, Any],
    why: str | None,
) -> None:
    config = {"trainer.callbacks": stopping(2), **config}
    run = begin(config, validated=True, max_steps=10, ckpt_path=saved("validated"))
    first_step(run)
    said = capfd.readouterr().out
    kept = torch.load(saved("validated"), weights_only=True)["callbacks"]["BestCheckpoint"]["best_model_score"]
    best, (stop,) = run.trainer.checkpoint_callback, run.trainer.early_stopping_callbacks
    assert stop.patience == 2  # that of the configuration
    if why is None:
        assert "starts again" not in said
        assert best.best_model_score == kept == stop.best_score  # type: ignore[union-attr]  # there is one
    else:
        assert f"The best checkpoint starts again: its score has another meaning ({why})" in said
        assert best.best_model_score is None  # type: ignore[union-attr]  # as above
        assert not stop.best_score.isfinite()
