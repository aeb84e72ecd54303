"""Hard negative mining: the texts nearest to a query that are neither its positives nor their near-duplicates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, at_least, fraction, one_of
from contrastive_text.core.random import fold_key, generator, text_id
from contrastive_text.core.similarity import EPSILON, at_least_float32, full_precision, unit_vectors
from contrastive_text.core.storage.text_files import lone_surrogate
from contrastive_text.data.files.readers import TextsDigest
from contrastive_text.inference.search import top_k

Ranks: TypeAlias = Literal["before", "after"]
Take: TypeAlias = Literal["top", "random"]
Short: TypeAlias = Literal["drop", "keep"]
_BLOCK_NUMBERS = 1 << 22
"""Largest count of numbers in the candidates' vectors of a block of queries: 16 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Mining:
    """Rules that select the hard negatives of a query.

    Candidates are the ``range_max`` texts of the corpus that are nearest to the query. The query itself and all
    its positives, those of its other rows (siblings) included, are no candidates. The margins, score bounds and
    ``same`` then remove candidates, and ``range_min`` skips the nearest ones. Source: NV-Retriever (Moreira et
    al. 2024, https://arxiv.org/abs/2407.15831), whose best rule is ``relative_margin=0.05``. Rules and defaults
    follow sentence-transformers' ``mine_hard_negatives``.

    Differs: sentence-transformers applies ``range_min`` after removal, and keeps near-duplicates of a positive.

    Args:
        negatives: Largest number of negatives of a query.
        range_min: Number of nearest candidates to skip.
        range_max: Number of candidates, nearest first; None for ``range_min`` plus ten times ``negatives``.
        ranks: Whether ``range_min`` counts candidates ``before`` or ``after`` some are removed.
        absolute_margin: Removes candidates with a score above the lowest score of the query's positives minus
            this margin.
        relative_margin: Removes candidates with a score above the lowest score of the query's positives minus
            this share of that score.
        max_score: Removes candidates with a score above this bound.
        min_score: Removes candidates with a score below this bound.
        same: Removes candidates whose cosine with a positive of the query is at least this bound
            (near-duplicates); None to keep them.
        take: Whether to take the nearest remaining candidates (``top``) or ``random`` ones.
        seed: Seed of the random draws. The draws of a query depend on no other query.
        short: Whether to ``drop`` or ``keep`` the rows of a query with fewer than ``negatives`` negatives.

    Raises:
        ValueError: A number is out of range, or ``range_min`` and ``range_max`` leave too few candidates.

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
        fraction("mine.same", self.same, "try 0.97", with_zero=False)
        one_of("mine.ranks", self.ranks, Ranks)
        one_of("mine.take", self.take, Take)
        one_of("mine.short", self.short, Short)

    @property
    def depth(self) -> int:
        """Number of nearest texts of a query that are candidates for hard negatives."""
        return self.range_min + 10 * self.negatives if self.range_max is None else self.range_max


class PairTexts:
    """Distinct queries with their positives, and the corpus of distinct texts in which negatives are searched.

    A query has the positives of all its rows. The corpus has the given texts, followed by all positives.

    Args:
        pairs: Query and positive of each row.
        corpus: Texts in addition to the positives.

    Attributes:
        queries: Distinct queries, Q.
        corpus: Distinct texts, C.
        positives: Corpus indices of each query's positives.
        query_ids: Corpus index of the text equal to each query; -1 if there is none.

    Raises:
        TypeError: A text is not a string.
        ValueError: There is no pair, or a text has the character U+0000 or half a surrogate pair.

    Example:
        >>> texts = PairTexts([("who?", "me"), ("who?", "you"), ("why?", "so")], corpus=["so", "who?"])
        >>> texts.queries, texts.corpus, texts.positives, texts.query_ids
        (['who?', 'why?'], ['so', 'who?', 'me', 'you'], [[2, 3], [0]], [1, -1])
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], corpus: Iterable[str] = ()) -> None:
        indices: dict[str, int] = {}
        for number, text in enumerate(corpus):
            indices.setdefault(_check_text(text, f"text {number} of the corpus"), len(indices))
        positives: dict[str, dict[int, None]] = {}
        for number, (query, positive) in enumerate(pairs):
            index = indices.setdefault(_check_text(positive, f"pair {number}"), len(indices))
            positives.setdefault(_check_text(query, f"pair {number}"), {})[index] = None
        if not positives:
            raise InvalidValueError("mine: expected pairs of a query and a positive, got no pair")
        self.queries = list(positives)
        self.corpus = list(indices)
        self.positives = list(map(list, positives.values()))
        self.query_ids = [indices.get(query, -1) for query in positives]


