"""Views that change the order of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import draw_spans
from contrastive_text.core.types import Tokens
from contrastive_text.views.base import TokenView, check_rate
from contrastive_text.views.tokens import Unit, check_unit, unit_bounds, unit_places


def exchange(bounds: Sequence[int], pairs: Iterable[tuple[int, int]], length: int = 1) -> Sequence[int]:
    """Returns the order of places after the two spans of each pair are exchanged.

    Args:
        bounds: Start of each unit, and the end of the last.
        pairs: The first unit of either span; no two spans overlap.
        length: Units in each span.

    Example:
        >>> exchange([0, 2, 3, 4, 5], [(0, 2)])
        [3, 2, 0, 1, 4]
    """
    order = list(range(len(bounds) - 1))
    for a, b in pairs:
        for i in range(length):
            order[a + i], order[b + i] = order[b + i], order[a + i]
    return unit_places(bounds, order)


class ReorderSpans(TokenView):
    """Exchanges the two spans of some pairs, all chosen at random.

    Each span has ``max(1, int(rate * n))`` of n units; none overlap, and a text too short for all pairs
    gets as many as it has room for. Marks of an earlier deletion move like any token, and may come to stand
    side by side. Source: reordering of Wu et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3.

    Args:
        pairs: Number of pairs of spans.
        rate: Length of each span, as a share of the text; 0 moves nothing.
        unit: Whether spans are counted in tokens or in whole words.

    Raises:
        ValueError: Fewer than 0 pairs, a rate outside [0, 1] or an unknown unit.

    Example:
        >>> tokens = Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3))
        >>> ReorderSpans(pairs=1, rate=0.5)(tokens, np.random.default_rng(0)).ids
        (7, 8, 5, 6)
    """

    def __init__(self, pairs: int = 5, rate: float = 0.05, unit: Unit = "token") -> None:
        check_rate("ReorderSpans", rate)
        check_unit("ReorderSpans", unit)
        if pairs < 0:
            raise InvalidValueError(f"ReorderSpans.pairs: expected 0 pairs or more, got {pairs}; 5 is CLEAR's")
        self.pairs = pairs
        self.rate = rate
        self.unit: Unit = unit

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns all tokens in their new order."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        length = max(1, int(self.rate * units))
        pairs = min(self.pairs, units // (2 * length))
        if pairs == 0 or self.rate == 0:
            return tokens
        starts = draw_spans(units, 2 * pairs, length=length, rng=rng)
        drawn = [starts[i] for i in rng.permutation(len(starts)).tolist()]
        return tokens.take(exchange(bounds, zip(drawn[::2], drawn[1::2], strict=True), length=length))
