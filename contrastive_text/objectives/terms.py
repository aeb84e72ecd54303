"""Value of an objective on one rank: a sum and a count, so that one place divides, over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses import Reduction, reduce_terms


def check_compared(objective: str, examples: int) -> None:
    """Checks that a step has a second example, with which an objective compares the first.

    Args:
        objective: Its class.
        examples: Examples of a step, over all ranks together.

    Raises:
        ValueError: There is one example.
    """
    if examples < 2:
        raise InvalidValueError(
            f"data.batch_size: expected 2 or more examples in a step for {objective}, which compares them with "
            f"each other, got {examples}; raise data.batch_size"
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """An objective's value on one rank, before the division.

    Args:
        total: Sum of the local rows' terms, a scalar with a gradient.
        count: Number of local rows: a number, or a scalar on the device where only the device knows it.
        reduction: How total and count over all ranks make the loss; see ``losses.reduce_terms``.
        logs: Figures to log beside the loss, scalars without a gradient.
        log_weights: Name of a figure -> its weight in the mean over ranks; ``count`` where none is given.
    """

    total: Tensor
    count: int | Tensor
    reduction: Reduction = "mean"
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    log_weights: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def added(cls, parts: Sequence[Terms]) -> Terms:
        """Returns the sum of several values of as many rows, with the weighted mean of each figure to log."""
        if len(parts) == 1:
            return parts[0]
        total = torch.stack([part.total for part in parts]).sum()
        logs, log_weights = {}, {}
        for name in parts[0].logs:
            each = torch.stack([part.logs[name] for part in parts])
            weights = torch.stack([part.weight(name).to(each) for part in parts])
            log_weights[name] = weights.sum()
            share = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
            logs[name] = torch.where(weights.sum() > 0, (each * share).sum(), each.mean())
        return replace(parts[0], total=total, logs=logs, log_weights=log_weights)

    def weight(self, name: str) -> Tensor:
        """Returns the weight of a logged figure in its mean over ranks."""
        return self.log_weights[name] if name in self.log_weights else self._count()

    def _count(self) -> Tensor:
        """Returns the number of local rows as a float32 scalar on the device of the total."""
        if isinstance(self.count, Tensor):
            return self.count.to(torch.float32)
        return torch.full((), float(self.count), device=self.total.device)

    def loss(self) -> Tensor:
        """Returns this rank's part of the loss; the mean over ranks is the loss of the whole batch.

        Example:
            >>> Terms(total=torch.tensor(6.0), count=4).loss()
            tensor(1.5000)
        """
        (loss,) = self.losses([self])
        return loss

    @staticmethod
    def losses(of_objectives: Sequence[Terms]) -> list[Tensor]:
        """Returns ``loss`` of several objectives; ranks add all of their counts up in one."""
        own = torch.stack([each._count() for each in of_objectives])
        counts = sum_over_ranks(own).clamp(min=1)
        return [
            reduce_terms(each.total * world_size(), count, each.reduction)
            for each, count in zip(of_objectives, counts.unbind(), strict=True)
        ]