def digest_texts(texts: Iterable[str]) -> str:
    """Returns the digest of texts in their order, 32 hex digits."""
    digest = TextsDigest()
    for text in texts:
        digest.add(text.encode())
    return digest.hexdigest()


def _check_text(text: object, where: str) -> str:
    """Returns a text that training can read. Raises InvalidTypeError or InvalidValueError for others."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"mine: expected texts, got {type(text).__name__} in {where}")
    if "\0" in text:
        raise InvalidValueError(
            f"mine: expected texts without the character U+0000, which training refuses, got "
            f"{text[:60]!r} in {where}; remove it"
        )
    if (surrogate := lone_surrogate(text)) is not None:
        raise InvalidValueError(
            f"mine: expected texts that UTF-8 can hold, got {surrogate} of a text in {where}; correct or remove "
            f"the text"
        )
    return text


class Space(NamedTuple):
    """Vectors of queries and corpus by one model, of any length. They may be memory-mapped files.

    Args:
        queries: Vectors of the queries, (Q, D).
        corpus: Vectors of the corpus, (C, D).
    """

    queries: Tensor
    corpus: Tensor


class Nearest(NamedTuple):
    """Texts of the corpus that are nearest to each query, best first.

    Args:
        scores: Cosines, (n, k).
        ids: Corpus indices, (n, k).
    """

    scores: Tensor
    ids: Tensor


class PairScores(NamedTuple):
    """Scores of the candidates and positives of queries by a reranker, which reads two texts in one sequence.

    Args:
        found: The texts nearest to the queries, n rows.
        candidates: Scores of these texts, (n, k). The scores of other texts than candidates are ignored.
        positives: Scores of each query's positives, in their order, (n, p), padded with any number.
    """

    found: Nearest
    candidates: Tensor
    positives: Tensor


class Mined(NamedTuple):
    """Mined hard negatives of one query, with their scores.

    Args:
        query: Index of the query.
        positives: Scores of the query's positives, in their order.
        negatives: Corpus indices of the negatives, best first; at most ``Mining.negatives``.
        scores: Scores of the negatives.
    """

    query: int
    positives: list[float]
    negatives: list[int]
    scores: list[float]


Removed: TypeAlias = Counter[str]
"""Reason -> number of removed candidates; ``candidates`` -> number of all candidates. The reasons, in the order
in which they are checked: siblings, equal, near, absolute_margin, relative_margin, max_score, min_score."""


def nearest(
    texts: PairTexts, space: Space, mining: Mining, queries: range, device: torch.device | None = None
) -> Nearest:
    """Searches the corpus for the texts nearest to a range of queries, including positives and the queries.

    Args:
        texts: Queries, corpus and positives.
        space: Vectors that are searched.
        mining: Rules for negatives, which bound the number of candidates.
        queries: Indices of the queries.
        device: Device of the search; None for the vectors' device.
    """
    most = max(len(texts.positives[place]) for place in queries)
    count = min(mining.depth + most + 1, len(texts.corpus))
    return Nearest(*top_k(space.queries[queries.start : queries.stop].to(device), space.corpus, count))


@torch.no_grad()
def candidate_pairs(texts: PairTexts, found: Nearest, mining: Mining, queries: range) -> tuple[Tensor, Tensor]:
    """Returns masks of the candidates and of the positives of queries: the pairs that a reranker must score.

    Args:
        texts: Queries, corpus and positives.
        found: Texts nearest to the queries.
        mining: Rules for negatives.
        queries: Indices of the queries.

    Returns:
        True for each nearest text that is a candidate, (n, k); and the corpus indices of the positives of each
        query, padded with -1, (n, p).
    """
    positives, own = _positives_and_own(texts, queries, found.ids.device)
    is_candidate, *_ = _kinds(found.ids, positives, own, mining)
    return is_candidate, positives


@torch.no_grad()
def mine(
    texts: PairTexts,
    space: Space,
    mining: Mining,
    queries: range,
    rescored: Space | PairScores | None = None,
    device: torch.device | None = None,
) -> tuple[list[Mined], Removed]:
    """Finds the hard negatives of a range of queries by exact search.

    Args:
        texts: Queries, corpus and positives.
        space: Vectors that are searched, and whose cosines tell near-duplicates.
        mining: Rules for negatives.
        queries: Indices of the queries. The negatives of a query depend on no other query.
        rescored: Vectors of another model, whose cosines score and order the candidates, or the scores of a
            reranker; None for ``space``.
        device: Device of the search; None for the vectors' device.

    Returns:
        Negatives of each query, and the number of candidates that each reason removed.

    Raises:
        ValueError: The number of vectors differs from the number of texts, or a vector is not finite.

    Example:
        >>> texts = PairTexts([("a", "b"), ("c", "d")])
        >>> space = Space(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.1], [0.6, 0.8]]))
        >>> negatives, removed = mine(texts, space, Mining(negatives=1, same=None), range(2))
        >>> [(mined.query, mined.negatives) for mined in negatives], removed["candidates"]
        ([(0, [1]), (1, [0])], 2)
    """
    for vectors in (space, rescored if isinstance(rescored, Space) else space):
        if (len(vectors.queries), len(vectors.corpus)) != (len(texts.queries), len(texts.corpus)):
            raise InvalidValueError(
                f"mine: expected vectors of {len(texts.queries)} queries and {len(texts.corpus)} texts, got "
                f"{len(vectors.queries)} and {len(vectors.corpus)}; encode the texts of these pairs"
            )
    found = rescored.found if isinstance(rescored, PairScores) else nearest(texts, space, mining, queries, device)
    removed: Removed = Counter()
    negatives: list[Mined] = []
    most = max(len(texts.positives[place]) for place in queries)
    size = max(_BLOCK_NUMBERS // ((found.ids.shape[1] + most) * space.corpus.shape[1]), 1)
    for start in range(0, len(queries), size):
        part = slice(start, start + size)
        judge = rescored
        if isinstance(rescored, PairScores):
            judge = PairScores(found, rescored.candidates[part], rescored.positives[part])
        block = Nearest(found.scores[part], found.ids[part])
        negatives += _choose(texts, space, judge, block, queries[part], mining, removed)
    return negatives, removed


def _positives_and_own(texts: PairTexts, places: range, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the corpus indices of the positives of queries, padded with -1, and of the queries themselves."""
    positives = [torch.tensor(texts.positives[place]) for place in places]
    padded = torch.nn.utils.rnn.pad_sequence(positives, batch_first=True, padding_value=-1)
    own = torch.tensor([texts.query_ids[place] for place in places], device=device).unsqueeze(1)
    return padded.to(device), own


