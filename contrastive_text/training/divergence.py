"""A run whose loss or weights are no numbers any more ends, before anything of it is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn

from contrastive_text.core.distributed import own_part
from contrastive_text.core.errors import RunError
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped

_ADVICE = (
    "a lower learning rate, a stronger clipping (trainer.gradient_clip_val), or bf16-mixed in place of 16-mixed"
)
_INTERVAL = 50
"""Batches between two looks where nothing is logged; Lightning's own default."""


class EndWhenDiverged(Callback):
    """Ends a run, on all ranks, once its loss or its weights are NaN or infinite.

    The loss of each batch is noted on the device and read every ``trainer.log_every_n_steps`` batches (50 where
    that is 0), before a validation and at the end: reading waits for the device. Weights are read before each
    validation and each checkpoint, so that none without a number in it is written. A step that float16's gradient
    scaling leaves out has a finite loss, and goes by.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None  # step and loss of the first batch whose loss was no number

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Starts anew."""
        self._first = torch.tensor([math.inf, 0.0], device=pl_module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # Any: Lightning's
        """Notes the loss, and reads what was noted now and then."""
        _, outputs, _, batch_idx = rest  # module, what the step gave, batch, its number
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and self._first is not None:
            self._first = _earlier(self._first, loss.detach(), trainer.global_step)
        if (batch_idx + 1) % (vars(trainer)["log_every_n_steps"] or _INTERVAL) == 0:  # Lightning's, undeclared
            self._check_loss(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks before scores are made of it."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._check_loss(trainer)
            check_weights(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks before a model is made of it."""
        self._check_loss(trainer)
        check_weights(trainer, pl_module)

    def _check_loss(self, trainer: pl.Trainer) -> None:
        if self._first is None:
            return
        step = float(trainer.strategy.reduce(self._first[0].clone(), reduce_op="min"))
        if step < math.inf:
            own, loss = self._first.tolist()
            got = f"{loss}" if own == step else "none on another rank"
            raise RunError(f"step {int(step):,}: expected a finite loss, got {got}; {_advice(trainer)}")


def _earlier(first: Tensor, loss: Tensor, step: int) -> Tensor:
    """Returns the first step and loss that are no numbers, without waiting for the device."""
    now = torch.stack([torch.full_like(first[0], step), loss.reshape(()).to(first)])
    return torch.where(first[0].isinf() & ~loss.isfinite(), now, first)


def check_weights(trainer: pl.Trainer, module: nn.Module) -> None:
    """Checks, on all ranks together, that weights are numbers; those of a mask may be infinite.

    Raises:
        RunError: A parameter that is NaN or infinite, or a buffer that is NaN.
    """
    sound = [own_part(parameter).isfinite().all() for parameter in module.parameters()]
    sound += [~buffer.isnan().any() for buffer in module.buffers()]
    finite = not sound or bool(torch.stack([each.to(sound[0].device) for each in sound]).all())
    if not trainer.strategy.reduce_boolean_decision(finite, all=True):
        raise RunError(
            f"step {trainer.global_step:,}: expected finite weights, got NaN or infinite ones; {_advice(trainer)}"
        )


def _advice(trainer: pl.Trainer) -> str:
    kept = _last_checkpoint(trainer)
    where = f"the last checkpoint before it is {kept}" if kept else "there is no checkpoint before it"
    start = "start again, or from that checkpoint with --init_from, with" if kept else "start again with"
    return f"{where}; training has diverged, so nothing is exported; {start} {_ADVICE}"


def _last_checkpoint(trainer: pl.Trainer) -> Path | None:
    """Returns the latest checkpoint of the run that is there: all of them are of finite weights."""
    ours = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    named = [path for callback in ours for path in (callback.best_model_path, callback.last_model_path)]
    # The best so far is named before it is written.
    named += [vars(callback)["_last_checkpoint_saved"] for callback in ours]
    stopped = [callback.saved for callback in vars(trainer)["callbacks"] if isinstance(callback, SaveWhenStopped)]
    there = [path for path in (Path(name) for name in (*named, *stopped) if name) if path.is_file()]
    return max(there, key=lambda path: path.stat().st_mtime, default=None)
