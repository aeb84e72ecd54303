"""Views that change the order of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit, check_rate
from contrastive_text.views.tokens import check_unit, merge_marks, some_spans, unit_bounds, unit_places


def exchange(bounds: Sequence[int], pairs: Iterable[tuple[range, range]]) -> Sequence[int]:
    """Returns the order of places after the two spans of each pair are exchanged.

    Args:
        bounds: Start of each unit, and the end of the last.
        pairs: Two spans of units each; no two spans overlap.

    Example:
        >>> exchange([0, 2, 3, 4, 5], [(range(0, 1), range(2, 3))])
        [3, 2, 0, 1, 4]
    """
    places = [place for a, b in pairs for place in ((a, b), (b, a))]
    order: list[int] = []
    kept = 0
    for old, new in sorted(places, key=lambda place: place[0].start):
        order += [*range(kept, old.start), *new]
        kept = old.stop
    return unit_places(bounds, [*order, *range(kept, len(bounds) - 1)])


class ReorderSpans(TokenView):
    """Exchanges the two spans of some pairs, all chosen at random.

    All spans together have ``round(2 * pairs * rate * n)`` of n units, at least two. None overlap, and their
    lengths differ by one at most; a text with fewer units to move gets fewer pairs. Marks of an earlier deletion
    move like any token, and those that come to stand side by side are merged. Source: reordering of Wu et al.
    2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3, 5 pairs of spans of about 5 %.

    Args:
        pairs: Number of pairs of spans.
        rate: Mean length of a span, as a share of the text; 0 moves nothing.
        unit: Whether spans are counted in tokens or in whole words.
        mark: Token of earlier deletions, of which one stands for a run; None to leave runs as they are.

    Raises:
        ValueError: Fewer than 0 pairs, a rate outside [0, 1] or an unknown unit.

    Example:
        >>> tokens = Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3))
        >>> ReorderSpans(pairs=1, rate=0.5)(tokens, np.random.default_rng(0)).ids
        (7, 8, 5, 6)
    """

    def __init__(
        self, pairs: int = 5, rate: float = 0.05, unit: Unit = "token", mark: str | None = "[DEL]"
    ) -> None:
        check_rate("ReorderSpans", rate)
        check_unit("ReorderSpans", unit)
        if pairs < 0:
            raise InvalidValueError(f"ReorderSpans.pairs: expected 0 pairs or more, got {pairs}; 5 is CLEAR's")
        self.pairs = pairs
        self.rate = rate
        self.unit: Unit = unit
        self.mark = mark
        self._mark_id: int | None = None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the id of the mark, where another view has asked for it."""
        self._mark_id = None if self.mark is None else vocabulary.added.get(self.mark)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns all tokens in their new order, runs of marks merged."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        share = 2 * self.pairs * self.rate
        if share == 0 or units < 2:
            return tokens
        moved = min(max(round(share * units), 2), units)
        spans = some_spans(units, moved, most=min(2 * self.pairs, moved // 2 * 2), rng=rng)
        drawn = [spans[i] for i in rng.permutation(len(spans)).tolist()]
        ordered = tokens.take(exchange(bounds, zip(drawn[::2], drawn[1::2], strict=True)))
        return ordered if self._mark_id is None else merge_marks(ordered, self._mark_id)