def _kinds(ids: Tensor, positives: Tensor, own: Tensor, mining: Mining) -> tuple[Tensor, Tensor, Tensor]:
    """Returns masks of the candidates, the positives and the query itself among nearest texts, (n, k) each."""
    is_positive = (ids.unsqueeze(2) == positives.unsqueeze(1)).any(dim=2)
    is_equal = (ids == own) & ~is_positive
    is_allowed = ~(is_positive | is_equal)
    return is_allowed & (is_allowed.cumsum(dim=1) <= mining.depth), is_positive, is_equal


def _choose(
    texts: PairTexts,
    space: Space,
    rescored: Space | PairScores | None,
    found: Nearest,
    places: range,
    mining: Mining,
    removed: Removed,
) -> list[Mined]:
    """Chooses hard negatives among the texts nearest to a block of queries. Counts the others in ``removed``."""
    scores, ids = found
    positives, own = _positives_and_own(texts, places, ids.device)
    if isinstance(rescored, PairScores):
        scores = rescored.candidates.to(ids.device)
        positive_scores = rescored.positives.to(ids.device)[:, : positives.shape[1]]
    else:
        positive_scores = _cosines(rescored or space, places, positives)
        scores = scores if rescored is None else _cosines(rescored, places, ids)
    positive_scores = positive_scores.masked_fill(positives < 0, math.inf)
    is_candidate, is_positive, is_equal = _kinds(ids, positives, own, mining)
    has_siblings = (positives >= 0).sum(dim=1, keepdim=True) > 1
    removed["siblings"] += int((is_positive & has_siblings).sum())
    removed["equal"] += int(is_equal.sum())
    removed["candidates"] += int(is_candidate.sum())
    near = _near(space, ids, positives, mining.same)
    # Sorts candidates first, best first. The stable sort keeps the order of the search in a tie.
    scores, order = scores.masked_fill(~is_candidate, -math.inf).sort(dim=1, descending=True, stable=True)
    ids, mask, near = ids.gather(1, order), is_candidate.gather(1, order), near.gather(1, order)
    rank = mask.cumsum(dim=1) - 1
    lowest = positive_scores.min(dim=1, keepdim=True).values
    for name, condition in _conditions(scores, lowest, near, mining):
        removed[name] += int((condition & mask).sum())
        mask = mask & ~condition
    if mining.ranks == "after":
        rank = mask.cumsum(dim=1) - 1
    mask = mask & (rank >= mining.range_min)
    rows = zip(places, positive_scores.tolist(), _masked(ids, mask), _masked(scores, mask), strict=True)
    return [
        Mined(
            query,
            of_positives[: len(texts.positives[query])],
            *_take(row_ids, row_scores, texts.queries[query], mining),
        )
        for query, of_positives, row_ids, row_scores in rows
    ]


