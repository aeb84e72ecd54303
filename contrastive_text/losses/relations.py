"""Which columns a row must not see, and which it is pulled to, by integer ids."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from contrastive_text.core.similarity import full_precision

Joined = Literal["mean", "sum"]

HIDDEN_ID = -2
"""Id of a column that no row may see, such as that of a hard negative which a row lacks.

A hash of a text equals it, as it equals that of another text, once in 2**64 pairs."""

NO_ID = -1
"""No text and no class: what no row is kept from or pulled to."""

_ROUNDING = 16
"""Units in the last place by which a cosine of unit vectors may be off."""

_FEW_ENTRIES = 2**16
"""Entries of a matrix up to which a mask is no slower than looking for places."""


@dataclass(frozen=True, slots=True)
class Forbid:
    """Which columns a row must not see, by integer ids: itself, texts equal to it or to its target, and siblings.

    A column is forbidden for a row if its id, or that of its partner, is among the row's ids, unless it is the
    row's target. Ids take O(R + C) memory where a mask takes O(R * C). Texts may have an id of each of K kinds,
    such as of what a view has left of them; they are equal if they agree in one.

    Args:
        rows: Ids of each row, of its own text, then of its target: (R, 2), or (R, 2, K).
        columns: Id of each column, (C,), or (C, K).
        partners: Id, of the first kind, of the text that each column belongs with, (C,), ``NO_ID`` for none;
            None where siblings are seen.
        near: Columns that a guide finds too near to a row; None without a guide.
        hides: Whether columns with the id ``HIDDEN_ID`` are forbidden for every row.

    Example:
        >>> ids = torch.tensor([7, 7]), torch.tensor([1, 2])  # one query, two positives
        >>> rows, target = torch.stack(ids, dim=1), torch.tensor([0, 1])
        >>> Forbid(rows, columns=ids[1]).mask(target).any()
        tensor(False)
        >>> Forbid(rows, columns=ids[1], partners=ids[0]).mask(target)
        tensor([[False,  True],
                [ True, False]])
    """

    rows: Tensor
    columns: Tensor
    partners: Tensor | None = None
    near: TooNear | None = None
    hides: bool = False

    @property
    def hidden(self) -> Tensor:
        """True for columns that no row may see, (C,)."""
        return (self.columns if self.columns.ndim == 1 else self.columns[:, 0]) == HIDDEN_ID

    @property
    def kinds(self) -> list[tuple[Tensor, Tensor]]:
        """The ids that are compared, (R, 2) and (C,): of each kind, and of partners."""
        kinds = [(self.rows, self.columns)]
        if self.columns.ndim == 2:
            kinds = list(zip(self.rows.unbind(2), self.columns.unbind(1), strict=True))
        return kinds if self.partners is None else [*kinds, (kinds[0][0], self.partners)]

    def tile(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column has an id of the row's, targets included, (rows, columns) of a tile."""
        same = torch.zeros((), dtype=torch.bool, device=self.columns.device)
        for rows, columns in self.kinds:
            same = same | _any_equal(rows[down], columns[across])
        if self.hides:
            same = same | self.hidden[across]
        return same if self.near is None else same | self.near.tile(down, across)

    def part(self, those: slice) -> Forbid:
        """Returns what some of the rows must not see."""
        return replace(self, rows=self.rows[those], near=None if self.near is None else self.near.part(those))

    def mask(self, target: Tensor) -> Tensor:
        """Returns True where a column is forbidden, (R, C), for targets (R,), of which -1 is none."""
        same = self.tile(slice(None), slice(None))
        if not same.numel():
            return same
        targets = target.clamp(min=0).unsqueeze(1)
        return same.scatter_(1, targets, same.gather(1, targets) & (target < 0).unsqueeze(1))

    def places(self, target: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
        """Returns the rows and the columns of what ``mask`` marks, in O((R + C) log C) time.

        Args:
            target: (R,).
            most: None is given if there are more places than that, before any memory is taken for them; and with
                ``near``, for which every place would have to be looked at.

        Returns:
            Rows and columns, some perhaps twice.
        """
        if self.near is not None:
            return None
        listed = []
        if self.hides:
            hidden = self.hidden.nonzero().flatten()
            most -= len(hidden) * len(self.rows)
            if most < 0:
                return None
            rows = torch.arange(len(self.rows), device=hidden.device).repeat_interleave(len(hidden))
            columns = hidden.repeat(len(self.rows))
            kept = columns != target[rows]
            listed.append((rows[kept], columns[kept]))
        for ids, column_ids in self.kinds:
            ordered, order = column_ids.sort()
            first = torch.searchsorted(ordered, ids.contiguous())
            counts = (torch.searchsorted(ordered, ids.contiguous(), right=True) - first).flatten()
            found = int(counts.sum())
            most -= found
            if most < 0:
                return None
            before = counts.cumsum(0) - counts
            which = torch.repeat_interleave(counts, output_size=found)
            places = torch.arange(found, device=which.device) + (first.flatten() - before)[which]
            rows, columns = which // ids.shape[1], order[places]
            kept = columns != target[rows]
            listed.append((rows[kept], columns[kept]))
        rows, columns = (torch.cat(each) for each in zip(*listed, strict=True))
        return rows, columns

    def hide(self, logits: Tensor, target: Tensor) -> Tensor:
        """Returns the logits with -inf where a column is forbidden, in place, (R, C), for targets (R,).

        Comparing the ids of 2,048 rows and columns takes 8 ms, finding their 2,048 places 0.4 ms (two cores). Of
        256 both take 0.1 ms; on another device finding places would make the host wait for it.
        """
        places = None
        if logits.device.type == "cpu" and logits.numel() > _FEW_ENTRIES:
            places = self.places(target, most=logits.numel() // 16)
        if places is None:
            return logits.masked_fill_(self.mask(target), -torch.inf)
        return logits.index_put_(places, logits.new_tensor(-torch.inf))


@dataclass(frozen=True, slots=True)
class TooNear:
    """Which columns a guide finds nearer to a row than a bound: false negatives (GISTEmbed, ``FalseNegatives``).

    Cosines are computed tile by tile, in O((R + C) Dg) memory. One that equals the bound is not above it, nor one
    that rounding alone puts there: what is removed is the same in every tiling and on any number of ranks.

    Args:
        rows: Unit vectors of each row's text, (R, Dg).
        columns: Of each column's, (C, Dg).
        bound: Cosine above which a column is removed, of each row, (R,).
        spared: Columns that stay whatever the guide says, for rows are pulled to them; None for none.

    Example:
        >>> eye = torch.eye(2)
        >>> near = TooNear(eye, torch.tensor([[1.0, 0.0], [0.6, 0.8]]), bound=torch.tensor([0.7, 0.8]))
        >>> near.tile(slice(None), slice(None))
        tensor([[ True, False],
                [False, False]])
    """

    rows: Tensor
    columns: Tensor
    bound: Tensor
    spared: Alike | None = None

    def tile(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column is too near, (rows, columns) of a tile."""
        with full_precision(self.rows.device):
            cosines = self.rows[down] @ self.columns[across].T
        near = cosines > (self.bound[down] + _ROUNDING * torch.finfo(cosines.dtype).eps).unsqueeze(1)
        return near if self.spared is None else near & ~self.spared.tile(down, across)

    def part(self, those: slice) -> TooNear:
        """Returns the same of some of the rows."""
        spared = None if self.spared is None else self.spared.part(those)
        return replace(self, rows=self.rows[those], bound=self.bound[those], spared=spared)


def _any_equal(rows: Tensor, columns: Tensor) -> Tensor:
    """Returns True where a column's number is among the row's, (R, C), for (R,) or (R, M) and (C,)."""
    first, *others = [rows] if rows.ndim == 1 else rows.unbind(1)
    same = first.unsqueeze(1) == columns
    for numbers in others:
        same = same | (numbers.unsqueeze(1) == columns)
    return same


def partners_among(ids: Tensor, texts: Tensor, partners: Tensor) -> Tensor:
    """Returns the partner of each text that stands among others, of the first of them; ``NO_ID`` elsewhere.

    Args:
        ids: (H,).
        texts: (N,).
        partners: (N,).

    Example:
        >>> partners_among(torch.tensor([5, 8]), texts=torch.tensor([8, 9]), partners=torch.tensor([1, 2]))
        tensor([-1,  1])
    """
    if not len(texts):
        return torch.full_like(ids, NO_ID)
    ordered, order = texts.sort(stable=True)
    places = torch.searchsorted(ordered, ids.contiguous()).clamp(max=len(texts) - 1)
    return torch.where(ordered[places] == ids, partners[order[places]], NO_ID)


def count_alike(ids: Tensor) -> Tensor:
    """Returns how many further texts agree with another one in the second of two ids alone, a scalar.

    Args:
        ids: Two ids of each text, (M, 2).

    Example:
        >>> count_alike(torch.tensor([[1, 7], [1, 7], [2, 7], [3, 7], [4, 8]]))  # 2 and 3 with 1
        tensor(2)
    """
    ordered = ids[ids[:, 0].argsort()]
    first, second = ordered[ordered[:, 1].argsort(stable=True)].unbind(1)
    return ((second[1:] == second[:-1]) & (first[1:] != first[:-1])).sum()


@dataclass(frozen=True, slots=True)
class Alike:
    """Which columns a row is pulled to beside its target, by integer ids, in O(R + C) memory as ``Forbid``.

    Those of its class, or its siblings: columns whose partner is the row's own text or its target's.

    Args:
        rows: Class of each row, 0 or more, (R,), or ids of its own and its target's text, (R, 2).
        columns: Class of each column, (C,), or id of its partner; ``NO_ID`` is no row's.
        joined: What is taken of several: the ``mean`` of their log-probabilities, or the logarithm of the ``sum``
            of their probabilities.
    """

    rows: Tensor
    columns: Tensor
    joined: Joined = "mean"

    def tile(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column is alike, (rows, columns) of a tile."""
        return _any_equal(self.rows[down], self.columns[across])

    def part(self, those: slice) -> Alike:
        """Returns the same of some of the rows."""
        return replace(self, rows=self.rows[those])

    def mask(self, target: Tensor) -> Tensor:
        """Returns True where a column is alike or the row's target, (R, C), for targets (R,)."""
        return self.tile(slice(None), slice(None)).scatter_(1, target.unsqueeze(1), True)
