"""Views that delete or crop, and the units they choose: tokens or whole words.

A sentence has a dozen tokens, for which a call of numpy costs more than a loop: beside the draws all is plain
Python. A sentence of 13 tokens takes 4 to 14 us with its generator; with arrays it took 14 to 44.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import and_
from typing import get_args

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import draw_disjoint_spans
from contrastive_text.core.types import NO_LABEL, Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit, check_rate


def check_unit(where: str, unit: str) -> None:
    """Checks that a unit is one (ValueError)."""
    if unit not in get_args(Unit):
        raise InvalidValueError(f"{where}.unit: expected token or word, got {unit!r}; choose one of the two")


def unit_bounds(tokens: Tokens, unit: Unit) -> Sequence[int]:
    """Returns the place of the first token of each unit of a text, and the text's length.

    A word is a run of tokens with one word number.

    Example:
        >>> unit_bounds(Tokens(ids=(5, 6, 7), words=(0, 0, 1)), "word")
        [0, 2, 3]
    """
    if unit == "token":
        return range(len(tokens) + 1)
    words = tokens.words
    first = [0] if words else []
    return [*first, *(i for i in range(1, len(words)) if words[i] != words[i - 1]), len(words)]


def unit_places(bounds: Sequence[int], units: Sequence[int]) -> Sequence[int]:
    """Returns the places of the tokens of some units, unit by unit.

    Example:
        >>> unit_places([0, 2, 3], [1, 0])
        [2, 0, 1]
    """
    if isinstance(bounds, range):  # units are tokens
        return units
    return [place for unit in units for place in range(bounds[unit], bounds[unit + 1])]


def some_spans(units: int, covered: int, most: int, rng: np.random.Generator) -> list[range]:
    """Draws spans of units that don't overlap and whose lengths differ by one at most, in the order of the text.

    Args:
        units: Units of the text.
        covered: Units in all spans together.
        most: Number of spans; fewer where ``covered`` is less.

    Example:
        >>> sorted(map(len, some_spans(39, covered=10, most=4, rng=np.random.default_rng(0))))
        [2, 2, 3, 3]
    """
    spans = min(most, covered)
    if spans == 0:
        return []
    length, longer = divmod(covered, spans)
    lengths = [length] * spans
    if longer:
        for i in rng.permutation(spans)[:longer].tolist():
            lengths[i] += 1
    return draw_disjoint_spans(units, lengths, rng)


def delete(tokens: Tokens, gone: Collection[int], mark: int | None = None) -> Tokens:
    """Returns the tokens that are left, and a mark for each run of deleted ones.

    The mark takes word and position of the run's first token and has no label. A mark that stands beside
    deleted tokens is merged with theirs.

    Args:
        tokens: The text.
        gone: Places of the tokens to delete.
        mark: Id of the mark; None to leave no trace.

    Example:
        >>> delete(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), {0, 1, 3}, mark=9).ids
        (9, 7, 9)
    """
    if not gone:
        return tokens
    marked = [False] * len(tokens)
    for place in gone:
        marked[place] = True
    if mark is None:
        return tokens.take([place for place, is_gone in enumerate(marked) if not is_gone])
    if mark in tokens.ids:
        marked = [is_gone or token == mark for is_gone, token in zip(marked, tokens.ids, strict=True)]
    return _with_marks(tokens, marked, mark)


def merge_marks(tokens: Tokens, mark: int) -> Tokens:
    """Returns the tokens with one mark in the place of each run of marks.

    Example:
        >>> merge_marks(Tokens(ids=(9, 9, 7), words=(0, 3, 2)), mark=9).ids
        (9, 7)
    """
    marked = [token == mark for token in tokens.ids]
    return _with_marks(tokens, marked, mark) if any(map(and_, marked, marked[1:])) else tokens


def _with_marks(tokens: Tokens, marked: Sequence[bool], mark: int) -> Tokens:
    ids, words, positions, labels = tokens.ids, tokens.words, tokens.positions, tokens.labels
    left = [i for i, is_marked in enumerate(marked) if not (is_marked and i and marked[i - 1])]
    return Tokens(
        ids=tuple([mark if marked[i] else ids[i] for i in left]),
        words=tuple([words[i] for i in left]),
        positions=positions and tuple([positions[i] for i in left]),
        labels=labels and tuple([NO_LABEL if marked[i] else labels[i] for i in left]),
    )


class _Deletion(TokenView):
    """A view that deletes tokens or words, and may leave a mark for each run of deleted ones."""

    def __init__(self, rate: float, mark: str | None, unit: Unit) -> None:
        where = type(self).__name__
        check_rate(where, rate)
        check_unit(where, unit)
        if mark == "":
            raise InvalidValueError(f"{where}.mark: expected a token such as [DEL], got ''; None leaves no trace")
        self.rate = rate
        self.mark = mark
        self.unit: Unit = unit
        self.new_tokens = () if mark is None else (mark,)
        self._mark_id: int | None = None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the id of the mark."""
        self._mark_id = None if self.mark is None else vocabulary.added[self.mark]

    def _without(self, tokens: Tokens, bounds: Sequence[int], units: Sequence[int]) -> Tokens:
        if self.mark is not None and self._mark_id is None:
            raise RuntimeError(f"{type(self).__name__}: expected build(vocabulary) before the first call")
        return delete(tokens, unit_places(bounds, units), self._mark_id)