def _cosines(space: Space, places: range, ids: Tensor) -> Tensor:
    """Returns the cosine of each query with texts of the corpus, ids (n, k) -> (n, k)."""
    queries = unit_vectors(space.queries[places.start : places.stop].to(ids.device))
    with full_precision(ids.device):
        return torch.einsum("nd,nkd->nk", queries, _vectors(space, ids))


def _near(space: Space, ids: Tensor, positives: Tensor, same: float | None) -> Tensor:
    """Returns a mask of the texts that are near-duplicates of a query's positive, ids (n, k) -> (n, k)."""
    if same is None:
        return torch.zeros_like(ids, dtype=torch.bool)
    with full_precision(ids.device):
        cosines = torch.einsum("nkd,npd->nkp", _vectors(space, ids), _vectors(space, positives))
    return cosines.masked_fill((positives < 0).unsqueeze(1), -math.inf).amax(dim=2) >= same


def _vectors(space: Space, ids: Tensor) -> Tensor:
    """Returns unit vectors of texts of the corpus, ids (n, k) -> (n, k, D); any vector for the id -1."""
    rows = at_least_float32(space.corpus[ids.clamp(min=0).flatten().to(space.corpus.device)].to(ids.device))
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=EPSILON)
    return rows.div_(norms).reshape(*ids.shape, -1)  # in place: indexing made a copy


def _conditions(scores: Tensor, lowest: Tensor, near: Tensor, mining: Mining) -> Iterator[tuple[str, Tensor]]:
    """Yields the name of each mining rule with a mask of the candidates that it removes, (n, k)."""
    yield "near", near
    if mining.absolute_margin is not None:
        yield "absolute_margin", scores + mining.absolute_margin > lowest
    if mining.relative_margin is not None:
        yield "relative_margin", scores > lowest - lowest.abs() * mining.relative_margin
    if mining.max_score is not None:
        yield "max_score", scores > mining.max_score
    if mining.min_score is not None:
        yield "min_score", scores < mining.min_score


def _masked(values: Tensor, masks: Tensor) -> Iterator[list[float]]:
    """Yields for each row the list of values where the row's mask is true."""
    return (row[mask].tolist() for row, mask in zip(values.cpu(), masks.cpu(), strict=True))


def _take(
    ids: Sequence[float], scores: Sequence[float], query: str, mining: Mining
) -> tuple[list[int], list[float]]:
    """Takes the negatives of a query from its remaining candidates. Returns their ids and scores."""
    ranks = list(range(min(mining.negatives, len(ids))))
    if mining.take == "random" and len(ids) > mining.negatives:
        order = generator(fold_key(mining.seed, text_id(query))).permutation(len(ids))
        ranks = sorted(order[: mining.negatives].tolist())
    return [int(ids[rank]) for rank in ranks], [scores[rank] for rank in ranks]
