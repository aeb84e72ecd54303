"""What every in-batch loss is: rows, columns, and which column each row should find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from contrastive_text.losses.comparisons import Columns, Comparison, FurtherNegatives, Rows
from contrastive_text.losses.temperature import LearnedTemperature
from contrastive_text.losses.triples import Triples

Reduction = Literal["mean", "sum", "two_sided"]
"""How the terms of the rows make one loss."""


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
        several_targets: Whether ``terms`` reads ``Comparison.alike``, columns that rows are pulled to too.
        same_side: Whether anchors and positives stand on both sides, so that texts of a row's own side are
            its negatives too (NT-Xent), or anchors look for positives only (InfoNCE).
        signed: Whether the terms of pairs that don't belong together may be maximised (``SignedPairs``).
        reads_labels: Whether it compares by classes: those alike are texts of a row's class.
        reduction: How the terms make one number; see ``reduce_terms``.
        learned: The temperature that is trained; None where it stays as it is.

    Example:
        >>> from contrastive_text.losses import cosine_similarity_matrix
        >>> class Hinge(Loss):
        ...     def terms(self, block):
        ...         cosines = block.hide(cosine_similarity_matrix(block.rows, block.columns))
        ...         target = block.target.unsqueeze(1)
        ...         wrong = cosines.scatter(1, target, -1).amax(dim=1)
        ...         return (0.3 - cosines.gather(1, target).squeeze(1) + wrong).clamp(min=0)
        >>> Hinge()(torch.eye(3), torch.eye(3))
        tensor(0.)
    """

    several_targets: bool = False
    same_side: bool = False
    signed: bool = True
    reads_labels: ClassVar[bool] = False
    reduction: Reduction = "mean"
    learned: LearnedTemperature | None

    def __init__(self) -> None:
        super().__init__()
        self.learned = None

    @abstractmethod
    def terms(self, block: Comparison) -> Tensor:
        """Returns one term per row of a block, (R,), in at least float32."""

    @property
    def others(self) -> tuple[str, ...]:
        """What a row sees beside the targets of other examples: one text of each of them for every word here."""
        return ("texts of its own side",) if self.same_side else ()

    @property
    def anchors_are_columns(self) -> bool:
        """Whether rows are held against anchors in the block whose columns enter a queue."""
        return self.same_side

    @property
    def figures(self) -> dict[str, Tensor]:
        """What is logged of it: the temperature where it is learned."""
        return {} if self.learned is None else {"temperature": self.learned().detach().squeeze()}

    def compare(self, blocks: Sequence[Comparison]) -> Tensor:
        """Returns the terms of all blocks, one after another."""
        parts = [self.terms(block) for block in blocks]
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
        places = offset + torch.arange(len(local.anchor), device=every.anchor.device)
        forward, backward = local.rows()
        anchors, positives = every.sides(by_class=self.reads_labels)
        columns, own = every.columns([anchors, positives] if self.same_side else [positives], places, further)
        if self.same_side:
            is_whole = local.anchor is every.anchor and local.positive is every.positive and own is None
            rows = Rows.join([forward, backward])
            rows = replace(rows, vectors=columns.vectors) if is_whole else rows
            target = torch.cat([len(every.anchor) + places, places])
            own = None if own is None else torch.cat([own, own])
            return [self._block(local, rows, columns, target, own)]
        block = self._block(local, forward, columns, places, own)
        if self.reduction != "two_sided":
            return [block]
        return [block, self._block(local, backward, anchors, places)]

    def _block(
        self,
        local: Triples,
        rows: Rows,
        columns: Columns,
        target: Tensor,
        own: Tensor | None = None,
    ) -> Comparison:
        """Returns a block of local rows; columns of a row's group are hidden from it, or alike."""
        classes = None
        if self.reads_labels and local.classes is not None:
            classes = local.classes.repeat(2 if self.same_side else 1)
        forbid, alike = local.relations(rows, columns, classes)
        return Comparison(rows.vectors, columns.vectors, target, forbid, own=own, alike=alike)

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
