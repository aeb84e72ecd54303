"""Value of an objective on one rank, as a sum and a count that are divided over all ranks in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses import Reduction, reduce_terms


def check_several_examples(objective: str, examples: int) -> None:
    """Checks that a step has two or more examples, for an objective that compares examples with each other.

    Args:
        objective: Name of the objective, for the error.
        examples: Number of examples of a step, over all ranks.

    Raises:
        ValueError: There is only one example.
    """
    if examples < 2:
        raise InvalidValueError(
            f"data.batch_size: expected 2 or more examples in a step for {objective}, which compares examples "
            f"with each other, got {examples}; raise data.batch_size"
        )


def add_rows(parts: Sequence[Terms], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Returns the weighted sum of several formulas' loss terms of the same examples, as ``Terms.rows``.

    Args:
        parts: Values over the same examples.
        weights: Weight of each formula. Default: 1.

    Returns:
        The terms as ``loss``; empty if a formula has no terms of examples, or another number of terms.
    """
    terms = [part.rows["loss"] for part in parts if "loss" in part.rows]
    if len(terms) < len(parts) or len({len(part) for part in terms}) != 1:
        return {}
    scaled = [weight * part for weight, part in zip(weights or [1.0] * len(terms), terms, strict=True)]
    return {"loss": torch.stack(scaled).sum(dim=0)}


@dataclass(frozen=True, slots=True)
class Terms:
    """Value of an objective on one rank: the sum and the number of its loss terms.

    Args:
        total: Sum of the loss terms of the local rows, a scalar with a gradient.
        count: Number of local rows: a number, or a scalar tensor if it is computed on the device.
        reduction: How the totals and counts of all ranks are combined into the loss; see ``losses.reduce_terms``.
        logs: Name -> value to log next to the loss, a scalar without a gradient.
        log_weights: Name of a logged value -> its weight in the mean over ranks. Default: ``count``.
        rows: Name of a held-out score -> its value for each local example, (N,), without a gradient. ``loss`` are
            the loss terms: (k N,) for k sides of an example, one side after another. Validation also reports the
            other scores, times 100. Empty if the loss isn't a sum over examples.
    """

    total: Tensor
    count: int | Tensor
    reduction: Reduction = "mean"
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    log_weights: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def sum(cls, parts: Sequence[Terms]) -> Terms:
        """Adds the losses of several formulas over the same rows, and averages their logged values.

        Args:
            parts: Values with equal counts.
        """
        if len(parts) == 1:
            return parts[0]
        total = torch.stack([part.total for part in parts]).sum()
        logs, log_weights = {}, {}
        for name in parts[0].logs:
            values = torch.stack([part.logs[name] for part in parts])
            weights = torch.stack([part.weight(name).to(values) for part in parts])
            log_weights[name] = weights.sum()
            shares = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
            logs[name] = torch.where(weights.sum() > 0, (values * shares).sum(), values.mean())
        return replace(parts[0], total=total, logs=logs, log_weights=log_weights, rows=add_rows(parts))

    def weight(self, name: str) -> Tensor:
        """Returns the weight of a logged value in the mean over ranks."""
        return self.log_weights[name] if name in self.log_weights else self._count()

    def _count(self) -> Tensor:
        """Returns the number of local rows as a float32 scalar on the device of the total."""
        if isinstance(self.count, Tensor):
            return self.count.to(torch.float32)
        return torch.full((), float(self.count), device=self.total.device)

    def loss(self) -> Tensor:
        """Returns this rank's part of the loss of an objective.

        The mean over ranks is the loss of the whole batch.

        Example:
            >>> Terms(total=torch.tensor(6.0), count=4).loss()
            tensor(1.5000)
        """
        (loss,) = self.losses([self])
        return loss

    @staticmethod
    def losses(objective_terms: Sequence[Terms]) -> list[Tensor]:
        """Returns this rank's part of the loss of several objectives, with one collective operation."""
        counts = sum_over_ranks(torch.stack([terms._count() for terms in objective_terms])).clamp(min=1)
        return [
            reduce_terms(terms.total * world_size(), count, terms.reduction)
            for terms, count in zip(objective_terms, counts.unbind(), strict=True)
        ]
