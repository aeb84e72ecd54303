"""Blocks of rows and columns, which are what losses see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrastive_text.losses.relations import HIDDEN_ID, NO_ID, Alike, Forbid


@dataclass(frozen=True, slots=True)
class Columns:
    """Texts that rows are held against.

    Args:
        vectors: (C, D).
        ids: (C,), or (C, kinds).
        groups: Class, or id of the partner's text, of each, (C,), ``NO_ID`` for none; None where none has one.
        guide: Unit vectors that a guide has of the texts, (C, Dg); None without a guide.
    """

    vectors: Tensor
    ids: Tensor
    groups: Tensor | None = None
    guide: Tensor | None = None

    @property
    def texts(self) -> Tensor:
        """Ids of the first kind, of the texts before any view, (C,)."""
        return self.ids if self.ids.ndim == 1 else self.ids[:, 0]

    @classmethod
    def join(cls, parts: Sequence[Columns]) -> Columns:
        """Returns the columns of all parts, one after another; all have groups where one has."""
        groups = None
        if any(part.groups is not None for part in parts):
            none = parts[0].ids.new_full
            each = [none((len(part.ids),), NO_ID) if part.groups is None else part.groups for part in parts]
            groups = torch.cat(each)
        vectors, ids = (
            torch.cat(each) for each in zip(*((part.vectors, part.ids) for part in parts), strict=True)
        )
        return cls(vectors, ids, groups, _joined([part.guide for part in parts]))

    def map(self, change: Callable[[Tensor], Tensor]) -> Columns:
        """Returns the columns with every tensor changed in the same way."""
        groups, guide = (None if each is None else change(each) for each in (self.groups, self.guide))
        return Columns(change(self.vectors), change(self.ids), groups, guide)


@dataclass(frozen=True, slots=True)
class Rows:
    """Texts that look for their targets.

    Args:
        vectors: (R, D).
        ids: Of each row's own text, then of its target, (R, 2), or (R, 2, kinds).
        guide: Unit vectors that a guide has of their own texts, (R, Dg); None without a guide.
        bound: The guide's cosine above which a column is no negative of a row, (R,).
    """

    vectors: Tensor
    ids: Tensor
    guide: Tensor | None = None
    bound: Tensor | None = None

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """Returns the rows of all parts, one after another."""
        vectors, ids = (
            torch.cat(each) for each in zip(*((part.vectors, part.ids) for part in parts), strict=True)
        )
        return cls(vectors, ids, _joined([part.guide for part in parts]), _joined([part.bound for part in parts]))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One block of rows held against columns.

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,).
        forbid: Columns that rows must not see.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer; or None.
        alike: Columns that rows are pulled to too; None for the targets alone.
        reverse: The rows' partners, held against further columns of the same softmaxes (``InfoNCE.directions``);
            a target of -1 is none. None where rows alone look.
        weight: Of each row's similarity to its target (``DCLW``), (R,); None for 1.
    """

    rows: Tensor
    columns: Tensor
    target: Tensor
    forbid: Forbid
    own: Tensor | None = None
    alike: Alike | None = None
    reverse: Comparison | None = None
    weight: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of columns that each is held against."""
        return len(self.rows), len(self.columns) + (0 if self.reverse is None else len(self.reverse.columns))

    def hide(self, logits: Tensor) -> Tensor:
        """Returns the logits, (R, C), with -inf where a row must not see a column, in place."""
        return self.forbid.hide(logits, self.target)

    def map(self, change: Callable[[Tensor], Tensor]) -> Comparison:
        """Returns the comparison with other vectors."""
        rows = change(self.rows)
        columns = rows if self.columns is self.rows else change(self.columns)
        reverse = None if self.reverse is None else self.reverse.map(change)
        return replace(self, rows=rows, columns=columns, reverse=reverse)

    def part(self, those: slice) -> Comparison:
        """Returns the comparison of some of the rows."""
        return Comparison(
            rows=self.rows[those],
            columns=self.columns,
            target=self.target[those],
            forbid=self.forbid.part(those),
            own=None if self.own is None else self.own[those],
            alike=None if self.alike is None else self.alike.part(those),
            reverse=None if self.reverse is None else self.reverse.part(those),
            weight=None if self.weight is None else self.weight[those],
        )

    def without(self, first: int) -> Comparison:
        """Returns the comparison in which a row sees none of the first columns but its target."""
        hidden = torch.arange(len(self.columns), device=self.columns.device) < first
        hidden = hidden.reshape(-1, *[1] * (self.forbid.columns.ndim - 1))
        columns = torch.where(hidden, HIDDEN_ID, self.forbid.columns)
        return replace(self, forbid=replace(self.forbid, columns=columns, hides=True))


@dataclass(frozen=True, slots=True)
class FurtherNegatives:
    """Hard negatives of every row that belong to no example, of all ranks.

    Args:
        columns: H of them.
        own: For each local example the places of its own ones among them, (n, J), -1 where it has fewer.
    """

    columns: Columns
    own: Tensor


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    """Returns a guide's vectors of all parts, one after another; None where it isn't asked of all of them."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None
