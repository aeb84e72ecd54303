"""Views that change the order of tokens."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from contrastive_text.types import Tokens
from contrastive_text.views.base import TokenView, check_rate
from contrastive_text.views.tokens import Unit, check_unit, draw_spans, unit_lengths


def exchange(length: int, pairs: Iterable[tuple[range, range]]) -> list[int]:
    """Gives the order of places after the two spans of each pair are exchanged.

    Args:
        length: Number of places.
        pairs: Spans, none of them empty, no two of them overlapping.

    Example:
        >>> exchange(5, [(range(0, 2), range(3, 4))])
        [3, 2, 0, 1, 4]
    """
    partners = {span: other for a, b in pairs for span, other in ((a, b), (b, a))}
    order: list[int] = []
    place = 0
    for span in sorted(partners, key=lambda span: span.start):
        order += [*range(place, span.start), *partners[span]]
        place = span.stop
    return [*order, *range(place, length)]


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
            raise ValueError(f"ReorderSpans.pairs: expected 0 pairs or more, got {pairs}; 5 is CLEAR's")
        self.pairs = pairs
        self.rate = rate
        self.unit: Unit = unit

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Gives all tokens in their new order."""
        ends = unit_lengths(tokens, self.unit).cumsum()
        units = len(ends)
        length = max(1, int(self.rate * units))
        pairs = min(self.pairs, units // (2 * length))
        if pairs == 0 or self.rate == 0:
            return tokens
        starts = [0, *ends.tolist()]
        drawn = rng.permutation(draw_spans(units, 2 * pairs, length=length, rng=rng)[:, 0]).tolist()
        spans = [range(starts[unit], starts[unit + length]) for unit in drawn]
        return tokens.take(exchange(len(tokens), zip(spans[::2], spans[1::2], strict=True)))
