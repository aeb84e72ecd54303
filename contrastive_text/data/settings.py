"""Settings of a trainer under which the batches would be others than those that were asked for."""

from __future__ import annotations

import pytorch_lightning as pl
from pytorch_lightning.callbacks import BatchSizeFinder

from contrastive_text.core.errors import InvalidValueError


def check_trainer(trainer: pl.Trainer, stage: str) -> None:
    """Checks that a trainer leaves batches as they are.

    Args:
        trainer: Whose loaders are to be made.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        ValueError: Lightning's own sampler over several processes, or its search for a batch size.
    """
    # Nothing public tells it.
    injects = trainer._accelerator_connector.use_distributed_sampler
    if injects and trainer.world_size > 1 and stage != "predict":
        raise InvalidValueError(
            "trainer.use_distributed_sampler: expected False with several processes, got True; give "
            "Trainer(use_distributed_sampler=False), for the data share rows out: Lightning's sampler "
            "repeats rows to even processes out, and a repeated row is a false negative of itself"
        )
    if any(isinstance(callback, BatchSizeFinder) for callback in vars(trainer)["callbacks"]):
        raise InvalidValueError(
            "trainer.callbacks: expected no BatchSizeFinder, got one; texts are compared with those of their "
            "batch, so that another size gives another model. Choose data.batch_size for the result, and bound "
            "memory with --chunk auto (the callback ChunkSize), which changes nothing but time"
        )
