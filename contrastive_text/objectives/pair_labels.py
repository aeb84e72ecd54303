"""Column parts for labeled pairs, which remove negative pairs or use them as hard negatives or signed terms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.targets import Classes, Target
from contrastive_text.losses import Comparison, reduce_terms
from contrastive_text.losses.rules import Rule, SameId
from contrastive_text.objectives.columns import ColumnPart, ObjectiveOptions, RowsAndColumns, Stage
from contrastive_text.objectives.terms import Terms


class PairLabels(ColumnPart):
    """Base class of column parts that read pair labels: 1 for positive pairs, 0 for negative pairs.

    Attributes:
        note: Description of the use of negative pairs, for the run's summary.
    """

    stage: ClassVar[Stage] = "examples"

    @property
    def target(self) -> Target:
        """Kind of target that the column part reads: the label of a pair, 0 or 1."""
        return Classes.of(2, type(self).__name__)

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Marks the positive pairs of the batch in ``pairs.is_positive``, from their labels."""
        assert pairs.all_examples.target is not None
        return replace(pairs, is_positive=pairs.all_examples.target == 1)

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that two texts are compared, and that the loss doesn't read classes (ValueError)."""
        name, loss = type(self).__name__, type(setup.loss).__name__
        if not setup.between.is_pairs:
            raise InvalidValueError(
                f"Contrastive.columns: {name} expects between: texts, got {type(setup.between).__name__}. Two "
                f"views of a text are always a positive pair; set between: texts, or remove {name}"
            )
        if setup.loss.reads_classes:
            raise InvalidValueError(
                f"Contrastive.columns: {name} expects a loss that doesn't read classes, got {loss}; use NTXent "
                f"with {name}, or remove {name}"
            )
        if not self.rows_have_positives and not setup.loss.supports_negative_labels:
            raise InvalidValueError(
                f"Contrastive.columns: {name} expects a loss whose terms can be maximized, got {loss}; use "
                "NegativesAsHard, or NTXent"
            )


