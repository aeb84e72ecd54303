"""Rows, columns, and rules by integer ids: which columns are masked for a row, and which are positives.

Rules take O(rows + columns) memory. They become a mask where a loss looks at the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import full_precision

Joined = Literal["mean", "sum"]
Effect = Literal["mask", "mean", "sum"]

HIDDEN_ID = -2
"""Id of a column that is masked for every row, such as a hard negative that a row lacks.

A hash of a text equals it, as it equals that of another text, once in 2**64 pairs."""

NO_ID = -1
"""Id of no text and of no class: no rule applies."""

_ROUNDING = 16
"""Units in the last place by which a cosine of unit vectors may be off."""

_FEW_ENTRIES = 2**16
"""Entries of a matrix up to which a mask is as fast as a list of masked places."""


@dataclass(frozen=True, slots=True)
class SameId:
    """Rule that selects a column for a row if the column's id is among the row's ids.

    Texts may have ids of several kinds, such as an id of the text before a view and an id after it. Texts are
    equal if one kind agrees.

    Args:
        rows: M ids of each row, (R, M), or (R, M, kinds).
        columns: Id of each column, (C,), or (C, kinds).

    Example:
        >>> SameId(rows=torch.tensor([[7, 1], [7, 2]]), columns=torch.tensor([1, 2, 3])).mask()
        tensor([[ True, False, False],
                [False,  True, False]])
    """

    rows: Tensor
    columns: Tensor

    def _kinds(self) -> list[tuple[Tensor, Tensor]]:
        if self.columns.ndim == 1:
            return [(self.rows, self.columns)]
        return list(zip(self.rows.unbind(2), self.columns.unbind(1), strict=True))

    def mask(self) -> Tensor:
        """Returns True where a column is selected for a row, (R, C)."""
        found = torch.zeros((), dtype=torch.bool, device=self.columns.device)
        for rows, columns in self._kinds():
            for ids in rows.unbind(1):
                found = found | (ids.unsqueeze(1) == columns)
        return found

    def places(self, most: int) -> tuple[Tensor, Tensor] | None:
        """Returns the rows and the columns of the selected places, in O((R + C) log C) time.

        Args:
            most: Largest number of places. If there are more, the result is None and no memory is taken.

        Returns:
            (P,) and (P,). A place may occur twice.
        """
        listed = []
        for rows, columns in self._kinds():
            ordered, order = columns.sort()
            first = torch.searchsorted(ordered, rows.contiguous())
            counts = (torch.searchsorted(ordered, rows.contiguous(), right=True) - first).flatten()
            found = int(counts.sum())
            most -= found
            if most < 0:
                return None
            before = counts.cumsum(0) - counts
            which = torch.repeat_interleave(counts, output_size=found)
            places = torch.arange(found, device=which.device) + (first.flatten() - before)[which]
            listed.append(torch.stack([which // rows.shape[1], order[places]]))
        down, across = torch.cat(listed, dim=1)
        return down, across

    def part(self, rows: slice, columns: slice = slice(None)) -> SameId:
        """Returns the rule for some rows and some columns."""
        return SameId(self.rows[rows], self.columns[columns])


@dataclass(frozen=True, slots=True)
class TooNear:
    """Rule that selects a column if a guide's cosine with the row is above a bound (``FalseNegatives``).

    A cosine that equals the bound, or that only rounding puts above it, is not selected. The selection is
    therefore the same for any part of the rows and on any number of ranks. The rule never masks a positive.

    Args:
        rows: The guide's unit vectors of the rows, (R, Dg).
        columns: The guide's unit vectors of the columns, (C, Dg).
        bound: Largest cosine of each row, (R,).

    Example:
        >>> TooNear(torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]), bound=torch.tensor([0.7, 0.8])).mask()
        tensor([[ True, False],
                [False, False]])
    """

    rows: Tensor
    columns: Tensor
    bound: Tensor

    def mask(self) -> Tensor:
        """Returns True where a column is selected for a row, (R, C)."""
        with full_precision(self.rows.device):
            cosines = self.rows @ self.columns.T
        return cosines > (self.bound + _ROUNDING * torch.finfo(cosines.dtype).eps).unsqueeze(1)

    def part(self, rows: slice, columns: slice = slice(None)) -> TooNear:
        """Returns the rule for some rows and some columns."""
        return TooNear(self.rows[rows], self.columns[columns], self.bound[rows])


Rule = SameId | TooNear


@dataclass(frozen=True, slots=True)
class Comparison:
    """A block of rows and the columns that they are compared with: the record that every loss reads.

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column of each row's positive, (R,); -1 for none.
        masks: Rules of masked columns, by name. A target is never masked. ``texts`` masks the row's own text and
            texts equal to it or to its target, ``siblings`` other positives of the same query, ``missing`` hard
            negatives that rows lack, ``guide`` columns that a guide finds too near, ``batch`` positives of other
            examples.
        positives: Rule of further positives; None if the target is the only positive.
        joined: How the target and further positives are combined: the ``mean`` of their log-probabilities, or
            the logarithm of the ``sum`` of their probabilities.
        own: Columns of each row's own hard negatives, (R, K), -1 where a row has fewer; None without any.
        reverse: The rows' partners and the columns that they add to the same softmax (``InfoNCE.directions``).
        weight: Factor of each row's similarity to its target (``DCLW``), (R,); None for 1.

    Example:
        >>> texts = SameId(rows=torch.tensor([[0, 2], [1, 3]]), columns=torch.tensor([2, 3, 0]))
        >>> block = Comparison(torch.eye(2), torch.ones(3, 2), torch.tensor([0, 1]), masks={"texts": texts})
        >>> block.masked()
        tensor([[False, False,  True],
                [False, False, False]])
    """

    rows: Tensor
    columns: Tensor
    target: Tensor
    masks: Mapping[str, Rule] = field(default_factory=dict)
    positives: SameId | None = None
    joined: Joined = "mean"
    own: Tensor | None = None
    reverse: Comparison | None = None
    weight: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and number of columns of each row, those of ``reverse`` included."""
        return len(self.rows), len(self.columns) + (0 if self.reverse is None else len(self.reverse.columns))

    def masked(self) -> Tensor:
        """Returns True where a column is masked, (R, C)."""
        found = torch.zeros(len(self.rows), len(self.columns), dtype=torch.bool, device=self.columns.device)
        for rule in self.masks.values():
            selected = rule.mask()
            if isinstance(rule, TooNear) and self.positives is not None:
                selected = selected & ~self.positives.mask()
            found |= selected
        if not found.numel():
            return found
        places = self.target.clamp(min=0).unsqueeze(1)
        return found.scatter_(1, places, found.gather(1, places) & (self.target < 0).unsqueeze(1))

    def positive_columns(self) -> Tensor:
        """Returns True where a column is a row's target or a further positive, masked or not, (R, C)."""
        found = torch.zeros(len(self.rows), len(self.columns), dtype=torch.bool, device=self.columns.device)
        if self.positives is not None:
            found = self.positives.mask()
        return found.scatter_(1, self.target.unsqueeze(1), True)

    def places(self, most: int) -> tuple[Tensor, Tensor] | None:
        """Returns the rows and the columns of masked places; None if there are more than ``most``, or may be."""
        listed = []
        for rule in self.masks.values():
            found = None if isinstance(rule, TooNear) else rule.places(most)  # of cosines all would be computed
            if found is None:
                return None
            most -= len(found[0])
            listed.append(torch.stack(found))
        rows, columns = torch.cat(listed, dim=1)
        kept = columns != self.target[rows]
        return rows[kept], columns[kept]

    def mask(self, logits: Tensor) -> Tensor:
        """Returns the logits, (R, C), with -inf at masked columns, in place.

        Comparing the ids of 2,048 rows and columns takes 8 ms, finding their 2,048 places 0.4 ms (two cores). Of
        256 both take 0.1 ms. On another device the host would wait for a list of places.
        """
        if not self.masks:
            return logits
        places = None
        if logits.device.type == "cpu" and logits.numel() > _FEW_ENTRIES:
            places = self.places(most=logits.numel() // 16)
        if places is None:
            return logits.masked_fill_(self.masked(), -torch.inf)
        return logits.index_put_(places, logits.new_tensor(-torch.inf))

    def map(self, change: Callable[[Tensor], Tensor]) -> Comparison:
        """Returns the comparison with changed vectors."""
        rows = change(self.rows)
        columns = rows if self.columns is self.rows else change(self.columns)
        reverse = None if self.reverse is None else self.reverse.map(change)
        return replace(self, rows=rows, columns=columns, reverse=reverse)

    def part(self, rows: slice, columns: slice = slice(None)) -> Comparison:
        """Returns the comparison of some rows with all columns, or with some; ``own`` needs all."""
        start, stop, _ = columns.indices(len(self.columns))
        target = self.target[rows]
        return replace(
            self,
            rows=self.rows[rows],
            columns=self.columns[columns],
            target=torch.where((target >= start) & (target < stop), target - start, -1),
            masks={name: rule.part(rows, columns) for name, rule in self.masks.items()},
            own=None if self.own is None else self.own[rows],
            positives=None if self.positives is None else self.positives.part(rows, columns),
            reverse=None if self.reverse is None else self.reverse.part(rows),
            weight=None if self.weight is None else self.weight[rows],
        )


@dataclass(frozen=True, slots=True)
class Texts:
    """Vectors of texts and the facts that rules are built from.

    Args:
        vectors: (M, D).
        ids: Id of each text, (M,) or (M, kinds). Of rows the ids of their own and of their target's text, (M, 2)
            or (M, 2, kinds).
        groups: Name of a rule -> ids that it compares: of columns (M,), ``NO_ID`` for none, of rows (M, ids).
        guide: A guide's unit vectors of the texts, (M, Dg); None without a guide.
        bound: Largest cosine of a negative by the guide, of each row, (M,); None without a guide.
        own: Which of the texts are each local example's own hard negatives, (n, K), -1 where it has fewer; None
            if no text is.
    """

    vectors: Tensor
    ids: Tensor
    groups: Mapping[str, Tensor] = field(default_factory=dict)
    guide: Tensor | None = None
    bound: Tensor | None = None
    own: Tensor | None = None

    @property
    def first_ids(self) -> Tensor:
        """Ids of the first kind, of texts before any view, (M,)."""
        return self.ids if self.ids.ndim == 1 else self.ids[:, 0]

    @classmethod
    def join(cls, parts: Sequence[Texts]) -> Texts:
        """Returns the texts of all parts, one after another. A part without a group has ``NO_ID`` there."""
        groups = {
            name: torch.cat([part.groups.get(name, torch.full_like(part.first_ids, NO_ID)) for part in parts])
            for name in dict.fromkeys(name for part in parts for name in part.groups)
        }
        own, before = [], 0
        for part in parts:
            if part.own is not None:
                own.append(torch.where(part.own < 0, part.own, before + part.own))
            before += len(part.ids)
        return cls(
            vectors=torch.cat([part.vectors for part in parts]),
            ids=torch.cat([part.ids for part in parts]),
            groups=groups,
            guide=_joined([part.guide for part in parts]),
            bound=_joined([part.bound for part in parts]),
            own=torch.cat(own, dim=1) if own else None,
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> Texts:
        """Returns the texts with every tensor changed; ``own`` is dropped."""
        groups = {name: change(ids) for name, ids in self.groups.items()}
        guide, bound = (None if each is None else change(each) for each in (self.guide, self.bound))
        return Texts(change(self.vectors), change(self.ids), groups, guide, bound)


@dataclass(frozen=True, slots=True)
class Group:
    """Ids of N examples, by which a rule selects columns: a column whose id is among the ids of the row.

    Args:
        rows: M ids of each anchor as a row, (N, M). A positive as a row has them in reverse order, so that the
            first id is that of the row's own text.
        anchor: Id of each anchor as a column, (N,), ``NO_ID`` for none.
        positive: Id of each positive as a column, (N,).
        negative: Ids of hard negatives, (N, K); None for none.
        effect: What the rule does with a column: ``mask``, or a positive whose log-probability enters a ``mean``,
            or whose probability enters a ``sum``.
        lasts: Whether columns keep their ids in later steps (``Queue``).

    Example:
        >>> labels = torch.tensor([0, 1, 0])
        >>> Group.of(labels, effect="mean").rows.shape
        torch.Size([3, 1])
    """

    rows: Tensor
    anchor: Tensor
    positive: Tensor
    negative: Tensor | None = None
    effect: Effect = "mask"
    lasts: bool = True

    @classmethod
    def of(cls, ids: Tensor, effect: Effect, lasts: bool = True) -> Self:
        """Returns the group in which all texts of an example have its id, (N,), but for hard negatives."""
        return cls(ids.unsqueeze(1), ids, ids, effect=effect, lasts=lasts)

    def map(self, change: Callable[[Tensor], Tensor]) -> Group:
        """Returns the group with every tensor changed."""
        negative = None if self.negative is None else change(self.negative)
        rows, anchor, positive = change(self.rows), change(self.anchor), change(self.positive)
        return replace(self, rows=rows, anchor=anchor, positive=positive, negative=negative)


@dataclass(frozen=True, slots=True)
class Triples:
    """Vectors of N examples with an id for every text, or an id of each kind. Equal ids mark equal texts.

    Args:
        anchor: (N, D).
        positive: (N, D).
        negative: (N, K, D), or None.
        anchor_ids: (N,), or (N, kinds).
        positive_ids: (N,), or (N, kinds).
        negative_ids: (N, K), or (N, K, kinds), or None; ``HIDDEN_ID`` where an example has fewer hard negatives.
        target: Label or class of each example, (N,), or None.
        groups: Name of a rule -> its ids.
        guide: A guide's unit vectors of anchors, positives and hard negatives, (N, Dg), (N, Dg) and (N, K, Dg) or
            None; None without a guide.
        bound: Largest cosine of a negative by the guide, for both rows of an example, (N,); None if no column is
            masked by it.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None
    anchor_ids: Tensor
    positive_ids: Tensor
    negative_ids: Tensor | None
    target: Tensor | None = None
    groups: Mapping[str, Group] = field(default_factory=dict)
    guide: tuple[Tensor, Tensor, Tensor | None] | None = None
    bound: Tensor | None = None

    @classmethod
    def distinct(cls, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Triples:
        """Returns examples whose texts all have different ids, so that a row is masked from itself alone.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: (N, D), (N, K, D) or None.

        Raises:
            ValueError: Shapes that don't belong together.
        """
        if anchor.ndim != 2 or anchor.shape != positive.shape:
            raise InvalidValueError(
                "loss: expected anchor and positive of one shape (N, D), got "
                f"{tuple(anchor.shape)} and {tuple(positive.shape)}"
            )
        n = len(anchor)
        ids = torch.arange(2 * n, device=anchor.device)
        if negative is None:
            return cls(anchor, positive, None, ids[:n], ids[n:], None)
        negative = negative.unsqueeze(1) if negative.ndim == 2 else negative
        if negative.ndim != 3 or negative.shape[0] != n or negative.shape[2] != anchor.shape[1]:
            raise InvalidValueError(
                "loss: expected hard negatives of shape (N, D) or (N, K, D) with N, D = "
                f"{tuple(anchor.shape)}, got {tuple(negative.shape)}"
            )
        negative_ids = 2 * n + torch.arange(n * negative.shape[1], device=anchor.device)
        return cls(anchor, positive, negative, ids[:n], ids[n:], negative_ids.reshape(n, -1))

    def map(self, change: Callable[[Tensor], Tensor]) -> Triples:
        """Returns the triples with every tensor changed."""

        def changed(each: Tensor | None) -> Tensor | None:
            return None if each is None else change(each)

        guide = self.guide and (change(self.guide[0]), change(self.guide[1]), changed(self.guide[2]))
        return Triples(
            anchor=change(self.anchor),
            positive=change(self.positive),
            negative=changed(self.negative),
            anchor_ids=change(self.anchor_ids),
            positive_ids=change(self.positive_ids),
            negative_ids=changed(self.negative_ids),
            target=changed(self.target),
            groups={name: group.map(change) for name, group in self.groups.items()},
            guide=guide,
            bound=changed(self.bound),
        )

    def sides(self) -> tuple[Texts, Texts]:
        """Returns anchors and positives as columns."""
        anchor, positive, _ = self.guide or (None, None, None)
        of_anchors = {name: each.anchor for name, each in self.groups.items()}
        of_positives = {name: each.positive for name, each in self.groups.items()}
        return (
            Texts(self.anchor, self.anchor_ids, of_anchors, anchor),
            Texts(self.positive, self.positive_ids, of_positives, positive),
        )

    def rows(self) -> tuple[Texts, Texts]:
        """Returns anchors as rows whose targets are positives, and positives whose targets are anchors."""
        ids = torch.stack([self.anchor_ids, self.positive_ids], dim=1)
        groups = {name: each.rows for name, each in self.groups.items()}
        flipped = {name: each.flip(1) for name, each in groups.items()}
        anchor, positive, _ = self.guide or (None, None, None)
        return (
            Texts(self.anchor, ids, groups, anchor, self.bound),
            Texts(self.positive, ids.flip(1), flipped, positive, self.bound),
        )

    def compare(self, rows: Texts, columns: Texts, target: Tensor) -> Comparison:
        """Returns rows and columns as a comparison, with the rules that their ids and the guide give.

        Args:
            rows: R rows.
            columns: C columns.
            target: Column of each row's positive, (R,).
        """
        masks: dict[str, Rule] = {"texts": SameId(rows.ids, columns.ids)}
        positives, joined = None, None
        if self.negative is not None:
            masks["missing"] = SameId(rows.ids.new_full((len(rows.ids), 1), HIDDEN_ID), columns.first_ids)
        for name, group in self.groups.items():
            rule = SameId(rows.groups[name], columns.groups[name])
            if group.effect == "mask":
                masks[name] = rule
            else:
                positives, joined = rule, group.effect
        if rows.guide is not None and rows.bound is not None and columns.guide is not None:
            masks["guide"] = TooNear(rows.guide, columns.guide, rows.bound)
        return Comparison(
            rows.vectors, columns.vectors, target, masks, positives, joined or "mean", own=columns.own
        )

    def columns(self, sides: Sequence[Texts], places: Tensor, further: Texts | None = None) -> Texts:
        """Returns sides, then the hard negatives of all examples, then further columns.

        Args:
            sides: Sides of all examples.
            places: Places of the local examples, (n,).
            further: Columns that belong to no example.
        """
        parts = [*sides, self.hard_negatives(places), further]
        return Texts.join([part for part in parts if part is not None])

    def hard_negatives(self, places: Tensor) -> Texts | None:
        """Returns the hard negatives of all examples; None without any.

        Args:
            places: Places of the local examples, (n,).
        """
        if self.negative is None or self.negative_ids is None:
            return None
        k = self.negative.shape[1]
        _, _, guide = self.guide or (None, None, None)
        guide = None if guide is None else guide.flatten(0, 1)
        own = places.unsqueeze(1) * k + torch.arange(k, device=places.device)
        groups = {
            name: each.negative.flatten() for name, each in self.groups.items() if each.negative is not None
        }
        return Texts(self.negative.flatten(0, 1), self.negative_ids.flatten(0, 1), groups, guide, own=own)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Returns a fact of all parts, one after another; None unless all parts have it."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None
