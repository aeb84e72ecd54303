"""Pairs with a label: what becomes of those that do not belong together."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses import Loss, reduce_terms
from contrastive_text.losses.comparison import Rule, SameId
from contrastive_text.objectives.base import Terms
from contrastive_text.objectives.batch_pairs import BatchPairs


class PairLabels(ABC):
    """Base class of the ways to learn from pairs of which some do not belong together (label 0).

    Attributes:
        note: What becomes of these, for the run's summary.
        takes_queue: Whether it arranges pairs with ``pairs.comparisons``, which adds the columns of a queue.
        takes_targets: Whether all its rows may have several targets: they belong to positive pairs alone.
    """

    note: ClassVar[str] = ""
    takes_queue: ClassVar[bool] = False
    takes_targets: ClassVar[bool] = False

    @abstractmethod
    def terms(self, loss: Loss, pairs: BatchPairs) -> Terms:
        """Returns the terms of this rank's pairs.

        Where one number of rows can't be the divisor of all of them, the total comes divided by counts of
        all ranks already, under the reduction ``sum``.
        """


class PositivesOnly(PairLabels):
    """Leaves negative pairs out, of rows and of columns.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> from contrastive_text.core.types import Encoded, Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots, labels = (Slot("anchor", 0), Slot("positive", 0)), torch.tensor([1.0, 0.0])
        >>> encoded = Encoded(vectors, slots, text_ids=torch.arange(4), target=labels)
        >>> Contrastive(pair_labels=PositivesOnly())(encoded).total
        tensor(0.)
    """

    note: ClassVar[str] = "negative pairs left out"
    takes_queue: ClassVar[bool] = True
    takes_targets: ClassVar[bool] = True

    def terms(self, loss: Loss, pairs: BatchPairs) -> Terms:
        """Returns the loss of the positive pairs alone."""
        return pairs.terms(loss, *pairs.positives())


class NegativesAsHard(PairLabels):
    """Takes the second text of a negative pair as a hard negative of every positive pair.

    It is the own one (``InfoNCE.hard_negative_log_weight``) of a row whose anchor is the text that it was
    paired with. Anchors of negative pairs are no rows and no columns. Like SimCSE's supervised training
    (Gao et al. 2021, https://arxiv.org/abs/2104.08821, section 4), where every anchor has one.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> from contrastive_text.core.types import Encoded, Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots, labels = (Slot("anchor", 0), Slot("positive", 0)), torch.tensor([1.0, 0.0])
        >>> encoded = Encoded(vectors, slots, text_ids=torch.arange(4), target=labels)
        >>> Contrastive(pair_labels=NegativesAsHard())(encoded).total
        tensor(4.0181)
    """

    note: ClassVar[str] = "second texts of negative pairs are hard negatives"
    takes_queue: ClassVar[bool] = True
    takes_targets: ClassVar[bool] = True

    def terms(self, loss: Loss, pairs: BatchPairs) -> Terms:
        """Returns the loss of the positive pairs, with the negative pairs' second texts as columns."""
        negative = ~pairs.positive
        _, positives = pairs.every.sides(by_class=False)
        further = replace(
            replace(positives, groups=None).map(lambda each: each[negative]),
            own=_places(
                pairs.texts[pairs.offset : pairs.offset + len(pairs.local.anchor)][pairs.local_positive],
                among=pairs.texts[negative],
            ),
        )
        return pairs.terms(loss, *pairs.positives(), further=further)


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
        >>> from contrastive_text.core.types import Encoded, Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots, labels = (Slot("anchor", 0), Slot("positive", 0)), torch.tensor([1.0, 0.0])
        >>> encoded = Encoded(vectors, slots, text_ids=torch.arange(4), target=labels)
        >>> Contrastive(pair_labels=SignedPairs())(encoded).total
        tensor(3.3250)
    """

    note: ClassVar[str] = "the loss of negative pairs is maximised"
    takes_queue: ClassVar[bool] = True

    def __init__(self, weight: float = 1.0, bound: float | None = None) -> None:
        if not 0 <= weight < math.inf:
            raise InvalidValueError(
                f"SignedPairs.weight: expected a finite number of 0 or more, got {weight}; 1 weighs positive "
                "and negative pairs alike"
            )
        if bound is not None and not bound > 0:
            raise InvalidValueError(
                f"SignedPairs.bound: expected a number above 0, got {bound}; leave it out for a guess, or give "
                ".inf for none"
            )
        self.weight = weight
        self.bound = bound

    def terms(self, loss: Loss, pairs: BatchPairs) -> Terms:
        """Returns the difference of the two means (of sums, under ``sum``), divided already."""
        n, count = len(pairs.local.anchor), len(pairs.every.anchor)
        compared = count + (count - 1) * len(loss.others)
        past = 0 if pairs.queue is None else pairs.queue.filled
        blocks, guesses, sides = [], [], 0
        for block in pairs.comparisons(loss, pairs.local, pairs.every, pairs.offset):
            guesses.append(block.rows.new_full((len(block.rows),), math.log(compared + past)))
            past = 0  # only the first block's columns have the queue's after them
            block_sides = len(block.rows) // max(n, 1)
            masks = {
                name: _own_texts(rule, unless=pairs.local_positive.repeat(block_sides))
                for name, rule in block.masks.items()
            }
            blocks.append(replace(block, masks=masks))
            sides += block_sides
        terms, positive = loss.compare(blocks), pairs.local_positive.repeat(sides)
        bounded = terms.clamp(max=torch.cat(guesses)) if self.bound is None else terms.clamp(max=self.bound)
        pulled = terms.masked_fill(~positive, 0.0).sum()
        pushed = bounded.masked_fill(positive, 0.0).sum()
        rows = [(sides * each.sum()).clamp(min=1) for each in (pairs.positive, ~pairs.positive)]
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
