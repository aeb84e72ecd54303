"""Column parts for labeled pairs: how pairs that do not belong together are used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Target
from contrastive_text.losses import Comparison, reduce_terms
from contrastive_text.losses.comparison import Rule, SameId
from contrastive_text.objectives.columns import ColumnPart, Negatives, Pairs, Setup, Stage
from contrastive_text.objectives.terms import Terms


class PairLabels(ColumnPart):
    """Base class of column parts that use pairs of which some do not belong together (label 0).

    Attributes:
        note: How these pairs are used, for the summary of a run.
    """

    stage: ClassVar[Stage] = "examples"
    note: ClassVar[str] = ""

    @property
    def target(self) -> Target:
        """The label of a pair, 0 or 1."""
        return Classes.of(2, type(self).__name__)

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs, which know what belongs together."""
        assert pairs.every.target is not None
        return replace(pairs, paired=pairs.every.target == 1)

    def check(self, setup: Setup) -> None:
        """Checks that two texts are compared, and that the loss leaves their label to this part."""
        name, loss = type(self).__name__, type(setup.loss).__name__
        if not setup.between.is_pairs:
            raise InvalidValueError(
                f"Contrastive.columns: {name} expects between: texts, got {type(setup.between).__name__}; two "
                "views of a text always belong together, so leave one of the two out"
            )
        if setup.loss.reads_labels:
            raise InvalidValueError(
                f"Contrastive.columns: {name} expects a loss that doesn't compare by classes, got {loss}; use "
                f"NTXent with {name}, or leave it out"
            )
        if not self.rows_have_positives and not setup.loss.signed:
            raise InvalidValueError(
                f"Contrastive.columns: {name} expects a loss whose terms can be maximized, got {loss}; take "
                "NegativesAsHard, or NTXent"
            )

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives with a remark."""
        return replace(negatives, notes=(*negatives.notes, self.note))


class PositivesOnly(PairLabels):
    """Leaves negative pairs out, of rows and of columns.

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

    note: ClassVar[str] = "negative pairs left out"

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the positive pairs alone."""
        return super().__call__(pairs).only_paired()


class NegativesAsHard(PairLabels):
    """Takes the second text of a negative pair as a hard negative of every positive pair.

    It is the own one (``InfoNCE.hard_negative_log_weight``) of a row whose anchor is the text that it was
    paired with. Anchors of negative pairs are no rows and no columns. Like SimCSE's supervised training
    (Gao et al. 2021, https://arxiv.org/abs/2104.08821, section 4), where every anchor has one.

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

    note: ClassVar[str] = "second texts of negative pairs are hard negatives"

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the positive pairs, with the second texts of negative pairs as further columns."""
        pairs = super().__call__(pairs)
        assert pairs.paired is not None
        negative = ~pairs.paired
        _, positives = pairs.every.sides()
        chosen = pairs.only_paired()
        anchors, offset = pairs.texts.sides()[0].first_ids, pairs.offset
        mine = anchors[offset : offset + len(pairs.rows.anchor)][pairs.local_paired]
        columns = positives.map(lambda each: each[negative])
        return chosen.add_columns(replace(columns, own=_places(mine, among=anchors[negative])))


class SignedPairs(PairLabels):
    """Minimises the loss of positive pairs and maximises that of negative ones, up to a bound.

    ``mean over positive pairs of l_i - weight * mean over negative pairs of min(l_i, bound)``

    Every pair is a row, and its second text a column for all rows. Copies of a negative pair's second text
    stay among its columns: nothing says that they belong together. Source: Chen, "Contrastive Learning for
    Generalizable Sentence Embeddings" (Stanford CS224N report), where the loss of Quora's negative pairs is
    maximised; the report leaves the denominator open.

    Differs: without a bound the loss has no minimum; ``bound: .inf`` is the report's.

    Args:
        weight: Factor of the negative pairs' mean.
        bound: Above this the loss of a negative pair is flat; None for that of a guess among the texts that a row
            is compared with: log N of the N pairs of all ranks, for NTXent log(2N - 1), and of the columns that a
            queue holds.

    Raises:
        ValueError: A weight below 0, or a bound of 0 or less.

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

    note: ClassVar[str] = "the loss of negative pairs is maximised"
    rows_have_positives: ClassVar[bool] = False

    def __init__(self, weight: float = 1.0, bound: float | None = None) -> None:
        at_least("SignedPairs.weight", weight, 0, "1 weighs positive and negative pairs alike")
        if bound is not None and not bound > 0:
            raise InvalidValueError(
                f"SignedPairs.bound: expected a number above 0, got {bound}; leave it out for a guess, or give "
                ".inf for none"
            )
        self.weight = weight
        self.bound = bound

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs, whose terms are combined by ``reduce``."""
        return replace(super().__call__(pairs), reduce=self.reduce)

    def reduce(self, pairs: Pairs, blocks: Sequence[Comparison]) -> Terms:
        """Returns the difference of the two means (of sums, under ``sum``), divided by counts already."""
        loss, n, count = pairs.loss, len(pairs.rows.anchor), len(pairs.every.anchor)
        compared = count + (count - 1) * len(loss.others)
        further = 0 if pairs.further is None else len(pairs.further.ids)
        signed, guesses, sides = [], [], 0
        for block in blocks:
            guesses.append(block.rows.new_full((len(block.rows),), math.log(compared + further)))
            further = 0  # further columns are in the first block
            block_sides = len(block.rows) // max(n, 1)
            masks = {
                name: _own_texts(rule, unless=pairs.local_paired.repeat(block_sides))
                for name, rule in block.masks.items()
            }
            signed.append(replace(block, masks=masks))
            sides += block_sides
        terms, positive = loss.compare(signed), pairs.local_paired.repeat(sides)
        bounded = terms.clamp(max=torch.cat(guesses)) if self.bound is None else terms.clamp(max=self.bound)
        pulled = terms.masked_fill(~positive, 0.0).sum()
        pushed = bounded.masked_fill(positive, 0.0).sum()
        assert pairs.paired is not None
        rows = [(sides * each.sum()).clamp(min=1) for each in (pairs.paired, ~pairs.paired)]
        total = reduce_terms(pulled, rows[0], loss.reduction)
        total = total - self.weight * reduce_terms(pushed, rows[1], loss.reduction)
        return Terms(total=total, count=len(terms), reduction="sum")


def _own_texts(rule: Rule, unless: Tensor) -> Rule:
    """Returns a rule that selects by the id of a row's own text alone, unless the row is marked, (R,)."""
    if not isinstance(rule, SameId):
        return rule
    marked = unless.reshape(-1, *[1] * (rule.rows.ndim - 1))
    return SameId(torch.where(marked, rule.rows, rule.rows[:, :1]), rule.columns)


def _places(ids: Tensor, among: Tensor) -> Tensor:
    """Returns for each id its places in a list, (R, most of them), -1 where it has fewer.

    Example:
        >>> _places(torch.tensor([7, 8, 9]), among=torch.tensor([9, 7, 9]))
        tensor([[ 1, -1],
                [-1, -1],
                [ 0,  2]])
    """
    ordered, order = among.sort(stable=True)
    first = torch.searchsorted(ordered, ids)
    counts = torch.searchsorted(ordered, ids, right=True) - first
    most = int(counts.max()) if len(ids) else 0
    nth = torch.arange(most, device=ids.device)
    places = (first.unsqueeze(1) + nth).clamp(max=max(len(order) - 1, 0))
    return torch.where(nth < counts.unsqueeze(1), order[places], -1)
