"""The pairs of a batch, of this rank and of all: rows against columns, and those of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrastive_text.core.distributed import gather_all, gather_sizes, rank
from contrastive_text.losses import Comparison, Loss
from contrastive_text.losses.comparison import SameId, Texts, Triples
from contrastive_text.objectives.base import Terms
from contrastive_text.objectives.queue import Queue


def gather_triples(
    local: Sequence[Triples], over_ranks: bool, shares: Sequence[int] | None = None
) -> tuple[list[Triples], int]:
    """Returns the examples of all ranks, by one gather, and the place of the first local one among them.

    Args:
        local: This rank's examples; several where several things of them are compared.
        over_ranks: Whether ranks talk to each other; else the local ones are all.
        shares: Examples of each rank, as ``Encoded.shares``.
    """
    n = len(local[0].anchor)
    sizes = gather_sizes(n, local[0].anchor.device, shares) if over_ranks else [n]
    own: list[Tensor] = []

    def noted(rows: Tensor) -> Tensor:
        own.append(rows)
        return rows

    for each in local:
        each.map(noted)
    gathered = iter(gather_all(own, sizes))
    every = [each.map(lambda _: next(gathered)) for each in local]
    return every, sum(sizes[: rank()]) if len(sizes) > 1 else 0


@dataclass(frozen=True, slots=True)
class BatchPairs:
    """The pairs of a batch; where they have labels, those are the ``classes``.

    Args:
        local: This rank's n pairs.
        every: The N pairs of all ranks, in rank order.
        offset: Place of the first local pair among all.
        texts: Id of each anchor's text, (N,): equal for equal texts, even if those are no duplicates to
            ``every``.
        queue: Past columns; None for none.
        in_batch: Whether rows see the positives of other pairs.
    """

    local: Triples
    every: Triples
    offset: int
    texts: Tensor
    queue: Queue | None = None
    in_batch: bool = True

    @property
    def positive(self) -> Tensor:
        """True for a positive pair, whose label is 1, (N,)."""
        assert self.every.classes is not None
        return self.every.classes == 1

    @property
    def local_positive(self) -> Tensor:
        """True for a positive pair of this rank, (n,)."""
        return self.positive[self.offset : self.offset + len(self.local.anchor)]

    def positives(self) -> tuple[Triples, Triples, int]:
        """Returns the positive pairs of this rank, those of all ranks, and the place of the first local one."""
        mine, all_of_them = self.local_positive, self.positive
        local = self.local.map(lambda rows: rows[mine])
        every = self.every.map(lambda rows: rows[all_of_them])
        return local, every, int(all_of_them[: self.offset].sum())

    def comparisons(
        self, loss: Loss, local: Triples, every: Triples, offset: int, further: Texts | None = None
    ) -> list[Comparison]:
        """Arranges pairs into blocks, as ``Loss.comparisons`` does, before the columns of the queue."""
        blocks = self._arranged(loss, local, every, offset, further)
        return blocks if self.in_batch else [_without(block, first=len(every.anchor)) for block in blocks]

    def _arranged(
        self, loss: Loss, local: Triples, every: Triples, offset: int, further: Texts | None
    ) -> list[Comparison]:
        if self.queue is None:
            return loss.comparisons(local, every, offset, further=further)
        return self.queue.comparisons(loss, local, every, offset, further=further)

    def terms(
        self, loss: Loss, local: Triples, every: Triples, offset: int, further: Texts | None = None
    ) -> Terms:
        """Returns the loss of pairs that belong together, under its own reduction."""
        terms = loss.compare(self.comparisons(loss, local, every, offset, further=further))
        return Terms(total=terms.sum(), count=len(terms), reduction=loss.reduction)


def _without(block: Comparison, first: int) -> Comparison:
    """Returns the comparison in which the first columns are masked, but for a row's target."""
    batch = torch.arange(len(block.columns), device=block.columns.device) < first
    return replace(block, masks={**block.masks, "batch": SameId.for_all(len(block.rows), batch)})
