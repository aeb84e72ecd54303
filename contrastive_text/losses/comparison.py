"""Records of the vectors that a loss compares, with the rules that mask columns or mark positives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.losses.rules import NO_ID, GuideMask, OtherId, Rule, SameId

Joined = Literal["mean", "sum"]
Effect = Literal["mask", "mask_others", "mean", "sum"]

MASKED_ID = -2
"""Id of a column that is masked for every row, such as a missing hard negative."""

_FEW_ENTRIES = 2**16
"""Largest number of matrix entries for which a boolean mask is as fast as a list of masked entries."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Block of rows and the columns that they are compared with: the argument of ``Loss.terms``.

    Args:
        rows: Vectors of the rows, (R, D).
        columns: Vectors of the columns, (C, D).
        target: Column of each row's positive, (R,); -1 for none.
        masks: Rules of masked columns, by name. A target is never masked. ``texts`` masks the row's own text and
            duplicates of the row or of its target. ``siblings`` masks other positives of the same query.
            ``missing`` masks missing hard negatives. ``guide`` masks columns that a guide finds too similar, and
            ``own`` columns that the trained model does. ``batch`` masks texts of other examples.
        positives: Rule of further positives; None if the target is the only positive.
        joined: How the target and further positives are combined: the ``mean`` of their log-probabilities, or
            the logarithm of the ``sum`` of their probabilities.
        own_negatives: Columns of each row's own hard negatives, (R, K), or None; -1 where a row has fewer.
        reverse: Block of the positives of the rows and the columns that they add to the same softmax
            (``InfoNCE.directions``).
        weight: Factor of each row's similarity to its target (``DCLW``), (R,); None for 1.

    Example:
        >>> texts = SameId(rows=torch.tensor([[0, 2], [1, 3]]), columns=torch.tensor([2, 3, 0]))
        >>> block = Comparison(torch.eye(2), torch.ones(3, 2), torch.tensor([0, 1]), masks={"texts": texts})
        >>> block.mask_matrix()
        tensor([[False, False,  True],
                [False, False, False]])
    """

    rows: Tensor
    columns: Tensor
    target: Tensor
    masks: Mapping[str, Rule] = field(default_factory=dict)
    positives: SameId | None = None
    joined: Joined = "mean"
    own_negatives: Tensor | None = None
    reverse: Comparison | None = None
    weight: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and number of columns of each row including the columns of ``reverse``."""
        return len(self.rows), len(self.columns) + (0 if self.reverse is None else len(self.reverse.columns))

    def mask_matrix(self) -> Tensor:
        """Returns a boolean matrix, True where a column is masked for a row, (R, C)."""
        mask = torch.zeros(len(self.rows), len(self.columns), dtype=torch.bool, device=self.columns.device)
        for rule in self.masks.values():
            selected = rule.mask()
            if isinstance(rule, GuideMask) and self.positives is not None:
                selected = selected & ~self.positives.mask()
            mask |= selected
        if not mask.numel():
            return mask
        targets = self.target.clamp(min=0).unsqueeze(1)
        return mask.scatter_(1, targets, mask.gather(1, targets) & (self.target < 0).unsqueeze(1))

    def positive_columns(self) -> Tensor:
        """Returns a boolean matrix of the target and further positives of each row, masked or not, (R, C)."""
        positives = torch.zeros(len(self.rows), len(self.columns), dtype=torch.bool, device=self.columns.device)
        if self.positives is not None:
            positives = self.positives.mask()
        return positives.scatter_(1, self.target.unsqueeze(1), True)

    def masked_indices(self, most: int) -> tuple[Tensor, Tensor] | None:
        """Returns the row and column indices of the masked matrix entries, (P,) and (P,).

        The result is None if there are over ``most`` entries, or if a rule makes a list too costly.
        """
        indices = []
        for rule in self.masks.values():
            # A list for a rule of cosines would need all cosines, and a rule of other ids selects most columns.
            entries = rule.indices(most) if isinstance(rule, SameId) else None
            if entries is None:
                return None
            most -= len(entries[0])
            indices.append(torch.stack(entries))
        rows, columns = torch.cat(indices, dim=1)
        is_masked = columns != self.target[rows]
        return rows[is_masked], columns[is_masked]

    def mask_logits(self, logits: Tensor) -> Tensor:
        """Sets the logits of masked columns to -inf, in place, and returns the logits, (R, C).

        On a CPU a large matrix is masked by a list of entries. Comparing the ids of 2,048 rows and columns takes
        8 ms, and listing their 2,048 masked entries 0.4 ms (two cores). With 256 rows both take 0.1 ms. On
        another device a list would make the host wait.
        """
        if not self.masks:
            return logits
        entries = None
        if logits.device.type == "cpu" and logits.numel() > _FEW_ENTRIES:
            entries = self.masked_indices(most=logits.numel() // 16)
        if entries is None:
            return logits.masked_fill_(self.mask_matrix(), -torch.inf)
        return logits.index_put_(entries, logits.new_tensor(-torch.inf))

    def map(self, change: Callable[[Tensor], Tensor]) -> Comparison:
        """Returns the comparison with a function applied to its vectors."""
        rows = change(self.rows)
        columns = rows if self.columns is self.rows else change(self.columns)
        reverse = None if self.reverse is None else self.reverse.map(change)
        return replace(self, rows=rows, columns=columns, reverse=reverse)

    def select(self, rows: slice, columns: slice = slice(None)) -> Comparison:
        """Returns the comparison of a range of rows with a range of columns.

        If ``own_negatives`` is set, the range must have all columns.
        """
        start, stop, _ = columns.indices(len(self.columns))
        target = self.target[rows]
        return replace(
            self,
            rows=self.rows[rows],
            columns=self.columns[columns],
            target=torch.where((target >= start) & (target < stop), target - start, -1),
            masks={name: rule.part(rows, columns) for name, rule in self.masks.items()},
            own_negatives=None if self.own_negatives is None else self.own_negatives[rows],
            positives=None if self.positives is None else self.positives.part(rows, columns),
            reverse=None if self.reverse is None else self.reverse.select(rows),
            weight=None if self.weight is None else self.weight[rows],
        )


@dataclass(frozen=True, slots=True)
class ComparedTexts:
    """Vectors of M texts, with the ids and guide vectors from which rules are built.

    Args:
        vectors: Vectors of the texts, (M, D).
        ids: Id of each column, (M,) or (M, kinds). For rows: the id of the row's text and the id of its target's
            text, (M, 2) or (M, 2, kinds).
        groups: Name of a rule -> ids that the rule compares. For columns (M,), ``NO_ID`` for none; for rows
            (M, ids).
        guide: A guide's unit vectors of the texts, (M, Dg); None without a guide.
        bound: Largest cosine of each row with a negative, by the guide, or without a guide by the vectors
            themselves, (M,). None masks no column.
        own_negatives: Indices of the texts that are each local example's own hard negatives, (n, K), -1 where
            an example has fewer; None if no text is a hard negative.
    """

    vectors: Tensor
    ids: Tensor
    groups: Mapping[str, Tensor] = field(default_factory=dict)
    guide: Tensor | None = None
    bound: Tensor | None = None
    own_negatives: Tensor | None = None

    @property
    def first_ids(self) -> Tensor:
        """Ids of the first kind, which are the ids of the texts before any view, (M,)."""
        return self.ids if self.ids.ndim == 1 else self.ids[:, 0]

    @classmethod
    def join(cls, parts: Sequence[ComparedTexts]) -> ComparedTexts:
        """Concatenates sets of texts, with vectors and ids. A set without a group gets ``NO_ID`` for it."""
        groups = {
            name: torch.cat([part.groups.get(name, torch.full_like(part.first_ids, NO_ID)) for part in parts])
            for name in dict.fromkeys(name for part in parts for name in part.groups)
        }
        negatives, offset = [], 0
        for part in parts:
            if (own := part.own_negatives) is not None:
                negatives.append(torch.where(own < 0, own, offset + own))
            offset += len(part.ids)
        return cls(
            vectors=torch.cat([part.vectors for part in parts]),
            ids=torch.cat([part.ids for part in parts]),
            groups=groups,
            guide=_joined([part.guide for part in parts]),
            bound=_joined([part.bound for part in parts]),
            own_negatives=torch.cat(negatives, dim=1) if negatives else None,
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> ComparedTexts:
        """Returns the texts with a function applied to every tensor, and without ``own_negatives``."""
        groups = {name: change(ids) for name, ids in self.groups.items()}
        guide, bound = (None if tensor is None else change(tensor) for tensor in (self.guide, self.bound))
        return ComparedTexts(change(self.vectors), change(self.ids), groups, guide, bound)


@dataclass(frozen=True, slots=True)
class Group:
    """Ids of N examples and their effect: a rule selects the columns whose id is among the ids of a row.

    Args:
        rows: M ids of each anchor as a row, (N, M). If the positive is the row, their order is reversed, so that
            the first id is the id of the row's own text.
        anchor: Id of each anchor as a column, (N,), ``NO_ID`` for none.
        positive: Id of each positive as a column, (N,).
        negative: Ids of hard negatives, (N, K); None for none.
        effect: Effect of the rule on a column. ``mask`` masks the column. ``mask_others`` masks columns with
            another id instead. ``mean`` and ``sum`` make the column a positive, whose log-probability enters a
            mean or whose probability enters a sum.
        persists: Whether columns keep their ids in later steps (``Queue``).

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
    persists: bool = True

    @property
    def makes_positives(self) -> bool:
        """True if the rule makes columns positives, instead of masking columns."""
        return self.effect in ("mean", "sum")

    @classmethod
    def of(cls, ids: Tensor, effect: Effect, persists: bool = True) -> Self:
        """Returns a group in which anchor and positive have the id of their example, (N,), and negatives none."""
        return cls(ids.unsqueeze(1), ids, ids, effect=effect, persists=persists)

    def map(self, change: Callable[[Tensor], Tensor]) -> Group:
        """Returns the group with a function applied to every tensor."""
        negative = None if self.negative is None else change(self.negative)
        rows, anchor, positive = change(self.rows), change(self.anchor), change(self.positive)
        return replace(self, rows=rows, anchor=anchor, positive=positive, negative=negative)


@dataclass(frozen=True, slots=True)
class ExampleVectors:
    """Vectors and text ids of N examples: anchors, positives and hard negatives. Duplicates have equal ids.

    A text may have ids of several kinds; see ``SameId``.

    Args:
        anchor: Vectors of the anchors, (N, D).
        positive: Vectors of the positives, (N, D).
        negative: Vectors of the hard negatives, (N, K, D), or None.
        anchor_ids: Ids of the anchors, (N,) or (N, kinds).
        positive_ids: Ids of the positives, (N,) or (N, kinds).
        negative_ids: Ids of the hard negatives, (N, K) or (N, K, kinds), or None. ``MASKED_ID`` where an example
            has fewer hard negatives.
        target: Label or class of each example, (N,), or None.
        groups: Name of a rule -> its ids.
        guide: A guide's unit vectors of anchors, positives and hard negatives, (N, Dg), (N, Dg) and (N, K, Dg) or
            None; None without a guide.
        bound: Largest cosine of a row with a negative, for both rows of an example, (N,), by the guide, or
            without a guide by the vectors themselves. None masks no column.
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
    def distinct(cls, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> ExampleVectors:
        """Builds examples whose texts all have different ids, so that a row masks no column but its own text.

        ``negative`` may also have one hard negative for each example, (N, D).

        Raises:
            ValueError: The shapes don't fit together.
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

    def map(self, change: Callable[[Tensor], Tensor]) -> ExampleVectors:
        """Returns the examples with a function applied to every tensor."""

        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        guide = self.guide and (change(self.guide[0]), change(self.guide[1]), changed(self.guide[2]))
        return ExampleVectors(
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

    def sides(self) -> tuple[ComparedTexts, ComparedTexts]:
        """Returns two sets of columns: the anchors and the positives of all examples."""
        anchor, positive, _ = self.guide or (None, None, None)
        anchor_groups = {name: group.anchor for name, group in self.groups.items()}
        positive_groups = {name: group.positive for name, group in self.groups.items()}
        return (
            ComparedTexts(self.anchor, self.anchor_ids, anchor_groups, anchor),
            ComparedTexts(self.positive, self.positive_ids, positive_groups, positive),
        )

    def rows(self) -> tuple[ComparedTexts, ComparedTexts]:
        """Returns the anchors as rows and the positives as rows. Each row's target is its partner in the pair."""
        ids = torch.stack([self.anchor_ids, self.positive_ids], dim=1)
        groups = {name: group.rows for name, group in self.groups.items()}
        flipped = {name: group_ids.flip(1) for name, group_ids in groups.items()}
        anchor, positive, _ = self.guide or (None, None, None)
        return (
            ComparedTexts(self.anchor, ids, groups, anchor, self.bound),
            ComparedTexts(self.positive, ids.flip(1), flipped, positive, self.bound),
        )

    def compare(self, rows: ComparedTexts, columns: ComparedTexts, target: Tensor) -> Comparison:
        """Builds the comparison of rows with columns. Its rules come from their ids and from the guide."""
        masks: dict[str, Rule] = {"texts": SameId(rows.ids, columns.ids)}
        positives, joined = None, None
        if self.negative is not None:
            masks["missing"] = SameId(rows.ids.new_full((len(rows.ids), 1), MASKED_ID), columns.first_ids)
        for name, group in self.groups.items():
            ids = rows.groups[name], columns.groups[name]
            if group.effect == "mask":
                masks[name] = SameId(*ids)
            elif group.effect == "mask_others":
                masks[name] = OtherId(*ids)
            else:
                positives, joined = SameId(*ids), group.effect
        if rows.bound is not None and rows.guide is None:
            row_vectors, column_vectors = (unit_vectors(side.vectors.detach()) for side in (rows, columns))
            masks["own"] = GuideMask(row_vectors, column_vectors, rows.bound)
        elif rows.bound is not None and rows.guide is not None and columns.guide is not None:
            masks["guide"] = GuideMask(rows.guide, columns.guide, rows.bound)
        own = columns.own_negatives
        return Comparison(rows.vectors, columns.vectors, target, masks, positives, joined or "mean", own)

    def columns(
        self, sides: Sequence[ComparedTexts], places: Tensor, further: ComparedTexts | None = None
    ) -> ComparedTexts:
        """Concatenates columns: sides, hard negatives of all examples, and further columns.

        Args:
            sides: Anchors, positives or both, of all examples.
            places: Indices of the local examples among all examples, (n,).
            further: Columns that belong to no example.
        """
        parts = [*sides, self.hard_negatives(places), further]
        return ComparedTexts.join([part for part in parts if part is not None])

    def hard_negatives(self, places: Tensor) -> ComparedTexts | None:
        """Returns the hard negatives of all examples as columns, or None; for ``places`` see ``columns``."""
        if self.negative is None or self.negative_ids is None:
            return None
        k = self.negative.shape[1]
        _, _, guide = self.guide or (None, None, None)
        guide = None if guide is None else guide.flatten(0, 1)
        indices = places.unsqueeze(1) * k + torch.arange(k, device=places.device)
        ids = {name: group.negative for name, group in self.groups.items()}
        groups = {name: negative.flatten() for name, negative in ids.items() if negative is not None}
        vectors, text_ids = self.negative.flatten(0, 1), self.negative_ids.flatten(0, 1)
        return ComparedTexts(vectors, text_ids, groups, guide, own_negatives=indices)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Concatenates a tensor of several sets of texts; returns None if a set lacks the tensor."""
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None
