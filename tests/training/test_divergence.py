"""A run whose loss or weights are no numbers ends with its step and its last checkpoint, without a model."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from contrastive_text.cli import run as shell
from contrastive_text.core.errors import RunError
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.training.callbacks import BestCheckpoint, ExportModel
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.module import ContrastiveModule


class Poison(pl.Callback):
    """Damages the weights after a step, when all that looks at the batch has run."""

    def __init__(self, step: int, value: float = math.nan) -> None:
        self.step, self.value = step, value

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        if trainer.global_step == self.step:
            with torch.no_grad():
                next(pl_module.parameters()).fill_(self.value)


class Spoilt(ContrastiveModule):
    """Has a loss that is no number in one batch, whose gradient is 0."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss + (math.inf if batch_idx == 2 else 0.0)


def trainer(folder: Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    return tiny.trainer(folder, callbacks=list(callbacks), **{"max_steps": 4, "log_every_n_steps": 50, **options})


def test_a_plain_trainer_ends_a_run_of_lost_weights_and_keeps_the_sound_checkpoint(
    bert: str, texts: str, tmp_path: Path
) -> None:
    keep = ModelCheckpoint(tmp_path / "kept", filename="{step}", save_top_k=-1, every_n_train_steps=1)
    export = ExportModel(str(tmp_path / "model"))
    with pytest.raises(RunError, match=r"^step 3: expected finite weights, got NaN") as raised:
        trainer(tmp_path, keep, export, Poison(2, math.inf), enable_checkpointing=True).fit(
            tiny.module(bert), tiny.data(texts)
        )
    kept = tmp_path / "kept" / "step=2.ckpt"
    assert f"the last checkpoint before it is {kept}; " in str(raised.value)
    assert sorted(path.name for path in kept.parent.iterdir()) == ["step=1.ckpt", "step=2.ckpt"]
    assert all(weight.isfinite().all() for weight in read_checkpoint(kept).weights.values())
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
def test_the_step_of_the_first_loss_that_is_no_number_is_named_with_the_checkpoint_before_it(
    bert: str, texts: str, tmp_path: Path
) -> None:
    none = "there is no checkpoint before it"
    before = r"the last checkpoint before it is .*resume-step=2.ckpt; .*from that checkpoint"
    # The interval says when the loss is noticed, not what is said; 0 is the end.
    for interval, reached, minutes, said in (
        (1, 3, 0, before),
        (1, 3, 9, none),
        (50, 4, 9, none),
        (0, 4, 9, none),
    ):
        run = trainer(tmp_path, SaveWhenStopped(minutes), log_every_n_steps=interval)
        with pytest.raises(RunError, match=rf"^step 3: expected a finite loss, got inf; {said}") as raised:
            run.fit(Spoilt(tiny.module(bert).encoder), tiny.data(texts))
        assert run.global_step == reached
        assert ("from that checkpoint" in str(raised.value)) == (said == before)


def test_nothing_is_scored_or_kept_of_lost_weights(bert: str, texts: str, tmp_path: Path) -> None:
    best = BestCheckpoint(str(tmp_path / "best"))
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    run = trainer(tmp_path, best, Poison(3), enable_checkpointing=True, val_check_interval=2)
    with pytest.raises(RunError, match=r"^step 4: expected a finite loss, got nan; .*step=2.ckpt"):
        run.fit(tiny.module(bert), tiny.data(texts, validation=pairs))
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step=2.ckpt"]


def test_an_infinite_mask_is_no_divergence_and_a_lost_statistic_is(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(bert)
    module.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    trainer(tmp_path, max_steps=1).fit(module, tiny.data(texts))
    module.register_buffer("mean", torch.tensor([math.nan]))
    with pytest.raises(RunError, match="expected finite weights"):
        trainer(tmp_path, max_steps=1).fit(module, tiny.data(texts))


@pytest.mark.slow
def test_the_shell_answers_with_a_status_and_exports_nothing(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.train", texts]
    words += ["--data.batch_size", "8", "--data.num_workers", "0", "--model.optimizer.lr", "1e30"]
    words += ["--data.validation", tiny.write_pairs(tmp_path / "pairs.tsv"), "--trainer.accelerator", "cpu"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.gradient_clip_val", "null"]
    assert shell(words) == 2
    said = capfd.readouterr().err
    assert "error: step " in said and "Traceback" not in said
    run = tmp_path / "runs" / "version_0"
    assert not (run / "model").exists() and not list(run.rglob("*.ckpt"))
