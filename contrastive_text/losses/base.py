"""What every in-batch loss is: rows, columns, and which column each row should find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from contrastive_text.losses.comparisons import NO_CLASS, Alike, Comparison, Forbid, FurtherNegatives, Triples
from contrastive_text.losses.temperature import LearnedTemperature

Reduction = Literal["mean", "sum", "two_sided"]


def reduce_terms(total: Tensor, count: Tensor | int, reduction: Reduction) -> Tensor:
    """Returns the loss from the sum of its terms and their number.

    ``mean`` is the total over the count, ``sum`` the total (CLEAR and DeCLUTR as written), ``two_sided``
    the sum of the two sides' means, that is twice the mean (ConSERT's code: lossA + lossB).

    Example:
        >>> reduce_terms(torch.tensor(6.0), 4, "mean"), reduce_terms(torch.tensor(6.0), 4, "two_sided")
        (tensor(1.5000), tensor(3.))
    """
    if reduction == "sum":
        return total
    return total / count * (2 if reduction == "two_sided" else 1)


class Loss(nn.Module, ABC):
    """Base class of in-batch losses: one term per row, from rows, columns and targets.

    Attributes:
        same_side: Whether anchors and positives stand on both sides, so that texts of a row's own side are
            its negatives too (NT-Xent), or anchors look for positives only (InfoNCE).
        reads_labels: Whether it compares by classes: ``block_terms`` then reads ``Comparison.alike``.
        reduction: How the terms make one number; see ``reduce_terms``.
        learned: The temperature that is trained; None where it stays as it is.
    """

    same_side: ClassVar[bool] = False
    reads_labels: ClassVar[bool] = False
    reduction: Reduction = "mean"
    learned: LearnedTemperature | None

    def __init__(self) -> None:
        super().__init__()
        self.learned = None

    @abstractmethod
    def terms(
        self,
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """Returns one term per row.

        Args:
            rows: (R, D).
            columns: (C, D).
            target: Column that each row should find, (R,).
            forbid: Columns that rows must not see.
            own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer.

        Returns:
            (R,), in at least float32.
        """

    def block_terms(self, block: Comparison) -> Tensor:
        """Returns one term per row of a block; a loss that compares by classes overrides it."""
        return self.terms(block.rows, block.columns, block.target, forbid=block.forbid, own=block.own)

    def compare(self, blocks: Sequence[Comparison]) -> Tensor:
        """Returns the terms of all blocks, one after another."""
        parts = [self.block_terms(block) for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def comparisons(
        self, local: Triples, every: Triples, offset: int = 0, further: FurtherNegatives | None = None
    ) -> list[Comparison]:
        """Arranges texts into blocks: local rows against the columns of all ranks.

        Every block has its rows side by side, each side in the order of the local examples. Where they are the
        very columns, both are one tensor.

        Args:
            local: This rank's n examples.
            every: The N examples of all ranks, in rank order; with the same vectors on one process.
            offset: Place of the first local example among all.
            further: Columns after those of the examples, wherever hard negatives stand.
        """
        n = len(every.anchor)
        own_place = offset + torch.arange(len(local.anchor), device=every.anchor.device)
        forward_ids = torch.stack([local.anchor_ids, local.positive_ids], dim=1)
        backward_ids = forward_ids.flip(1)
        sides = [every.anchor, every.positive] if self.same_side else [every.positive]
        side_ids = [every.anchor_ids, every.positive_ids] if self.same_side else [every.positive_ids]
        own = []
        if every.negative is not None and every.negative_ids is not None:
            k = every.negative.shape[1]
            places = own_place.unsqueeze(1) * k + torch.arange(k, device=own_place.device)
            own.append(sum(map(len, sides)) + places)
            sides.append(every.negative.flatten(0, 1))
            side_ids.append(every.negative_ids.flatten(0, 1))
        if further is not None:
            own.append(torch.where(further.own < 0, further.own, sum(map(len, sides)) + further.own))
            sides.append(further.vectors)
            side_ids.append(further.ids)
        columns, column_ids = torch.cat(sides), torch.cat(side_ids)
        own_columns = torch.cat(own, dim=1) if own else None
        alike = self._alike(local, every, columns=len(columns))
        if self.same_side:
            is_whole = local.anchor is every.anchor and local.positive is every.positive
            return [
                Comparison(
                    rows=columns if is_whole and not own else torch.cat([local.anchor, local.positive]),
                    columns=columns,
                    target=torch.cat([n + own_place, own_place]),
                    forbid=Forbid(torch.cat([forward_ids, backward_ids]), column_ids),
                    own=None if own_columns is None else torch.cat([own_columns, own_columns]),
                    alike=alike,
                )
            ]
        forward = Comparison(
            local.anchor, columns, own_place, Forbid(forward_ids, column_ids), own=own_columns, alike=alike
        )
        if self.reduction != "two_sided":
            return [forward]
        backward = Comparison(
            local.positive,
            every.anchor,
            own_place,
            Forbid(backward_ids, every.anchor_ids),
            alike=self._alike(local, every, columns=n),
        )
        return [forward, backward]

    def _alike(self, local: Triples, every: Triples, columns: int) -> Alike | None:
        """Returns the classes of a block's rows and columns; those after the examples' have none."""
        if local.classes is None or every.classes is None:
            return None
        sides = 2 if self.same_side else 1
        none = every.classes.new_full((columns - sides * len(every.classes),), NO_CLASS)
        return Alike(local.classes.repeat(sides), torch.cat([every.classes.repeat(sides), none]))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Tensor:
        """Returns the loss of N examples whose texts all differ.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: Hard negatives, (N, D) or (N, K, D).

        Returns:
            A scalar, in at least float32.
        """
        return self._value(Triples.distinct(anchor, positive, negative))

    def _value(self, triples: Triples) -> Tensor:
        terms = self.compare(self.comparisons(triples, triples))
        return reduce_terms(terms.sum(), len(terms), self.reduction)
