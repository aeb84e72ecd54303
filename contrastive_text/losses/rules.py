"""Rules of a comparison: they select columns for rows, by integer ids or by cosines.

Rules take O(rows + columns) memory. A loss converts them to a boolean matrix for the columns that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contrastive_text.core.similarity import full_precision

NO_ID = -1
"""Id of a column without a text or class, to which no rule applies."""

_ROUNDING = 16
"""Largest rounding error of a cosine of unit vectors, in units in the last place."""


@dataclass(frozen=True, slots=True)
class SameId:
    """Rule that selects a column for a row if the column's id is among the row's ids.

    Texts may have ids of several kinds, such as an id of the text before a view and an id of the text after it.
    Two texts are duplicates if their ids of any kind are equal.

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
        """Returns a boolean matrix, True where the rule selects a column for a row, (R, C)."""
        selected = torch.zeros((), dtype=torch.bool, device=self.columns.device)
        for rows, columns in self._kinds():
            for ids in rows.unbind(1):
                selected = selected | (ids.unsqueeze(1) == columns)
        return selected

    def indices(self, most: int) -> tuple[Tensor, Tensor] | None:
        """Returns the row and column indices of the selected matrix entries, in O((R + C) log C) time.

        Args:
            most: Largest number of entries. If there are more, the result is None and no memory is allocated.

        Returns:
            Row indices (P,) and column indices (P,). An entry may occur twice.
        """
        indices = []
        for rows, columns in self._kinds():
            sorted_ids, order = columns.sort()
            first = torch.searchsorted(sorted_ids, rows.contiguous())
            counts = (torch.searchsorted(sorted_ids, rows.contiguous(), right=True) - first).flatten()
            count = int(counts.sum())
            most -= count
            if most < 0:
                return None
            starts = counts.cumsum(0) - counts
            pairs = torch.repeat_interleave(counts, output_size=count)
            ranks = torch.arange(count, device=pairs.device) + (first.flatten() - starts)[pairs]
            indices.append(torch.stack([pairs // rows.shape[1], order[ranks]]))
        row_indices, column_indices = torch.cat(indices, dim=1)
        return row_indices, column_indices

    def part(self, rows: slice, columns: slice = slice(None)) -> SameId:
        """Returns the rule restricted to a range of rows and a range of columns."""
        return SameId(self.rows[rows], self.columns[columns])


@dataclass(frozen=True, slots=True)
class OtherId:
    """Rule that selects a column for a row if the column has an id, and another id than the row (``MaskBatch``).

    Args:
        rows: Id of each row, (R, 1).
        columns: Id of each column, (C,), ``NO_ID`` for a column that is not selected.

    Example:
        >>> OtherId(rows=torch.tensor([[0], [1]]), columns=torch.tensor([0, 1, NO_ID])).mask()
        tensor([[False,  True, False],
                [ True, False, False]])
    """

    rows: Tensor
    columns: Tensor

    def mask(self) -> Tensor:
        """Returns a boolean matrix, True where the rule selects a column for a row, (R, C)."""
        return (self.columns != NO_ID) & (self.rows != self.columns)

    def part(self, rows: slice, columns: slice = slice(None)) -> OtherId:
        """Returns the rule restricted to a range of rows and a range of columns."""
        return OtherId(self.rows[rows], self.columns[columns])


@dataclass(frozen=True, slots=True)
class GuideMask:
    """Rule that selects a column for a row if the cosine of both is above a bound.

    The cosines are those of a guide (``FalseNegatives``) or of the compared vectors (``MaskAbovePositive``).

    A column whose cosine exceeds the bound by no more than rounding is not selected. The selection is therefore
    the same for any part of the rows and on any number of ranks. The rule never masks a positive.

    Args:
        rows: Unit vectors of the rows, (R, Dg).
        columns: Unit vectors of the columns, (C, Dg).
        bound: Largest cosine of each row with a column that is not selected, (R,).

    Example:
        >>> GuideMask(torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]]), bound=torch.tensor([0.7, 0.8])).mask()
        tensor([[ True, False],
                [False, False]])
    """

    rows: Tensor
    columns: Tensor
    bound: Tensor

    def mask(self) -> Tensor:
        """Returns a boolean matrix, True where the rule selects a column for a row, (R, C)."""
        with full_precision(self.rows.device):
            cosines = self.rows @ self.columns.T
        return cosines > (self.bound + _ROUNDING * torch.finfo(cosines.dtype).eps).unsqueeze(1)

    def part(self, rows: slice, columns: slice = slice(None)) -> GuideMask:
        """Returns the rule restricted to a range of rows and a range of columns."""
        return GuideMask(self.rows[rows], self.columns[columns], self.bound[rows])


Rule = SameId | OtherId | GuideMask
