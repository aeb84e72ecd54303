"""Tiles of logits on a device: found by comparing, for a list of places would have to be read back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contrastive_text.losses.relations import Forbid
from contrastive_text.losses.tiles import Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTiling(Tiles):
    """What stands where, by the ids of rows and columns: a few comparisons of each entry and nothing to sort.

    Args:
        target: Column that each row should find, (R,), -1 for none.
        forbid: Columns that rows must not see; None for none.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer; None for none.
        own_log_weight: Added to their logits.
    """

    target: Tensor
    forbid: Forbid | None = None
    own: Tensor | None = None
    own_log_weight: float = 0.0

    @property
    def mirrors(self) -> bool:
        """Whether tiles may serve as their mirror images: always."""
        return True

    def fill_forbidden(self, tile: Tensor, down: slice, across: slice, value: float) -> Tensor:
        """Puts a value where a column is forbidden, in place."""
        return tile if self.forbid is None else tile.masked_fill_(self._forbidden(down, across), value)

    def add_own(self, logits: Tensor, down: slice, across: slice) -> Tensor:
        """Adds the weight of own hard negatives, in place."""
        if self.own is None or not self.own_log_weight:
            return logits
        places, inside = _within(self.own[down], across)
        return logits.scatter_add_(1, places, inside.to(logits) * self.own_log_weight)

    def pulled(self, down: slice, across: slice) -> Tensor:
        """Returns True where a column is alike and seen, or the row's target."""
        assert self.alike is not None
        same = self._with_targets(self.alike.tile(down, across), down, across)
        return self.fill_forbidden(same, down, across, value=False)

    def pull_targets(self, logits: Tensor, down: slice, across: slice, wanted: Tensor, count: Tensor) -> None:
        """Puts the targets' logits, and 1 as their number, into (rows of the tile,) each."""
        places, inside = _within(self.target[down].unsqueeze(1), across)
        wanted.copy_(torch.where(inside, logits.gather(1, places), wanted.unsqueeze(1)).squeeze(1))
        count.masked_fill_(inside.squeeze(1), 1.0)

    def take_targets(self, weights: Tensor, down: slice, across: slice, part: Tensor) -> None:
        """Takes a part, (rows of the tile,), from the weights of the targets."""
        places, inside = _within(self.target[down].unsqueeze(1), across)
        weights.scatter_add_(1, places, torch.where(inside, -part.unsqueeze(1), 0.0))

    def seen_sum(self, masses: Tensor, down: slice, across: slice) -> Tensor:
        """Returns the sum of each row without forbidden columns."""
        if self.forbid is not None:
            masses = masses.masked_fill(self._forbidden(down, across), 0.0)
        return masses.sum(dim=1)

    def _forbidden(self, down: slice, across: slice) -> Tensor:
        assert self.forbid is not None
        places, inside = _within(self.target[down].unsqueeze(1), across)
        same = self.forbid.tile(down, across)
        return same.scatter_(1, places, same.gather(1, places) & ~inside)

    def _with_targets(self, same: Tensor, down: slice, across: slice) -> Tensor:
        places, inside = _within(self.target[down].unsqueeze(1), across)
        return same.scatter_(1, places, same.gather(1, places) | inside)


def _within(columns: Tensor, across: slice) -> tuple[Tensor, Tensor]:
    """Returns columns counted from a tile's corner, of any value outside of it, and whether they are inside.

    Example:
        >>> places, inside = _within(torch.tensor([[3], [-1], [7]]), slice(2, 6))
        >>> places.tolist(), inside.tolist()
        ([[1], [0], [3]], [[True], [False], [False]])
    """
    inside = (columns >= across.start) & (columns < across.stop)
    return (columns - across.start).clamp(0, max(across.stop - across.start - 1, 0)), inside
