"""Views that delete, crop, reorder or repeat tokens or whole words, or shuffle positions.

Except for random draws, the views are plain Python. A call of numpy takes longer than a loop over the dozen
tokens of a sentence. Views take 4 to 14 us for 13 tokens with their generator, and 14 to 44 us with arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import and_
from typing import ClassVar

import numpy as np

from contrastive_text.core.errors import InvalidValueError, at_least, fraction, one_of
from contrastive_text.core.random import draw_disjoint_spans
from contrastive_text.core.types import NO_LABEL, NO_WORD, Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit


def unit_bounds(tokens: Tokens, unit: Unit) -> Sequence[int]:
    """Returns the index of the first token of each unit (token or word) of a text, and the length of the text.

    A word is a sequence of tokens with the same word number.

    Example:
        >>> unit_bounds(Tokens(ids=(5, 6, 7), words=(0, 0, 1)), "word")
        [0, 2, 3]
    """
    if unit == "token":
        return range(len(tokens) + 1)
    words = tokens.words
    first = [0] if words else []
    return [*first, *(i for i in range(1, len(words)) if words[i] != words[i - 1]), len(words)]


def unit_indices(bounds: Sequence[int], units: Sequence[int]) -> Sequence[int]:
    """Returns the token indices of some units (tokens or words) of a text, unit by unit.

    Args:
        bounds: Index of the first token of each unit, and the length of the text.
        units: Numbers of the units.

    Example:
        >>> unit_indices([0, 2, 3], [1, 0])
        [2, 0, 1]
    """
    if isinstance(bounds, range):  # units are tokens
        return units
    return [index for unit in units for index in range(bounds[unit], bounds[unit + 1])]


def draw_even_spans(units: int, covered: int, most: int, rng: np.random.Generator) -> list[range]:
    """Draws spans of units that don't overlap and whose lengths differ by at most one, in the order of the text.

    Args:
        units: Number of units of the text.
        covered: Number of units in all spans.
        most: Number of spans; if ``covered`` is less, there are ``covered`` spans.
        rng: Generator of the draws.

    Example:
        >>> sorted(map(len, draw_even_spans(39, covered=10, most=4, rng=np.random.default_rng(0))))
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


def delete_tokens(tokens: Tokens, indices: Collection[int], mark: int | None = None) -> Tokens:
    """Deletes tokens of a text, and optionally replaces each sequence of deleted tokens by a mark.

    The mark has the word and the position of the first deleted token, and no label. It is merged with marks next
    to it.

    Args:
        tokens: Tokens of the text.
        indices: Indices of the tokens to delete.
        mark: Token id of the mark; None for no mark.

    Example:
        >>> delete_tokens(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), {0, 1, 3}, mark=9).ids
        (9, 7, 9)
    """
    if not indices:
        return tokens
    is_marked = [False] * len(tokens)
    for index in indices:
        is_marked[index] = True
    if mark is None:
        return tokens.take([index for index, is_gone in enumerate(is_marked) if not is_gone])
    if mark in tokens.ids:
        is_marked = [is_gone or token == mark for is_gone, token in zip(is_marked, tokens.ids, strict=True)]
    return _insert_marks(tokens, is_marked, mark)


def merge_marks(tokens: Tokens, mark: int) -> Tokens:
    """Replaces each sequence of marks of deleted tokens by a single mark.

    Args:
        tokens: Tokens of the text.
        mark: Token id of the mark.

    Example:
        >>> merge_marks(Tokens(ids=(9, 9, 7), words=(0, 3, 2)), mark=9).ids
        (9, 7)
    """
    is_marked = [token == mark for token in tokens.ids]
    return _insert_marks(tokens, is_marked, mark) if any(map(and_, is_marked, is_marked[1:])) else tokens


def _insert_marks(tokens: Tokens, is_marked: Sequence[bool], mark: int) -> Tokens:
    ids, words, positions, labels = tokens.ids, tokens.words, tokens.positions, tokens.labels
    indices = [i for i, is_mark in enumerate(is_marked) if not (is_mark and i and is_marked[i - 1])]
    return Tokens(
        ids=tuple([mark if is_marked[i] else ids[i] for i in indices]),
        words=tuple([words[i] for i in indices]),
        positions=positions and tuple([positions[i] for i in indices]),
        labels=labels and tuple([NO_LABEL if is_marked[i] else labels[i] for i in indices]),
    )


