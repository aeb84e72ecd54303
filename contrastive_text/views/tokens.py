"""Views that delete, crop, reorder or repeat tokens or whole words, or shuffle positions.

Apart from the draws, these views are plain Python, because a call of numpy costs more than a loop over the dozen
tokens of a sentence: 4 to 14 us for 13 tokens with their generator, in place of 14 to 44 with arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import and_
from typing import ClassVar

import numpy as np

from contrastive_text.core.checks import at_least, one_of, share
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import draw_disjoint_spans
from contrastive_text.core.types import NO_LABEL, NO_WORD, Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit


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
        if mark == "":
            raise InvalidValueError(f"{where}.mark: expected a token such as [DEL], got ''; None leaves no trace")
        self.rate = share(f"{where}.rate", rate)
        self.mark = mark
        self.unit: Unit = one_of(f"{where}.unit", unit, Unit)
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
        self.spans = at_least("DeleteSpans.spans", spans, 0, "5 is CLEAR's")

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens that are left, in their order, and the marks."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        portion = self.spans * self.rate
        if portion == 0 or units < 2:
            return tokens
        covered = min(max(round(portion * units), 1), units - 1)
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
        self.rate = share("CropTokens.rate", rate)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens of the stretch."""
        length = max(len(tokens) - round(self.rate * len(tokens)), 1)
        if length >= len(tokens):
            return tokens
        start = int(rng.integers(len(tokens) - length + 1))
        return tokens.take(range(start, start + length))


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
        self.pairs = at_least("ReorderSpans.pairs", pairs, 0, "5 is CLEAR's")
        self.rate = share("ReorderSpans.rate", rate)
        self.unit: Unit = one_of("ReorderSpans.unit", unit, Unit)
        self.mark = mark
        self._mark_id: int | None = None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the id of the mark, where another view has asked for it."""
        self._mark_id = None if self.mark is None else vocabulary.added.get(self.mark)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns all tokens in their new order, runs of marks merged."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        portion = 2 * self.pairs * self.rate
        if portion == 0 or units < 2:
            return tokens
        moved = min(max(round(portion * units), 2), units)
        spans = some_spans(units, moved, most=min(2 * self.pairs, moved // 2 * 2), rng=rng)
        drawn = [spans[i] for i in rng.permutation(len(spans)).tolist()]
        ordered = tokens.take(exchange(bounds, zip(drawn[::2], drawn[1::2], strict=True)))
        return ordered if self._mark_id is None else merge_marks(ordered, self._mark_id)


class RepeatTokens(TokenView):
    """Writes some tokens or words twice, each in its place, so that two views of a text differ in length.

    Of a row of L tokens, special ones among them, fewer than ``min(most, int(rate * L))`` are repeated, each
    number equally likely; which ones is drawn without replacement, and never a special one. A row may get longer
    than the encoder's ``max_length`` by that, up to the limit of the network. Source: word repetition of Wu et
    al. 2022, ESimCSE (https://arxiv.org/abs/2109.04380), section 3.1, as the authors' code has it
    (caskcsg/sentemb, ``train.py``, ``--dup_type bpe``).

    Of n words, with ``unit: word``, fewer than ``min(most, n, max(2, int(rate * n)))`` are repeated, and never
    the last one (``--dup_type word``).

    Differs: the paper draws up to ``max(2, int(rate * n))`` of n sub-words, the last number included and without
    ``most``; the code doesn't, and a row of 6 tokens or fewer stays as it is. The authors draw once, when the
    data are read, here each epoch draws anew. Their words are parted by blanks, here by the tokenizer, for which
    punctuation is a word.

    Args:
        rate: Bound on the repeated units, as a share of the row; 0 repeats nothing.
        most: Bound on their number; neither bound is reached.
        unit: Whether tokens or whole words are repeated.

    Raises:
        ValueError: A rate outside [0, 1], fewer than 1 as ``most``, or an unknown unit.

    Example:
        >>> view = RepeatTokens(rate=0.5)
        >>> view.build(Vocabulary(size=10, prefix=1, suffix=1))
        >>> view(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), np.random.default_rng(3)).ids
        (5, 5, 6, 7, 7, 8)
    """

    def __init__(self, rate: float = 0.32, most: int = 10, unit: Unit = "token") -> None:
        self.rate = share("RepeatTokens.rate", rate)
        self.most = at_least(
            "RepeatTokens.most", most, 1, "fewer than that many units are repeated, and 10 is ESimCSE's"
        )
        self.unit: Unit = one_of("RepeatTokens.unit", unit, Unit)
        self._specials = 0

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the number of special tokens, which count in a row's length."""
        self._specials = vocabulary.prefix + vocabulary.suffix

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens, the chosen ones twice."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        below = min(self.most, self._below(units))
        count = int(rng.integers(below)) if below > 0 and self.rate > 0 else 0
        if count == 0:
            return tokens
        # Words never repeat the last one; of a rate near 1 there may be fewer tokens than are to be repeated.
        chosen = set(rng.permutation(units - (self.unit == "word"))[:count].tolist())
        return tokens.take(unit_places(bounds, [i for i in range(units) for _ in range(1 + (i in chosen))]))

    def _below(self, units: int) -> int:
        """Returns the number that a share of the row bounds its repeated units by."""
        if self.unit == "token":
            return int(self.rate * (units + self._specials)) if units else 0
        return min(units, max(2, int(self.rate * units)))


class ShufflePositions(TokenView):
    """Puts the positions of a text's tokens in random order.

    Ids keep their places; only the position embedding sees the new order, and padding keeps its own. Positions
    that an earlier view has set are shuffled as they are. Source: Yan et al. 2021, ConSERT
    (https://arxiv.org/abs/2105.11741), section 3.2 "token shuffling", and its authors' code.

    Differs: their code gives RoBERTa positions from 0, of which 1 is the padding's; here they count from 0 and
    the encoder puts them where its position table begins.

    Args:
        specials: Whether special tokens change positions too, as in the authors' code.

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
        """Returns the tokens with ``positions`` set, a permutation of what they were."""
        before = tuple(range(len(tokens))) if tokens.positions is None else tokens.positions
        moved = [i for i, word in enumerate(tokens.words) if self.specials or word != NO_WORD]
        after = list(before)
        for place, drawn in zip(moved, rng.permutation(len(moved)).tolist(), strict=True):
            after[place] = before[moved[drawn]]
        return Tokens(ids=tokens.ids, words=tokens.words, positions=tuple(after), labels=tokens.labels)