class PositivesOnly(PairLabels):
    """Removes negative pairs (label 0) from rows and columns.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.core.batch import Encoded
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots, labels = (Slot("anchor", 0), Slot("positive", 0)), torch.tensor([1.0, 0.0])
        >>> encoded = Encoded(vectors, slots, text_ids=torch.arange(4), target=labels)
        >>> Contrastive(columns=[PositivesOnly()])(encoded).total
        tensor(0.)
    """

    note = "negative pairs are removed"

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Removes the negative pairs (label 0) from rows and columns, and returns the rest."""
        return super().__call__(pairs).remove_negative_pairs()


class NegativesAsHard(PairLabels):
    """Uses the second text of each negative pair (label 0) as a hard negative of all positive pairs.

    The text is an own hard negative (``InfoNCE.hard_negative_log_weight``) of rows whose anchor is the first text
    of the negative pair. First texts of negative pairs are neither rows nor columns. This is like SimCSE's
    supervised training (Gao et al. 2021, https://arxiv.org/abs/2104.08821, section 4), where every anchor has a
    hard negative.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.core.batch import Encoded
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots, labels = (Slot("anchor", 0), Slot("positive", 0)), torch.tensor([1.0, 0.0])
        >>> encoded = Encoded(vectors, slots, text_ids=torch.arange(4), target=labels)
        >>> Contrastive(columns=[NegativesAsHard()])(encoded).total
        tensor(4.0181)
    """

    note = "second texts of negative pairs are hard negatives"

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Returns the positive pairs, with the second texts of negative pairs as further columns."""
        pairs = super().__call__(pairs)
        assert pairs.is_positive is not None
        negative = ~pairs.is_positive
        _, positives = pairs.all_examples.sides()
        positive_pairs = pairs.remove_negative_pairs()
        anchors, offset = pairs.texts.sides()[0].first_ids, pairs.offset
        local_anchors = anchors[offset : offset + len(pairs.rows.anchor)][pairs.local_is_positive]
        columns = positives.map(lambda tensor: tensor[negative])
        return positive_pairs.add_columns(
            replace(columns, own_negatives=_indices_of(local_anchors, among=anchors[negative]))
        )


class SignedPairs(PairLabels):
    """Minimizes the loss of positive pairs and maximizes the loss of negative pairs (label 0) up to a bound.

    ``mean over positive pairs of l_i - weight * mean over negative pairs of min(l_i, bound)``

    Every pair is a row, and its second text is a column for all rows. Duplicates of a negative pair's second text
    remain among its columns, because they need not be positives. Source: Chen, "Contrastive Learning for
    Generalizable Sentence Embeddings" (Stanford CS224N report), which maximizes the loss of Quora's negative
    pairs and does not define the denominator.

    Differs: the loss of a negative pair is bounded, because without a bound the loss has no minimum. ``bound:
    .inf`` gives the loss of the report.

    Args:
        weight: Factor of the mean over negative pairs.
        bound: Loss above which a negative pair has no gradient. None: the loss of a uniform guess among the
            columns of a row, which is log N for N pairs of all ranks, or log(2N - 1) with NTXent. Columns of a
            queue are counted too.

    Raises:
        ValueError: ``weight`` is below 0, or ``bound`` is 0 or less.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.core.batch import Encoded
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots, labels = (Slot("anchor", 0), Slot("positive", 0)), torch.tensor([1.0, 0.0])
        >>> encoded = Encoded(vectors, slots, text_ids=torch.arange(4), target=labels)
        >>> Contrastive(columns=[SignedPairs()])(encoded).total
        tensor(3.3250)
    """

    note = "the loss of negative pairs is maximized"
    rows_have_positives: ClassVar[bool] = False

    def __init__(self, weight: float = 1.0, bound: float | None = None) -> None:
        at_least("SignedPairs.weight", weight, 0, "1 weighs positive and negative pairs alike")
        if bound is not None and not bound > 0:
            raise InvalidValueError(
                f"SignedPairs.bound: expected a number above 0, got {bound}; remove it for the loss of a uniform "
                "guess, or set .inf for no bound"
            )
        self.weight = weight
        self.bound = bound

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Sets ``reduce`` as the function that combines the loss terms of positive and negative pairs."""
        return replace(super().__call__(pairs), reduce=self.reduce)

    def reduce(self, pairs: RowsAndColumns, blocks: Sequence[Comparison]) -> Terms:
        """Returns the mean loss of positive pairs minus the weighted mean loss of negative pairs.

        With ``reduction: sum`` it is the difference of sums. The result is already divided by the counts.

        Args:
            pairs: Rows and columns.
            blocks: Blocks that the loss compares.
        """
        loss, n, count = pairs.loss, len(pairs.rows.anchor), len(pairs.all_examples.anchor)
        compared = count + (count - 1) * len(loss.column_kinds)
        further = 0 if pairs.extra_columns is None else len(pairs.extra_columns.ids)
        signed_blocks, guesses, sides = [], [], 0
        for block in blocks:
            guesses.append(block.rows.new_full((len(block.rows),), math.log(compared + further)))
            further = 0  # further columns are in the first block
            block_sides = len(block.rows) // max(n, 1)
            masks = {
                name: _limit_to_own_text(rule, is_positive=pairs.local_is_positive.repeat(block_sides))
                for name, rule in block.masks.items()
            }
            signed_blocks.append(replace(block, masks=masks))
            sides += block_sides
        terms, positive = loss.compare(signed_blocks), pairs.local_is_positive.repeat(sides)
        bounded = terms.clamp(max=torch.cat(guesses)) if self.bound is None else terms.clamp(max=self.bound)
        positive_sum = terms.masked_fill(~positive, 0.0).sum()
        negative_sum = bounded.masked_fill(positive, 0.0).sum()
        assert pairs.is_positive is not None
        rows = [(sides * mask.sum()).clamp(min=1) for mask in (pairs.is_positive, ~pairs.is_positive)]
        total = reduce_terms(positive_sum, rows[0], loss.reduction)
        total = total - self.weight * reduce_terms(negative_sum, rows[1], loss.reduction)
        return Terms(total=total, count=len(terms), reduction="sum")


def _limit_to_own_text(rule: Rule, is_positive: Tensor) -> Rule:
    """Returns a rule that, for rows of negative pairs, selects only columns with the id of the row's own text.

    Args:
        rule: Rule of masked columns.
        is_positive: True for rows of positive pairs, (R,).
    """
    if not isinstance(rule, SameId):
        return rule
    keeps_ids = is_positive.reshape(-1, *[1] * (rule.rows.ndim - 1))
    return SameId(torch.where(keeps_ids, rule.rows, rule.rows[:, :1]), rule.columns)


def _indices_of(ids: Tensor, among: Tensor) -> Tensor:
    """Returns the indices of each id in a list, (R, K) for at most K indices, -1 where an id has fewer.

    Example:
        >>> _indices_of(torch.tensor([7, 8, 9]), among=torch.tensor([9, 7, 9]))
        tensor([[ 1, -1],
                [-1, -1],
                [ 0,  2]])
    """
    sorted_ids, order = among.sort(stable=True)
    first = torch.searchsorted(sorted_ids, ids)
    counts = torch.searchsorted(sorted_ids, ids, right=True) - first
    most = int(counts.max()) if len(ids) else 0
    nth = torch.arange(most, device=ids.device)
    indices = (first.unsqueeze(1) + nth).clamp(max=max(len(order) - 1, 0))
    return torch.where(nth < counts.unsqueeze(1), order[indices], -1)