class _Deletion(TokenView):
    """Base class of views that delete tokens or words, and may insert a mark for each deleted sequence."""

    def __init__(self, rate: float, mark: str | None, unit: Unit) -> None:
        where = type(self).__name__
        if mark == "":
            raise InvalidValueError(f"{where}.mark: expected a token such as [DEL], got ''; set None for no mark")
        self.rate = fraction(f"{where}.rate", rate)
        self.mark = mark
        self.unit: Unit = one_of(f"{where}.unit", unit, Unit)
        self.new_tokens = () if mark is None else (mark,)
        self._mark_id: int | None = None

    def build(self, vocabulary: Vocabulary) -> None:
        """Stores the token id of the mark for deleted tokens."""
        self._mark_id = None if self.mark is None else vocabulary.added[self.mark]

    def _delete_units(self, tokens: Tokens, bounds: Sequence[int], units: Sequence[int]) -> Tokens:
        if self.mark is not None and self._mark_id is None:
            raise RuntimeError(f"{type(self).__name__}: expected build(vocabulary) before the first call")
        return delete_tokens(tokens, unit_indices(bounds, units), self._mark_id)


class DeleteTokens(_Deletion):
    """Deletes a random share of the tokens or words of a text.

    ``round(rate * n)`` of n units are deleted, but at least one remains: of 1, 2 or 3 units at a rate of 0.7, 0,
    1 and 2 are deleted. With ``mark``, each deleted sequence is replaced by a mark. Source: word deletion of Wu
    et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3 (rate 0.7, mark [DEL], tokens), and of Gao
    et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), table 1 (no mark, words).

    Args:
        rate: Share of the units to delete.
        mark: Token that replaces each deleted sequence, such as [DEL]; None for no mark.
        exact: Whether the share is exact. If false, each unit is deleted independently with probability ``rate``.
        unit: Unit to delete: ``token`` or ``word``.

    Raises:
        ValueError: ``rate`` is outside [0, 1], ``mark`` is empty, or ``unit`` is unknown.

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
        """Returns the tokens that are not deleted, in order, with marks."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        # A binomial number of units with equally likely choices is one independent draw per unit.
        target = round(self.rate * units) if self.exact else int(rng.binomial(units, self.rate))
        count = min(target, units - 1)
        if count <= 0:
            return tokens
        return self._delete_units(tokens, bounds, rng.permutation(units)[:count].tolist())


class DeleteSpans(_Deletion):
    """Deletes random spans of tokens or words of a text.

    All spans together have ``round(spans * rate * n)`` of n units, at least one unit and not all. They don't
    overlap, and their lengths differ by at most one. If there are fewer units to delete than spans, single units
    are deleted. Marks are as in ``DeleteTokens``. Source: span deletion of Wu et al. 2020, CLEAR
    (https://arxiv.org/abs/2012.15466), section 3.3, 5 spans of 5 %. The paper doesn't define how a share becomes
    a number. If each span were rounded down, 13 % of 39 tokens would be deleted; with at least one token per
    span, all of 5 tokens. Here 26 % of 39 and 20 % of 5 tokens are deleted.

    Args:
        spans: Number of spans.
        rate: Mean length of a span, as a share of the text; 0 deletes nothing.
        mark: Token that replaces each deleted sequence; None for no mark.
        unit: Unit of the spans: ``token`` or ``word``.

    Raises:
        ValueError: ``spans`` is below 0, ``rate`` is outside [0, 1], ``mark`` is empty, or ``unit`` is unknown.

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
        self.spans = at_least("DeleteSpans.spans", spans, 0, "5 is CLEAR's")

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens that are not deleted, in order, with marks."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        portion = self.spans * self.rate
        if portion == 0 or units < 2:
            return tokens
        count = min(max(round(portion * units), 1), units - 1)
        span_units = [unit for span in draw_even_spans(units, count, most=self.spans, rng=rng) for unit in span]
        return self._delete_units(tokens, bounds, span_units)


class DeleteOneWord(TokenView):
    """Deletes a random word of a text; a text of one word is unchanged.

    Source: "delete one word" of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), table 1.

    Example:
        >>> DeleteOneWord()(Tokens(ids=(5, 6, 7), words=(0, 0, 1)), np.random.default_rng(0)).ids
        (5, 6)
    """

    unit: Unit = "word"

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of the words that are not deleted, in order."""
        bounds = unit_bounds(tokens, self.unit)
        words = len(bounds) - 1
        return tokens if words < 2 else delete_tokens(tokens, unit_indices(bounds, [int(rng.integers(words))]))


