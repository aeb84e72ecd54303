"""What a guide, another model, knows of the texts that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class GuideVectors:
    """A guide's unit vectors of the texts of N examples, and the cosine above which others are no negatives.

    Args:
        anchor: (N, Dg).
        positive: (N, Dg).
        negative: (N, K, Dg), or None.
        bound: Of both rows of an example, its anchor and its positive, (N,).
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None
    bound: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> GuideVectors:
        """Returns the same with every tensor changed in the same way."""
        negative = None if self.negative is None else change(self.negative)
        return GuideVectors(change(self.anchor), change(self.positive), negative, change(self.bound))
