"""What every in-batch loss is: rows, columns, and which column each row should find."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

Reduction = Literal["mean", "sum", "two_sided"]


@dataclass(frozen=True, slots=True)
class Forbid:
    """Which columns a row must not see, by integer ids: itself, and texts equal to it or to its target.

    A column is forbidden for a row if its id is among the row's ids, unless it is the row's target. Ids
    take O(R + C) memory where a mask takes O(R * C).

    Args:
        rows: Ids of each row, (R, ids per row).
        columns: Id of each column, (C,).
    """

    rows: Tensor
    columns: Tensor

    def mask(self, target: Tensor) -> Tensor:
        """Gives True where a column is forbidden, (R, C), for targets (R,)."""
        same = torch.zeros(len(self.rows), len(self.columns), dtype=torch.bool, device=self.columns.device)
        for ids in self.rows.T:
            same |= ids.unsqueeze(1) == self.columns
        return same.scatter(1, target.unsqueeze(1), False)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One block of rows held against columns.

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,).
        forbid: Columns that rows must not see.
        own: Columns of each row's own hard negatives, (R, K), or None.
    """

    rows: Tensor
    columns: Tensor
    target: Tensor
    forbid: Forbid
    own: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Triples:
    """Vectors of N examples with an id for every text; equal ids mark equal texts.

    Args:
        anchor: (N, D).
        positive: (N, D).
        negative: (N, K, D), or None.
        anchor_ids: (N,).
        positive_ids: (N,).
        negative_ids: (N, K), or None.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None
    anchor_ids: Tensor
    positive_ids: Tensor
    negative_ids: Tensor | None

    @classmethod
    def distinct(cls, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Triples:
        """Gives every text an id of its own, so that a row is kept from itself and from nothing else.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: (N, D), (N, K, D) or None.

        Raises:
            ValueError: Shapes that don't belong together.
        """
        if anchor.ndim != 2 or anchor.shape != positive.shape:
            raise ValueError(
                "loss: expected anchor and positive of one shape (N, D), got "
                f"{tuple(anchor.shape)} and {tuple(positive.shape)}"
            )
        n = len(anchor)
        ids = torch.arange(2 * n, device=anchor.device)
        if negative is None:
            return cls(anchor, positive, None, ids[:n], ids[n:], None)
        negative = negative.unsqueeze(1) if negative.ndim == 2 else negative
        if negative.ndim != 3 or negative.shape[0] != n or negative.shape[2] != anchor.shape[1]:
            raise ValueError(
                "loss: expected hard negatives of shape (N, D) or (N, K, D) with N, D = "
                f"{tuple(anchor.shape)}, got {tuple(negative.shape)}"
            )
        negative_ids = 2 * n + torch.arange(n * negative.shape[1], device=anchor.device)
        return cls(anchor, positive, negative, ids[:n], ids[n:], negative_ids.reshape(n, -1))

    def map(self, change: Callable[[Tensor], Tensor]) -> Triples:
        """Gives the triples with every tensor changed in the same way."""
        return Triples(
            anchor=change(self.anchor),
            positive=change(self.positive),
            negative=None if self.negative is None else change(self.negative),
            anchor_ids=change(self.anchor_ids),
            positive_ids=change(self.positive_ids),
            negative_ids=None if self.negative_ids is None else change(self.negative_ids),
        )


def reduce(total: Tensor, count: Tensor | int, reduction: Reduction) -> Tensor:
    """Gives the loss from the sum of its terms and their number.

    ``mean`` is the total over the count, ``sum`` the total (CLEAR and DeCLUTR as written), ``two_sided``
    the sum of the two sides' means, that is twice the mean (ConSERT's code: lossA + lossB).

    Example:
        >>> reduce(torch.tensor(6.0), 4, "mean"), reduce(torch.tensor(6.0), 4, "two_sided")
        (tensor(1.5000), tensor(3.))
    """
    if reduction == "sum":
        return total
    return total / count * (2 if reduction == "two_sided" else 1)


def check_temperature(temperature: float) -> None:
    """Refuses a temperature that is not a positive finite number (ValueError)."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature: expected a number above 0, got {temperature}; it divides the cosine similarity, "
            "and 0.05 is the usual value"
        )


def check_reduction(reduction: str) -> None:
    """Refuses a reduction that isn't one of the three (ValueError)."""
    if reduction not in get_args(Reduction):
        raise ValueError(f"reduction: expected one of {', '.join(get_args(Reduction))}, got {reduction!r}")


class Loss(nn.Module, ABC):
    """Base class of in-batch losses: one term per row, from rows, columns and targets.

    Attributes:
        same_side: Whether anchors and positives stand on both sides, so that texts of a row's own side are
            its negatives too (NT-Xent), or anchors look for positives only (InfoNCE).
        reduction: How the terms make one number; see ``reduce``.
    """

    same_side: ClassVar[bool] = False
    reduction: Reduction = "mean"

    @abstractmethod
    def terms(
        self,
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """Gives one term per row.

        Args:
            rows: (R, D).
            columns: (C, D).
            target: Column that each row should find, (R,).
            forbid: Columns that rows must not see.
            own: Columns of each row's own hard negatives, (R, K).

        Returns:
            (R,), in at least float32.
        """

    def comparisons(self, local: Triples, every: Triples, offset: int = 0) -> list[Comparison]:
        """Arranges texts into blocks: local rows against the columns of all ranks.

        Args:
            local: This rank's n examples.
            every: The N examples of all ranks, in rank order; the same object on one process.
            offset: Place of the first local example among all.
        """
        n = len(every.anchor)
        own_place = offset + torch.arange(len(local.anchor), device=every.anchor.device)
        forward_ids = torch.stack([local.anchor_ids, local.positive_ids], dim=1)
        backward_ids = forward_ids.flip(1)
        sides = [every.anchor, every.positive] if self.same_side else [every.positive]
        side_ids = [every.anchor_ids, every.positive_ids] if self.same_side else [every.positive_ids]
        own = None
        if every.negative is not None and every.negative_ids is not None:
            k = every.negative.shape[1]
            own = len(sides) * n + own_place.unsqueeze(1) * k + torch.arange(k, device=own_place.device)
            sides.append(every.negative.flatten(0, 1))
            side_ids.append(every.negative_ids.flatten())
        columns, column_ids = torch.cat(sides), torch.cat(side_ids)
        if self.same_side:
            return [
                Comparison(
                    rows=torch.cat([local.anchor, local.positive]),
                    columns=columns,
                    target=torch.cat([n + own_place, own_place]),
                    forbid=Forbid(torch.cat([forward_ids, backward_ids]), column_ids),
                    own=None if own is None else torch.cat([own, own]),
                )
            ]
        forward = Comparison(local.anchor, columns, own_place, Forbid(forward_ids, column_ids), own)
        if self.reduction != "two_sided":
            return [forward]
        backward = Forbid(backward_ids, every.anchor_ids)
        return [forward, Comparison(local.positive, every.anchor, own_place, backward)]

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Tensor:
        """Gives the loss of N examples whose texts all differ.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: Hard negatives, (N, D) or (N, K, D).

        Returns:
            A scalar, in at least float32.
        """
        triples = Triples.distinct(anchor, positive, negative)
        terms = torch.cat(
            [
                self.terms(block.rows, block.columns, block.target, forbid=block.forbid, own=block.own)
                for block in self.comparisons(triples, triples)
            ]
        )
        return reduce(terms.sum(), len(terms), self.reduction)