class CropTokens(TokenView):
    """Keeps a random span of a text and deletes the tokens before and after it.

    ``round(rate * n)`` of n tokens are deleted, but at least one remains. Source: the crop of Gao et al. 2021,
    SimCSE (https://arxiv.org/abs/2104.08821), table 1.

    Args:
        rate: Share of the tokens to delete.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> CropTokens(rate=0.5)(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), np.random.default_rng(0)).ids
        (7, 8)
    """

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = fraction("CropTokens.rate", rate)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of a random span of the text."""
        length = max(len(tokens) - round(self.rate * len(tokens)), 1)
        if length >= len(tokens):
            return tokens
        start = int(rng.integers(len(tokens) - length + 1))
        return tokens.take(range(start, start + length))


def exchange_spans(bounds: Sequence[int], pairs: Iterable[tuple[range, range]]) -> Sequence[int]:
    """Returns the order of token indices after the two spans of each pair are exchanged.

    Args:
        bounds: Index of the first token of each unit, and the length of the text.
        pairs: Pairs of spans of units; no two spans overlap.

    Example:
        >>> exchange_spans([0, 2, 3, 4, 5], [(range(0, 1), range(2, 3))])
        [3, 2, 0, 1, 4]
    """
    moves = [move for a, b in pairs for move in ((a, b), (b, a))]
    order: list[int] = []
    start = 0
    for old, new in sorted(moves, key=lambda move: move[0].start):
        order += [*range(start, old.start), *new]
        start = old.stop
    return unit_indices(bounds, [*order, *range(start, len(bounds) - 1)])


class ReorderSpans(TokenView):
    """Exchanges random pairs of spans of tokens or words of a text.

    All spans together have ``round(2 * pairs * rate * n)`` of n units, at least two. They don't overlap, and
    their lengths differ by at most one. A text with fewer units to move has fewer pairs. Marks of earlier
    deletions move like other tokens; neighboring marks are merged. Source: reordering of Wu et al. 2020, CLEAR
    (https://arxiv.org/abs/2012.15466), section 3.3, 5 pairs of spans of about 5 %.

    Args:
        pairs: Number of pairs of spans.
        rate: Mean length of a span, as a share of the text; 0 moves nothing.
        unit: Unit of the spans: ``token`` or ``word``.
        mark: Token of earlier deletions whose sequences are merged; None for no merging.

    Raises:
        ValueError: ``pairs`` is below 0, ``rate`` is outside [0, 1], or ``unit`` is unknown.

    Example:
        >>> tokens = Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3))
        >>> ReorderSpans(pairs=1, rate=0.5)(tokens, np.random.default_rng(0)).ids
        (7, 8, 5, 6)
    """

    def __init__(
        self, pairs: int = 5, rate: float = 0.05, unit: Unit = "token", mark: str | None = "[DEL]"
    ) -> None:
        self.pairs = at_least("ReorderSpans.pairs", pairs, 0, "5 is CLEAR's")
        self.rate = fraction("ReorderSpans.rate", rate)
        self.unit: Unit = one_of("ReorderSpans.unit", unit, Unit)
        self.mark = mark
        self._mark_id: int | None = None

    def build(self, vocabulary: Vocabulary) -> None:
        """Stores the token id of the mark for deleted tokens, if another view has added it."""
        self._mark_id = None if self.mark is None else vocabulary.added.get(self.mark)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns all tokens of the text in their new order, with neighboring marks merged."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        portion = 2 * self.pairs * self.rate
        if portion == 0 or units < 2:
            return tokens
        count = min(max(round(portion * units), 2), units)
        spans = draw_even_spans(units, count, most=min(2 * self.pairs, count // 2 * 2), rng=rng)
        shuffled = [spans[i] for i in rng.permutation(len(spans)).tolist()]
        new_tokens = tokens.take(exchange_spans(bounds, zip(shuffled[::2], shuffled[1::2], strict=True)))
        return new_tokens if self._mark_id is None else merge_marks(new_tokens, self._mark_id)


class RepeatTokens(TokenView):
    """Repeats random tokens or words of a text in place, so that its two views differ in length (ESimCSE).

    In a row of L tokens, including special tokens, fewer than ``min(most, int(rate * L))`` tokens are repeated;
    all numbers are equally likely. They are drawn without replacement, and never include special tokens. The row
    may then be longer than the encoder's ``max_length``, up to the limit of the network. Source: word repetition
    of Wu et al. 2022, ESimCSE (https://arxiv.org/abs/2109.04380), section 3.1, as in the authors' code
    (caskcsg/sentemb, ``train.py``, ``--dup_type bpe``).

    With ``unit: word``, fewer than ``min(most, n, max(2, int(rate * n)))`` of n words are repeated, and never the
    last word (``--dup_type word``).

    Differs: the paper repeats up to ``max(2, int(rate * n))`` of n sub-words, this number included, without
    ``most``. The authors' code excludes the number, so that a row of up to 6 tokens is unchanged, as here. The
    authors draw once when the data are read; here every epoch has new draws. Their words are separated by blanks;
    here the tokenizer separates them, and punctuation is a word.

    Args:
        rate: Upper bound on the number of repeated units, exclusive, as a share of the row; 0 repeats nothing.
        most: Upper bound on the number of repeated units, exclusive.
        unit: Unit to repeat: ``token`` or ``word``.

    Raises:
        ValueError: ``rate`` is outside [0, 1], ``most`` is below 1, or ``unit`` is unknown.

    Example:
        >>> view = RepeatTokens(rate=0.5)
        >>> view.build(Vocabulary(size=10, prefix=1, suffix=1))
        >>> view(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), np.random.default_rng(3)).ids
        (5, 5, 6, 7, 7, 8)
    """

    def __init__(self, rate: float = 0.32, most: int = 10, unit: Unit = "token") -> None:
        self.rate = fraction("RepeatTokens.rate", rate)
        self.most = at_least(
            "RepeatTokens.most", most, 1, "fewer units than most are repeated, and ESimCSE has 10"
        )
        self.unit: Unit = one_of("RepeatTokens.unit", unit, Unit)
        self._specials = 0

    def build(self, vocabulary: Vocabulary) -> None:
        """Stores the number of special tokens, which are part of a row's length."""
        self._specials = vocabulary.prefix + vocabulary.suffix

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of the text with some tokens or words repeated."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        bound = min(self.most, self._rate_bound(units))
        count = int(rng.integers(bound)) if bound > 0 and self.rate > 0 else 0
        if count == 0:
            return tokens
        # The last word is never repeated. With a rate near 1 there may be fewer tokens than ``count``.
        repeats = set(rng.permutation(units - (self.unit == "word"))[:count].tolist())
        return tokens.take(unit_indices(bounds, [i for i in range(units) for _ in range(1 + (i in repeats))]))

    def _rate_bound(self, units: int) -> int:
        """Returns the exclusive upper bound on the number of repeated units that ``rate`` sets."""
        if self.unit == "token":
            return int(self.rate * (units + self._specials)) if units else 0
        return min(units, max(2, int(self.rate * units)))


