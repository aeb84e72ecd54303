"""Hard negatives of a query: its nearest texts that are neither its positives nor near-duplicates of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least, one_of, share
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.random import fold, generator, text_id
from contrastive_text.core.similarity import EPSILON, at_least_float32, full_precision, unit_vectors
from contrastive_text.core.storage.text_files import lone_surrogate
from contrastive_text.inference.search import top_k

Ranks: TypeAlias = Literal["before", "after"]
Take: TypeAlias = Literal["top", "random"]
Short: TypeAlias = Literal["drop", "keep"]
REMOVALS = ("siblings", "equal", "near", "absolute_margin", "relative_margin", "max_score", "min_score")
"""Reasons to remove a candidate, in the order in which they are checked."""
_AT_ONCE = 1 << 22
"""Numbers of candidates' vectors in memory at once: 16 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Mining:
    """Rules for the negatives of a query.

    Candidates are the ``range_max`` texts of the corpus nearest to the query that are neither equal to it nor one
    of its positives, those of its other rows (siblings) among them. Of these the margins, the bounds and ``same``
    remove some, and ``range_min`` skips the nearest. Source: NV-Retriever (Moreira et al. 2024,
    https://arxiv.org/abs/2407.15831), whose best is ``relative_margin=0.05``; rules and defaults as in
    sentence-transformers' ``mine_hard_negatives``, where nothing else is said.

    Differs: there ``range_min`` always skips what is left after removal, and near-duplicates of a positive stay.

    Args:
        negatives: Largest number of negatives of a query.
        range_min: Number of the nearest candidates that are skipped, counted by ``ranks``.
        range_max: Number of candidates, nearest first; None for ``range_min`` plus ten times ``negatives``.
        ranks: Whether ``range_min`` counts all candidates (``before`` any is removed) or those that are left
            (``after``).
        absolute_margin: Removes candidates with a score above that of the query's lowest positive less this.
        relative_margin: The same, less this share of that score.
        max_score: Removes candidates with a score above this.
        min_score: Removes candidates with a score below this.
        same: Removes near-duplicates of a positive of the query: with a cosine of this or more; None for none.
        take: The nearest of those that are left (``top``), or ``random`` ones among them.
        seed: Seed of these draws. Each query has its own draws, which depend on no other query.
        short: Whether to ``drop`` or to ``keep`` the rows of a query with fewer negatives than requested.

    Raises:
        ValueError: Numbers out of range, or that leave no candidate.

    Example:
        >>> Mining(negatives=5, relative_margin=0.05).depth
        50
    """

    negatives: int = 3
    range_min: int = 0
    range_max: int | None = None
    ranks: Ranks = "before"
    absolute_margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    same: float | None = 0.97
    take: Take = "top"
    seed: int = 42
    short: Short = "drop"

    def __post_init__(self) -> None:
        at_least("mine.negatives", self.negatives, 1)
        at_least("mine.range_min", self.range_min, 0)
        if self.depth - self.range_min < self.negatives:
            raise InvalidValueError(
                f"mine.range_max: expected room for {self.negatives} negatives after the first {self.range_min}, "
                f"so {self.range_min + self.negatives} or more, got {self.depth}"
            )
        for name in ("absolute_margin", "relative_margin"):
            at_least(f"mine.{name}", getattr(self, name), 0, "0.05 is usual")
        low = -math.inf if self.min_score is None else self.min_score
        high = math.inf if self.max_score is None else self.max_score
        if not low < high:
            raise InvalidValueError(
                f"mine.min_score: expected less than max_score ({self.max_score}), got {self.min_score}"
            )
        share("mine.same", self.same, "try 0.97", with_zero=False)
        one_of("mine.ranks", self.ranks, Ranks)
        one_of("mine.take", self.take, Take)
        one_of("mine.short", self.short, Short)

    @property
    def depth(self) -> int:
        """Number of candidates of a query."""
        return self.range_min + 10 * self.negatives if self.range_max is None else self.range_max


