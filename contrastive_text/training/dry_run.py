"""A run up to its first step: everything is read, built, checked and said, and nothing is written."""

from __future__ import annotations

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.cli import SaveConfigCallback

from contrastive_text.core.terminal import say
from contrastive_text.training.callbacks.export_model import ExportModel
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.run_folders import OwnFolders


class FirstStepReachedError(Exception):
    """Ends a dry run."""


class _EndBeforeFirstStep(Callback):
    """Ends a run when its first step would begin, after the batches of validation that Lightning tries."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Ends the run.

        Raises:
            FirstStepReachedError: Always.
        """
        if trainer.is_global_zero:
            steps = trainer.estimated_stepping_batches
            say(f"Dry run: {steps:,} steps would follow; nothing was trained, and nothing written")
        raise FirstStepReachedError


def make_dry(trainer: pl.Trainer) -> None:
    """Takes from a trainer what writes files before the first step, and lets it end there.

    Args:
        trainer: Not yet started.

    Example:
        >>> trainer = pl.Trainer(accelerator="cpu", logger=False)
        >>> make_dry(trainer)
        >>> type(vars(trainer)["callbacks"][-1]).__name__
        '_EndBeforeFirstStep'
    """
    callbacks = vars(trainer)["callbacks"]  # Lightning sets it, undeclared
    writers = (ExportModel, SaveConfigCallback, SaveWhenStopped)
    callbacks[:] = [callback for callback in callbacks if not isinstance(callback, writers)]
    for callback in callbacks:
        if isinstance(callback, OwnFolders):
            callback.writes = False
    callbacks.append(_EndBeforeFirstStep())
    trainer.loggers = []