class ShufflePositions(TokenView):
    """Shuffles the positions of a text's tokens, which changes only their position embeddings.

    The order of the token ids and the positions of padding don't change. Positions that an earlier view has set
    are shuffled. Source: Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2 "token
    shuffling", and the authors' code.

    Differs: their code gives RoBERTa positions from 0, although 1 is the position of padding. Here positions
    count from 0, and the encoder shifts them to the start of its position table.

    Args:
        specials: Whether positions of special tokens are shuffled too, as in the authors' code.

    Example:
        >>> tokens = Tokens(ids=(2, 7, 8, 9, 3), words=(-1, 0, 1, 2, -1))
        >>> ShufflePositions(specials=False)(tokens, np.random.default_rng(0)).positions
        (0, 3, 1, 2, 4)
    """

    after_specials: ClassVar[bool] = True
    sets_positions: ClassVar[bool] = True

    def __init__(self, specials: bool = True) -> None:
        self.specials = specials

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of the text with shuffled ``positions``."""
        before = tuple(range(len(tokens))) if tokens.positions is None else tokens.positions
        indices = [i for i, word in enumerate(tokens.words) if self.specials or word != NO_WORD]
        after = list(before)
        for index, source in zip(indices, rng.permutation(len(indices)).tolist(), strict=True):
            after[index] = before[indices[source]]
        return Tokens(ids=tokens.ids, words=tokens.words, positions=tuple(after), labels=tokens.labels)
