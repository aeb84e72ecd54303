"""A matrix of logits, tile by tile: what stands where, in memory that grows with its sides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrastive_text.losses.relations import Alike, Forbid

_REPEATS = 8
"""Forbidden places for each row and column up to which they are listed, 16 bytes each; beyond, ids are compared
tile by tile: texts then repeat so often that a list would outgrow the vectors."""


@dataclass(frozen=True, slots=True)
class Places:
    """Some places of an R x C matrix, kept in the order of the tiles that they lie in.

    Args:
        rows: (P,).
        columns: (P,).
        bounds: Where in those each tile begins, tile row by tile row, and the end.
        size: Side of a tile.
        across: Tiles side by side.
    """

    rows: Tensor
    columns: Tensor
    bounds: list[int]
    size: int
    across: int

    @classmethod
    def sort(cls, rows: Tensor, columns: Tensor, size: int, shape: tuple[int, int]) -> Places:
        """Sorts places of a matrix of that shape; the order of those of one tile stays."""
        down, across = (-(-length // size) for length in shape)
        tiles, order = (rows // size * across + columns // size).sort(stable=True)
        bounds = torch.searchsorted(tiles, torch.arange(down * across + 1, device=tiles.device))
        return cls(rows[order], columns[order], bounds.tolist(), size, across)

    def within(self, down: slice, across: slice) -> tuple[Tensor, Tensor]:
        """Returns the places of a tile, counted from its corner."""
        tile = down.start // self.size * self.across + across.start // self.size
        those = slice(self.bounds[tile], self.bounds[tile + 1])
        return self.rows[those] - down.start, self.columns[those] - across.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles(ABC):
    """The tiles of the logits of R rows and C columns, and what is done to each.

    Args:
        shape: R and C.
        size: Side of a tile.
        alike: Columns that rows are pulled to too; None for the targets alone.
    """

    shape: tuple[int, int]
    size: int
    alike: Alike | None = None

    @property
    @abstractmethod
    def mirrors(self) -> bool:
        """Whether each tile may serve as its mirror image too, where rows and columns are one tensor."""

    @abstractmethod
    def fill_forbidden(self, tile: Tensor, down: slice, across: slice, value: float) -> Tensor:
        """Puts a value where a column is forbidden, in place."""

    @abstractmethod
    def add_own(self, logits: Tensor, down: slice, across: slice) -> Tensor:
        """Adds the weight of own hard negatives, in place."""

    @abstractmethod
    def pulled(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column is alike and seen, or the row's target."""

    @abstractmethod
    def pull_targets(self, logits: Tensor, down: slice, across: slice, wanted: Tensor, count: Tensor) -> None:
        """Puts the targets' logits, and 1 as their number, into (rows of the tile,) each."""

    @abstractmethod
    def take_targets(self, weights: Tensor, down: slice, across: slice, part: Tensor) -> None:
        """Takes a part, (rows of the tile,), from the weights of the targets."""

    @abstractmethod
    def seen_sum(self, masses: Tensor, down: slice, across: slice) -> Tensor:
        """Returns the sum of each row without forbidden columns, and leaves the masses as they were."""

    @property
    def down(self) -> Iterator[slice]:
        """The tiles' rows."""
        return self._spans(self.shape[0])

    @property
    def across(self) -> Iterator[slice]:
        """The tiles' columns."""
        return self._spans(self.shape[1])

    def _spans(self, length: int) -> Iterator[slice]:
        return (slice(start, min(start + self.size, length)) for start in range(0, length, self.size))

    def pull(self, logits: Tensor, down: slice, across: slice, wanted: Tensor, count: Tensor) -> None:
        """Adds the logits that rows are pulled to, and their number, to (rows of the tile,) each.

        Where those are joined by the ``sum``, what is wanted is the logarithm of it, and counts as one.
        """
        if self.alike is None:
            self.pull_targets(logits, down, across, wanted, count)
            return
        pulled = self.pulled(down, across)
        if self.alike.joined == "sum":
            found = torch.where(pulled, logits, -torch.inf).logsumexp(dim=1)
            wanted.copy_(torch.logaddexp(wanted, found))
            count.fill_(1.0)
            return
        wanted += torch.where(pulled, logits, 0.0).sum(dim=1)
        count += pulled.sum(dim=1)

    @property
    def nothing(self) -> float:
        """What is wanted of no column."""
        return -torch.inf if self.alike is not None and self.alike.joined == "sum" else 0.0

    def shares(self, logits: Tensor, down: slice, across: slice, wanted: Tensor) -> Tensor | None:
        """Returns what share of a row's pull each column has, of a tile; None where the target has all."""
        if self.alike is None:
            return None
        pulled = self.pulled(down, across)
        if self.alike.joined == "mean":
            return pulled
        return torch.where(pulled, (logits - wanted.unsqueeze(1)).exp(), 0.0)

    def take_pulled(
        self, weights: Tensor, shares: Tensor | None, down: slice, across: slice, part: Tensor
    ) -> None:
        """Takes a part, (rows of the tile,), by shares from the weights of what rows are pulled to."""
        if shares is None:
            self.take_targets(weights, down, across, part)
        else:
            weights -= shares * part.unsqueeze(1)

    def from_diagonal(self, down: slice) -> Iterator[slice]:
        """The tiles' columns from that on the diagonal on."""
        return (across for across in self.across if across.start >= down.start)

    def scratch(self, like: Tensor) -> Tensor:
        """Returns memory for one tile, to be used again and again."""
        return like.new_empty(min(self.shape[0], self.size) * min(self.shape[1], self.size))

    @staticmethod
    def cut(scratch: Tensor, down: slice, across: slice) -> Tensor:
        """Returns the part of the scratch that a tile takes."""
        height, width = down.stop - down.start, across.stop - across.start
        return scratch[: height * width].view(height, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling(Tiles):
    """What stands where, by lists of places: no entry is looked at twice.

    Args:
        target: Each row's target, of those that have one.
        forbidden: Columns that rows must not see; None for none, or where ``ids`` tells.
        ids: The same by ids, with the targets, (R,), where texts repeat too often for a list; None otherwise.
        own: Each row's own hard negatives; None for none.
        own_log_weight: Added to their logits.
    """

    target: Places
    forbidden: Places | None = None
    ids: tuple[Forbid, Tensor] | None = None
    own: Places | None = None
    own_log_weight: float = 0.0

    @property
    def mirrors(self) -> bool:
        """Whether tiles may serve as their mirror images: not where ids are compared."""
        return self.ids is None

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        size: int,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,
        own_log_weight: float = 0.0,
        alike: Alike | None = None,
    ) -> Tiling:
        """Sorts by tiles what ``info_nce_terms`` and ``sup_con_terms`` take."""
        (looking,) = (target >= 0).nonzero(as_tuple=True)
        places = Places.sort(looking, target[looking], size, shape)
        tiling = cls(shape=shape, size=size, target=places, alike=alike)
        if own is not None and own_log_weight != 0:
            row, nth = (own >= 0).nonzero(as_tuple=True)
            tiling = replace(
                tiling, own=Places.sort(row, own[row, nth], size, shape), own_log_weight=own_log_weight
            )
        if forbid is None:
            return tiling
        few = forbid.places(target, most=_REPEATS * sum(shape))
        if few is None:
            return replace(tiling, ids=(forbid, target))
        return replace(tiling, forbidden=Places.sort(*few, size, shape))

    def fill_forbidden(self, tile: Tensor, down: slice, across: slice, value: float) -> Tensor:
        """Puts a value where a column is forbidden, in place."""
        if self.forbidden is not None:
            return tile.index_put_(self.forbidden.within(down, across), tile.new_tensor(value))
        if self.ids is None:
            return tile
        forbid, _ = self.ids
        rows, columns = self.target.within(down, across)
        kept = tile[rows, columns]
        tile.masked_fill_(forbid.tile(down, across), value)
        return tile.index_put_((rows, columns), kept)

    def add_own(self, logits: Tensor, down: slice, across: slice) -> Tensor:
        """Adds the weight of own hard negatives, in place."""
        if self.own is None:
            return logits
        weight = logits.new_tensor(self.own_log_weight)
        return logits.index_put_(self.own.within(down, across), weight, accumulate=True)

    def pulled(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column is alike and seen, or the row's target."""
        assert self.alike is not None
        same = self.alike.tile(down, across)
        same.index_put_(self.target.within(down, across), same.new_tensor(True))
        return self.fill_forbidden(same, down, across, value=False)

    def seen_sum(self, masses: Tensor, down: slice, across: slice) -> Tensor:
        """Returns the sum of each row without forbidden columns, and leaves the masses as they were."""
        if self.forbidden is None:
            return masses.sum(dim=1)
        places = self.forbidden.within(down, across)
        kept = masses[places]
        sums = masses.index_put_(places, masses.new_tensor(0.0)).sum(dim=1)
        masses.index_put_(places, kept)
        return sums

    def pull_targets(self, logits: Tensor, down: slice, across: slice, wanted: Tensor, count: Tensor) -> None:
        """Puts the targets' logits, and 1 as their number, into (rows of the tile,) each."""
        rows, columns = self.target.within(down, across)
        wanted.index_put_((rows,), logits[rows, columns])
        count.index_fill_(0, rows, 1.0)

    def take_targets(self, weights: Tensor, down: slice, across: slice, part: Tensor) -> None:
        """Takes a part, (rows of the tile,), from the weights of the targets."""
        rows, columns = self.target.within(down, across)
        weights.index_put_((rows, columns), -part[rows], accumulate=True)
