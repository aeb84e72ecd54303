"""The progress bar of a run, which ends where the run does."""

from __future__ import annotations

from pytorch_lightning.callbacks import RichProgressBar


class RunProgressBar(RichProgressBar):
    """Lightning's bar, of an epoch's batches, or of those to ``max_steps`` where the run ends earlier.

    Differs: Lightning counts to ``max_steps`` only where ``max_epochs`` is -1, and of a resumed epoch too few.
    """

    @property
    def total_train_batches(self) -> int | float:
        """The batches of the epoch that is shown."""
        trainer = self.trainer
        if trainer.max_steps < 0:
            return trainer.num_training_batches
        loop = trainer.fit_loop.epoch_loop
        seen = loop.batch_progress.current.ready if loop.restarting else 0
        left = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
        return min(trainer.num_training_batches, seen + left)

    def _get_train_description(self, current_epoch: int) -> str:
        """Returns the number of the epoch, and of how many where that is known."""
        return str(super()._get_train_description(current_epoch)).replace("/-2", "  ")  # max_epochs is -1