class PairTexts:
    """Distinct queries with their positives, which are places in a corpus of distinct texts.

    All rows of one query are its positives. The corpus has the given texts, then the positives of all queries.

    Args:
        pairs: Query and positive of each row.
        corpus: Further texts; none for the positives alone.

    Raises:
        TypeError: Something that is not text.
        ValueError: No pair, or a text with the character U+0000 or half a surrogate pair.

    Example:
        >>> texts = PairTexts([("who?", "me"), ("who?", "you"), ("why?", "so")], corpus=["so", "who?"])
        >>> texts.queries, texts.corpus, texts.positives, texts.own
        (['who?', 'why?'], ['so', 'who?', 'me', 'you'], [[2, 3], [0]], [1, -1])
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], corpus: Iterable[str] = ()) -> None:
        places: dict[str, int] = {}
        for number, text in enumerate(corpus):
            places.setdefault(_text(text, f"text {number} of the corpus"), len(places))
        found: dict[str, dict[int, None]] = {}
        for number, (query, positive) in enumerate(pairs):
            place = places.setdefault(_text(positive, f"pair {number}"), len(places))
            found.setdefault(_text(query, f"pair {number}"), {})[place] = None
        if not found:
            raise InvalidValueError("mine: expected pairs of a query and a positive, got none")
        self.queries = list(found)
        self.corpus = list(places)
        self.positives = [list(each) for each in found.values()]
        self.own = [places.get(query, -1) for query in found]

    @property
    def digest(self) -> str:
        """32 hex digits that are the same for the same queries, positives and corpus in the same order."""
        return digest_of([*map(digest_of, (self.queries, self.corpus)), repr(self.positives)])


def digest_of(texts: Iterable[str]) -> str:
    """Returns 32 hex digits that are the same for the same texts in the same order."""
    digest = blake2b(digest_size=16)
    for text in texts:
        content = text.encode()
        digest.update(b"%d " % len(content) + content)  # the length, or "ab", "c" would be "a", "bc"
    return digest.hexdigest()


def _text(text: object, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidTypeError(f"mine: expected texts, got {type(text).__name__} in {where}")
    if "\0" in text:
        raise InvalidValueError(
            f"mine: expected texts without the character U+0000, which training refuses, got "
            f"{text[:60]!r} in {where}; take it out"
        )
    if (found := lone_surrogate(text)) is not None:
        raise InvalidValueError(
            f"mine: expected texts that UTF-8 can hold, got {found} of a text in {where}; mend or drop the text"
        )
    return text


class Space(NamedTuple):
    """The vectors of one model.

    Args:
        queries: (Q, D), of any length; may be a memory-mapped file, as may the next.
        corpus: (C, D).
    """

    queries: Tensor
    corpus: Tensor


class Mined(NamedTuple):
    """Negatives of one query.

    Args:
        query: Place of the query among all queries.
        positives: Scores of the query's positives, in their order.
        negatives: Places in the corpus, best first; at most ``Mining.negatives``.
        scores: Scores of the negatives.
    """

    query: int
    positives: list[float]
    negatives: list[int]
    scores: list[float]


Removed: TypeAlias = Counter[str]
"""Reason of ``REMOVALS`` -> number of candidates that it removed; ``candidates`` -> number of all candidates."""


@torch.no_grad()
def mine(
    texts: PairTexts,
    space: Space,
    mining: Mining,
    places: range,
    rescored: Space | None = None,
    device: torch.device | None = None,
) -> tuple[list[Mined], Removed]:
    """Returns the hard negatives of some queries, by exact search.

    Args:
        texts: Queries, corpus and positives.
        space: Vectors by which the nearest texts are found, and near-duplicates known.
        mining: Rules for negatives.
        places: Places of the queries. The negatives of a query depend on no other query.
        rescored: Vectors of another model, whose cosines then score and order the candidates; None for ``space``.
        device: Device of the search; None for the vectors' own.

    Returns:
        The negatives of each query, and the number of candidates that each reason removed.

    Raises:
        ValueError: Vectors that are not finite or of other numbers than the texts.

    Example:
        >>> texts = PairTexts([("a", "b"), ("c", "d")])
        >>> space = Space(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.1], [0.6, 0.8]]))
        >>> found, removed = mine(texts, space, Mining(negatives=1, same=None), range(2))
        >>> [(each.query, each.negatives) for each in found], removed["candidates"]
        ([(0, [1]), (1, [0])], 2)
    """
    for each in (space, rescored or space):
        if (len(each.queries), len(each.corpus)) != (len(texts.queries), len(texts.corpus)):
            raise InvalidValueError(
                f"mine: expected vectors of {len(texts.queries)} queries and {len(texts.corpus)} texts, got "
                f"{len(each.queries)} and {len(each.corpus)}; encode the texts of these pairs"
            )
    most = max(len(texts.positives[place]) for place in places)
    wanted = min(mining.depth + most + 1, len(texts.corpus))
    queries = space.queries[places.start : places.stop].to(device)
    scores, ids = top_k(queries, space.corpus, wanted)
    removed: Removed = Counter()
    found: list[Mined] = []
    at_once = max(_AT_ONCE // ((wanted + most) * space.corpus.shape[1]), 1)
    for start in range(0, len(places), at_once):
        block = _Block(texts, space, rescored, places[start : start + at_once], ids.device)
        found += block.mined(scores[start : start + at_once], ids[start : start + at_once], mining, removed)
    return found, removed


class _Block:
    """Some queries, with the vectors of all that they are compared with."""

    def __init__(
        self, texts: PairTexts, space: Space, rescored: Space | None, places: range, device: torch.device
    ) -> None:
        self.texts = texts
        self.places = places
        self.space = space
        self.judge = rescored or space
        self.rescores = rescored is not None
        self.device = device
        listed = [torch.tensor(texts.positives[place]) for place in places]
        padded = torch.nn.utils.rnn.pad_sequence(listed, batch_first=True, padding_value=-1)
        self.positives = padded.to(device)
        self.own = torch.tensor([texts.own[place] for place in places], device=device).unsqueeze(1)

    def mined(self, scores: Tensor, ids: Tensor, mining: Mining, removed: Removed) -> list[Mined]:
        """Returns the negatives among the nearest texts, (n, k) each, and counts removed candidates."""
        positive_scores = self._scores(self.positives).masked_fill(self.positives < 0, math.inf)
        if self.rescores:
            scores = self._scores(ids)
        is_positive = (ids.unsqueeze(2) == self.positives.unsqueeze(1)).any(dim=2)
        is_equal = (ids == self.own) & ~is_positive
        never = is_positive | is_equal
        candidate = ~never & ((~never).cumsum(dim=1) <= mining.depth)
        several = (self.positives >= 0).sum(dim=1, keepdim=True) > 1
        removed["siblings"] += int((is_positive & several).sum())
        removed["equal"] += int(is_equal.sum())
        removed["candidates"] += int(candidate.sum())
        near = self._near(ids, mining.same)
        # Candidates first, the best of them first; in a tie the order of the search stays.
        scores, order = scores.masked_fill(~candidate, -math.inf).sort(dim=1, descending=True, stable=True)
        ids, left, near = ids.gather(1, order), candidate.gather(1, order), near.gather(1, order)
        rank = left.cumsum(dim=1) - 1
        lowest = positive_scores.min(dim=1, keepdim=True).values
        for name, condition in _conditions(scores, lowest, near, mining):
            removed[name] += int((condition & left).sum())
            left = left & ~condition
        if mining.ranks == "after":
            rank = left.cumsum(dim=1) - 1
        left = left & (rank >= mining.range_min)
        return [
            Mined(
                place,
                own[: len(self.texts.positives[place])],
                *_taken(row, found, self.texts.queries[place], mining),
            )
            for place, own, row, found in zip(
                self.places, positive_scores.tolist(), _kept(ids, left), _kept(scores, left), strict=True
            )
        ]

    def _scores(self, ids: Tensor) -> Tensor:
        """Returns the cosines of the queries and texts of the corpus, (n, k) -> (n, k)."""
        queries = unit_vectors(self.judge.queries[self.places.start : self.places.stop].to(self.device))
        with full_precision(self.device):
            return torch.einsum("nd,nkd->nk", queries, self._vectors(self.judge, ids))

    def _near(self, ids: Tensor, same: float | None) -> Tensor:
        """Returns whether texts are near-duplicates of a positive of their query, (n, k)."""
        if same is None:
            return torch.zeros_like(ids, dtype=torch.bool)
        candidates, positives = self._vectors(self.space, ids), self._vectors(self.space, self.positives)
        with full_precision(self.device):
            cosines = torch.einsum("nkd,npd->nkp", candidates, positives)
        return cosines.masked_fill((self.positives < 0).unsqueeze(1), -math.inf).amax(dim=2) >= same

    def _vectors(self, space: Space, ids: Tensor) -> Tensor:
        """Returns unit vectors of texts of the corpus, (n, k) -> (n, k, D); of -1 those of any text."""
        rows = at_least_float32(space.corpus[ids.clamp(min=0).flatten().to(space.corpus.device)].to(self.device))
        rows.div_(
            torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=EPSILON)
        )  # a copy, as indexing makes
        return rows.reshape(*ids.shape, -1)


def _conditions(scores: Tensor, lowest: Tensor, near: Tensor, mining: Mining) -> Iterator[tuple[str, Tensor]]:
    """Yields each reason with a mask of the candidates that it removes, (n, k)."""
    yield "near", near
    if mining.absolute_margin is not None:
        yield "absolute_margin", scores + mining.absolute_margin > lowest
    if mining.relative_margin is not None:
        yield "relative_margin", scores > lowest - lowest.abs() * mining.relative_margin
    if mining.max_score is not None:
        yield "max_score", scores > mining.max_score
    if mining.min_score is not None:
        yield "min_score", scores < mining.min_score


def _kept(values: Tensor, kept: Tensor) -> Iterator[list[float]]:
    """Yields for each row the values that are kept, in their order."""
    return (row[mask].tolist() for row, mask in zip(values.cpu(), kept.cpu(), strict=True))


def _taken(
    ids: Sequence[float], scores: Sequence[float], query: str, mining: Mining
) -> tuple[list[int], list[float]]:
    """Returns the negatives among the remaining candidates, with their scores."""
    chosen = list(range(min(mining.negatives, len(ids))))
    if mining.take == "random" and len(ids) > mining.negatives:
        drawn = generator(fold(mining.seed, text_id(query))).permutation(len(ids))[: mining.negatives]
        chosen = sorted(drawn.tolist())
    return [int(ids[place]) for place in chosen], [scores[place] for place in chosen]