class DeleteTokens(_Deletion):
    """Deletes a share of the tokens or words, chosen at random.

    ``round(rate * n)`` of n units go, but never the last one left: of 1, 2 or 3 units at a rate of 0.7 none, 1
    and 2. A mark stands for each run of deleted units; without one they leave no trace. Source: word deletion of
    Wu et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3 (rate 0.7, mark [DEL], tokens), and
    of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), table 1 (no mark, words).

    Args:
        rate: Share of the units to delete.
        mark: Token that stands for what is deleted, such as [DEL]; None for none.
        exact: Whether the share is exact; if not, each unit goes independently with probability ``rate``.
        unit: Whether tokens or whole words are deleted.

    Raises:
        ValueError: A rate outside [0, 1], an empty mark or an unknown unit.

    Example:
        >>> tokens = Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3))
        >>> len(DeleteTokens(rate=0.5)(tokens, np.random.default_rng(0)))
        2
    """

    def __init__(
        self, rate: float = 0.1, mark: str | None = None, exact: bool = True, unit: Unit = "token"
    ) -> None:
        super().__init__(rate, mark, unit)
        self.exact = exact

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens that are left, in their order, and the marks."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        # A binomial number of units, all choices equally likely, is one independent draw per unit.
        drawn = round(self.rate * units) if self.exact else int(rng.binomial(units, self.rate))
        count = min(drawn, units - 1)
        if count <= 0:
            return tokens
        return self._without(tokens, bounds, rng.permutation(units)[:count].tolist())


class DeleteSpans(_Deletion):
    """Deletes some spans of the text, chosen at random.

    All spans together have ``round(spans * rate * n)`` of n units, at least one and never all. They don't
    overlap, and their lengths differ by one at most; a text that loses fewer units than there are spans loses
    single ones. Marks, or none, as in ``DeleteTokens``. Source: span deletion of Wu et al. 2020, CLEAR
    (https://arxiv.org/abs/2012.15466), section 3.3, 5 spans of 5 %, which leaves open how a share becomes a
    number. Each span rounded down would take 13 % of 39 tokens, and one token at least each all of 5; here 39
    lose 26 %, and 5 lose 20 %.

    Args:
        spans: Number of spans.
        rate: Mean length of a span, as a share of the text; 0 deletes nothing.
        mark: Token that stands for what is deleted; None for none.
        unit: Whether spans are counted in tokens or in whole words.

    Raises:
        ValueError: Fewer than 0 spans, or as for ``DeleteTokens``.

    Example:
        >>> view = DeleteSpans(spans=1, rate=0.5)
        >>> view.build(Vocabulary(size=10, added={"[DEL]": 9}))
        >>> view(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), np.random.default_rng(1)).ids
        (9, 7, 8)
    """

    def __init__(
        self, spans: int = 5, rate: float = 0.05, mark: str | None = "[DEL]", unit: Unit = "token"
    ) -> None:
        super().__init__(rate, mark, unit)
        if spans < 0:
            raise InvalidValueError(f"DeleteSpans.spans: expected 0 spans or more, got {spans}; 5 is CLEAR's")
        self.spans = spans

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens that are left, in their order, and the marks."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        share = self.spans * self.rate
        if share == 0 or units < 2:
            return tokens
        covered = min(max(round(share * units), 1), units - 1)
        gone = [unit for span in some_spans(units, covered, most=self.spans, rng=rng) for unit in span]
        return self._without(tokens, bounds, gone)


class DeleteOneWord(TokenView):
    """Deletes one word, chosen at random; a text of one word stays as it is.

    Source: "delete one word" of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), table 1.

    Example:
        >>> DeleteOneWord()(Tokens(ids=(5, 6, 7), words=(0, 0, 1)), np.random.default_rng(0)).ids
        (5, 6)
    """

    unit: Unit = "word"

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of the other words, in their order."""
        bounds = unit_bounds(tokens, self.unit)
        words = len(bounds) - 1
        return tokens if words < 2 else delete(tokens, unit_places(bounds, [int(rng.integers(words))]))


class CropTokens(TokenView):
    """Keeps one stretch of the text, chosen at random.

    Of n tokens ``round(rate * n)`` go, before and after the stretch, but never the last one left. Source:
    the crop of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), table 1.

    Args:
        rate: Share of the tokens to cut off.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> CropTokens(rate=0.5)(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), np.random.default_rng(0)).ids
        (7, 8)
    """

    def __init__(self, rate: float = 0.1) -> None:
        check_rate("CropTokens", rate)
        self.rate = rate

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of the stretch."""
        length = max(len(tokens) - round(self.rate * len(tokens)), 1)
        if length >= len(tokens):
            return tokens
        start = int(rng.integers(len(tokens) - length + 1))
        return tokens.take(range(start, start + length))
