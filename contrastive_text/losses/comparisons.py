"""What is compared: texts with ids, and the blocks of rows and columns that losses see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError

_FEW_ENTRIES = 2**16
"""Entries of a matrix up to which a mask is no slower than looking for places."""


@dataclass(frozen=True, slots=True)
class Forbid:
    """Which columns a row must not see, by integer ids: itself, and texts equal to it or to its target.

    A column is forbidden for a row if its id is among the row's ids, unless it is the row's target. Ids
    take O(R + C) memory where a mask takes O(R * C). Texts may have an id of each of K kinds, such as of what a
    view has left of them; they are equal if they agree in one.

    Args:
        rows: Ids of each row, of its own text, then of its target: (R, 2), or (R, 2, K).
        columns: Id of each column, (C,), or (C, K).
    """

    rows: Tensor
    columns: Tensor

    @property
    def kinds(self) -> list[tuple[Tensor, Tensor]]:
        """The ids of rows and columns of each kind, (R, 2) and (C,)."""
        if self.columns.ndim == 1:
            return [(self.rows, self.columns)]
        return list(zip(self.rows.unbind(2), self.columns.unbind(1), strict=True))

    def tile(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column has an id of the row's, targets included, (rows, columns) of a tile."""
        same = torch.zeros((), dtype=torch.bool, device=self.columns.device)
        for rows, columns in self.kinds:
            for ids in rows[down].T:
                same = same | (ids.unsqueeze(1) == columns[across])
        return same

    def mask(self, target: Tensor) -> Tensor:
        """Returns True where a column is forbidden, (R, C), for targets (R,)."""
        return self.tile(slice(None), slice(None)).scatter_(1, target.unsqueeze(1), False)

    def places(self, target: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
        """Returns the rows and the columns of what ``mask`` marks, in O((R + C) log C) time.

        Args:
            target: (R,).
            most: None is given if there are more places than that, before any memory is taken for them.

        Returns:
            Rows and columns, some perhaps twice.
        """
        listed = []
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


NO_CLASS = -1
"""Class of a text of which none is known: a hard negative."""


@dataclass(frozen=True, slots=True)
class Alike:
    """Which columns are of a row's class, by integer ids, in O(R + C) memory as ``Forbid``.

    Args:
        rows: Class of each row, 0 or more, (R,).
        columns: Class of each column, (C,); ``NO_CLASS`` is no row's.
    """

    rows: Tensor
    columns: Tensor

    def mask(self, target: Tensor) -> Tensor:
        """Returns True where a column is of the row's class or its target, (R, C), for targets (R,)."""
        return (self.rows.unsqueeze(1) == self.columns).scatter(1, target.unsqueeze(1), True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One block of rows held against columns.

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,).
        forbid: Columns that rows must not see.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer; or None.
        alike: Columns of a row's class; None where examples have no classes.
    """

    rows: Tensor
    columns: Tensor
    target: Tensor
    forbid: Forbid
    own: Tensor | None = None
    alike: Alike | None = None


@dataclass(frozen=True, slots=True)
class FurtherNegatives:
    """Hard negatives of every row that belong to no example, of all ranks.

    Args:
        vectors: (H, D).
        ids: (H,), or (H, kinds).
        own: For each local example the places of its own ones among them, (n, J), -1 where it has fewer.
    """

    vectors: Tensor
    ids: Tensor
    own: Tensor


@dataclass(frozen=True, slots=True)
class Triples:
    """Vectors of N examples with an id for every text, or one of each kind; equal ids mark equal texts.

    Args:
        anchor: (N, D).
        positive: (N, D).
        negative: (N, K, D), or None.
        anchor_ids: (N,), or (N, kinds).
        positive_ids: (N,), or (N, kinds).
        negative_ids: (N, K), or (N, K, kinds), or None.
        classes: Class of each example, 0 or more, (N,), or None.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None
    anchor_ids: Tensor
    positive_ids: Tensor
    negative_ids: Tensor | None
    classes: Tensor | None = None

    @classmethod
    def distinct(cls, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Triples:
        """Returns every text an id of its own, so that a row is kept from itself and from nothing else.

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
        """Returns the triples with every tensor changed in the same way."""
        return Triples(
            anchor=change(self.anchor),
            positive=change(self.positive),
            negative=None if self.negative is None else change(self.negative),
            anchor_ids=change(self.anchor_ids),
            positive_ids=change(self.positive_ids),
            negative_ids=None if self.negative_ids is None else change(self.negative_ids),
            classes=None if self.classes is None else change(self.classes),
        )
