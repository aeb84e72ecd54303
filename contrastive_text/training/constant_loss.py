"""Warning about a run whose losses don't depend on its texts."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from contrastive_text.core.distributed import means_over_ranks
from contrastive_text.training.log_figures import on_host

FIRST = 10
"""Batches whose losses are compared."""
_ROUNDING = 1e-6
"""Relative difference up to which two losses are equal: sums in float32 differ by as much from order to order."""
_CAUSES = (
    "check that the texts differ, that anchors and scores are not all the same, and that a batch has several rows"
)


class WarnOfConstantLoss(Callback):
    """Warns once if every loss of the first ten batches is 0 or the same number, so that nothing is learned.

    That is so if all texts are equal, if all rows have one anchor, or if all scores are equal. The losses stay on
    the device until the tenth batch, or the end of a shorter run, when the host reads them at once.
    """

    def __init__(self) -> None:
        self._losses: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._batches = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Starts to collect losses."""
        self._losses.clear()
        self._batches = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # Any: Lightning's
        """Collects the loss of each objective, and compares them after the tenth batch."""
        if self._batches >= FIRST:
            return
        module = rest[0]
        for name in module.objective_parts():
            if name in module.figures:
                self._losses[name].append(module.figures[name])
        self._batches += 1
        if self._batches == FIRST:
            self._warn(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Compares the losses of a shorter run."""
        if 1 < self._batches < FIRST:
            self._warn(trainer)

    def _warn(self, trainer: pl.Trainer) -> None:
        named = {f"{name}/{i}": each for name, losses in self._losses.items() for i, each in enumerate(losses)}
        read = on_host(means_over_ranks(named))
        each = {
            name: [float(read[f"{name}/{i}"]) for i in range(len(kept))] for name, kept in self._losses.items()
        }
        said = describe_constant(each)
        if said and trainer.is_global_zero:
            warnings.warn(f"{said} in each of the first {self._batches} batches: {_CAUSES}", stacklevel=2)


def describe_constant(losses: Mapping[str, Sequence[float]]) -> str:
    """Returns the loss of each objective if none of them changes; empty if one does, or is seen only once.

    Args:
        losses: Name of an objective -> its losses, one a batch.

    Example:
        >>> describe_constant({"contrastive": [0.0, 0.0, 0.0]})
        'contrastive has loss 0'
        >>> describe_constant({"contrastive": [0.0, 0.0], "mlm": [5.1, 5.0]})
        ''
    """
    for values in losses.values():
        spread = max(values) - min(values)
        if any(values) and (len(values) < 2 or not spread <= _ROUNDING * max(map(abs, values))):
            return ""
    return ", ".join(f"{name} has loss {values[0]:.4g}" for name, values in losses.items())
