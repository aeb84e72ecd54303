"""Figures of a step are computed, shared between ranks and read from the device where somebody looks at them."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.distributed import world_size


class LogFigures(Callback):
    """Says which steps are logged, and logs them: the others compute, sum and read no figures.

    Logged is every ``trainer.log_every_n_steps``-th step, which Lightning's loggers take, the first of a run, the
    last of an epoch and of a run, and those that a callback asks for: its attribute ``reads_figures_every`` is a
    number of steps. The progress bar shows the loss of the latest of them; no other step waits for the device.

    Differs: Lightning sums, and its bar reads, the figures of every step.
    """

    def __init__(self) -> None:
        self._every: set[int] = set()
        self._is_first = True
        self._names: set[str] = set()
        self._truncated = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Learns who reads how often."""
        options = vars(trainer)  # Lightning sets them, undeclared
        asked = [getattr(callback, "reads_figures_every", 0) for callback in options["callbacks"]]
        self._every = {every for every in (options["log_every_n_steps"], *asked) if every}
        self._is_first, self._truncated = True, 0

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Tells the module whether the figures of the coming step are looked at."""
        step = trainer.global_step + 1
        ends = trainer.is_last_batch or step == trainer.max_steps
        logged = self._is_first or ends or any(step % every == 0 for every in self._every)
        pl_module.logs_step = logged  # type: ignore[assignment]  # the module's own, not one of Lightning's modules
        if not logged:
            _forget(trainer)

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Logs the figures of the step, which are read at once and after its backward pass."""
        if not pl_module.logs_step:
            return
        self._is_first = False
        figures = on_host(vars(pl_module)["figures"])
        # Lightning repeats the last value of a name that a step doesn't log.
        absent = {name: torch.tensor(torch.nan) for name in self._names - set(figures)}
        self._names |= set(figures)
        for name, figure in sorted((figures | absent).items()):
            pl_module.log(f"train/{name}", figure, on_step=True, on_epoch=False, prog_bar=name == "loss")

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Counts the texts that were cut to the length limit."""
        batch: Batch | StepBatch = rest[2]  # after the module and what the step gave
        parts = batch.batches.values() if isinstance(batch, StepBatch) else [batch]
        self._truncated += sum(part.truncated for part in parts)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Logs how many they were, on all ranks."""
        several = world_size() > 1
        pl_module.log("train/truncated", float(self._truncated), batch_size=1, sync_dist=several, reduce_fx="sum")
        self._truncated = 0

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Leaves a module that computes its figures whenever it is asked."""
        pl_module.logs_step = True  # type: ignore[assignment]  # the module's own, as above


def on_host(figures: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns scalars on the host, each in its precision, by one copy for all of them.

    Example:
        >>> on_host({"loss": torch.tensor(0.5), "norm": torch.tensor(2.0, dtype=torch.float64)})
        {'loss': tensor(0.5000), 'norm': tensor(2., dtype=torch.float64)}
    """
    if not figures:
        return {}
    flat = [figure.detach().reshape(()) for figure in figures.values()]
    kind = torch.float32
    for figure in flat:
        kind = torch.promote_types(kind, figure.dtype)
    host = torch.stack([figure.to(kind) for figure in flat]).cpu()
    return {name: row.to(each.dtype) for name, row, each in zip(figures, host.unbind(), flat, strict=True)}


def _forget(trainer: pl.Trainer) -> None:
    """Lets Lightning log nothing twice: it keeps the last figures, also for a step that ends a run unforeseen."""
    for key, kept in (trainer._results or {}).items():
        if key.startswith("on_before_optimizer_step.train/"):
            kept._forward_cache = None
