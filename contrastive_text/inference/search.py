"""Exact search: the nearest of many vectors, block by block, by cosine or by another similarity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.native import products
from contrastive_text.core.similarity import (
    EPSILON,
    at_least_float32,
    full_precision,
    similarity_matrix,
    unit_vectors,
)
from contrastive_text.data.retrieval import RetrievalSet

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Similarities of a model's vectors, with the names and values of sentence-transformers."""

BLOCK = 4096
"""Side of the largest tile of cosines in memory: 64 MiB in float32."""

_PARTS = 4
"""Number of parts of a full tile, each computed and read while caches hold it. For fewer queries each part has
more columns: a hundred small parts take a third longer."""

_WIDEST = 8
"""Blocks of a corpus at once if they have to be copied."""

_CELL = 256
"""Cosines whose maximum is compared first."""

_POWER = {"euclidean": 2.0, "manhattan": 1.0}


class Hit(NamedTuple):
    """A text that a search found.

    Args:
        corpus_id: Its place in the corpus.
        score: Its similarity to the query.

    Example:
        >>> Hit(corpus_id=3, score=0.91).corpus_id
        3
    """

    corpus_id: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class UnitVectors:
    """Checked vectors of a corpus at length 1, prepared once for many searches in a third of the time each.

    Args:
        values: (C, D), in float32, or float64. ``of`` stores each feature of all vectors contiguously, which is
            the fastest order for a single query.

    Example:
        >>> corpus = UnitVectors.of(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> nearest("cosine", torch.tensor([[1.0, 0.0]]), corpus, k=1)
        [[Hit(corpus_id=1, score=1.0)]]
    """

    values: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, vectors: Tensor | Sequence[Tensor], device: torch.device | None = None) -> UnitVectors:
        """Returns a copy of vectors at unit length.

        Args:
            vectors: (C, D), or several matrices with its rows in order.
            device: Device of the search; None for the vectors' own.

        Raises:
            ValueError: Not matrices of floating-point numbers, of as many features each, or a value that is not
                finite.
        """
        parts = [vectors] if isinstance(vectors, Tensor) else vectors
        for part in parts:
            check_vectors("corpus", part)
            if part.shape[1] != parts[0].shape[1]:
                raise InvalidValueError(
                    f"corpus: expected {parts[0].shape[1]} features in every part, as the first has, got "
                    f"{part.shape[1]}; encode all with one model"
                )
        place = device or parts[0].device
        dtype = reduce(torch.promote_types, (part.dtype for part in parts), torch.float32)
        by_feature = torch.empty(parts[0].shape[1], sum(map(len, parts)), dtype=dtype, device=place)
        before = 0
        for part in parts:
            for start, units in unit_blocks("corpus", part, BLOCK, place, before):
                by_feature[:, start : start + len(units)] = units.T
            before += len(part)
        return cls(by_feature.T)


@torch.no_grad()
def top_k(
    queries: Tensor, corpus: Tensor | Sequence[Tensor] | UnitVectors, k: int, block: int = BLOCK
) -> tuple[Tensor, Tensor]:
    """Returns the k vectors of a corpus that are nearest to each query by cosine, exactly.

    Cosines are computed in float32 (float64 if both sides are), for half-precision vectors too, on the queries'
    device. A tile of at most block x block, with fewer queries and more columns, is in memory at a time. The
    corpus may be a memory-mapped file larger than memory. Of equal cosines the lower id comes first. A zero
    vector has cosine 0 with everything. Another block size rounds cosines differently, by some 1e-7.

    Args:
        queries: (Q, D).
        corpus: (C, D), or several matrices with its rows in order, or one prepared for many searches.
        k: Vectors for each query; all of the corpus if it has fewer.
        block: Queries, and vectors of the corpus, at once.

    Returns:
        Cosines and ids (places in the corpus), best first, (Q, min(k, C)) each.

    Raises:
        ValueError: Shapes that don't fit, integers, a value that is not finite, or k or block below 1.

    Example:
        >>> corpus = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
        >>> scores, ids = top_k(torch.tensor([[1.0, 0.0]]), corpus, k=3)
        >>> scores, ids
        (tensor([[1.0000, 1.0000, 0.6000]]), tensor([[1, 2, 3]]))
    """
    is_ready = isinstance(corpus, UnitVectors)
    whole = corpus.values if isinstance(corpus, UnitVectors) else corpus
    parts = [whole] if isinstance(whole, Tensor) else whole
    at_least("block", block, 1)
    _check_searched(queries, parts, k)
    exact = all(each.dtype == torch.float64 for each in (queries, *parts))
    dtype = torch.float64 if exact else torch.float32
    width = min(k, sum(map(len, parts)))
    scores, ids = [queries.new_empty(0, width, dtype=dtype)], [_ids(queries, 0, width)]
    with full_precision(queries.device):
        for _, rows in unit_blocks("queries", queries, block):
            wide = max(1, block // _PARTS) * max(1, block // len(rows))
            wide = wide if is_ready else min(wide, _WIDEST * block)
            found = _nearest(rows.to(dtype), _columns(parts, wide, rows.device, dtype, is_ready), k)
            scores.append(found[0])
            ids.append(found[1])
    return torch.cat(scores), torch.cat(ids)


def _columns(
    parts: Sequence[Tensor], block: int, device: torch.device, dtype: torch.dtype, is_ready: bool
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Yields blocks of a corpus with the start of each, and the factor of its cosines; None for 1.

    The factor is the inverse of the vectors' lengths, so that the vectors aren't copied.
    """
    before = 0
    for part in parts:
        for start in range(0, len(part), block):
            columns = at_least_float32(part[start : start + block].to(device))
            if is_ready:
                yield before + start, columns.to(dtype), None
                continue
            norms = torch.linalg.vector_norm(columns, dim=1)
            if columns.dtype == dtype and norms.isfinite().all():
                yield before + start, columns, norms.clamp_(min=EPSILON).reciprocal_()
                continue
            for offset, units in unit_blocks("corpus", columns, block, before=before + start):
                yield offset, units.to(dtype), None
        before += len(part)


def _nearest(
    queries: Tensor, columns: Iterator[tuple[int, Tensor, Tensor | None]], k: int
) -> tuple[Tensor, Tensor]:
    """Returns the best of the whole corpus for some unit vectors, (Q, D)."""
    scores, ids = queries.new_empty(len(queries), 0), _ids(queries, len(queries), 0)
    for start, vectors, inverse in columns:
        cosines = products(queries, vectors)
        if inverse is not None:
            cosines *= inverse
        new_scores, places = _best(cosines, k) if scores.shape[1] < k else _above(cosines, scores[:, -1:], k)
        del cosines  # the next tile takes its place, where caches have it
        scores, ids = _merged(scores, ids, new_scores, places + start, k)
    return scores, ids


def _merged(scores: Tensor, ids: Tensor, new_scores: Tensor, new_ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k best of the earlier and the new hits of each row."""
    # Earlier hits have lower ids and come first, and a stable sort leaves them before equal hits.
    scores, order = torch.cat([scores, new_scores], dim=1).sort(dim=1, descending=True, stable=True)
    return scores[:, :k], torch.cat([ids, new_ids], dim=1).gather(1, order)[:, :k]


def _above(scores: Tensor, least: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the scores of each row above its least score, (Q, 1), by place, padded with -inf, and their places.

    After the first tiles few scores are above it, so the maximum of each cell is compared first. If a row has
    more than k such scores, the best k of each row are returned, and some may not be above it.
    """
    size = _CELL if scores.shape[1] % _CELL == 0 else 1
    cells = scores.view(len(scores), -1, size)
    rows, numbers = (cells.amax(dim=2) > least).nonzero(as_tuple=True)
    near, within = (cells[rows, numbers] > least[rows]).nonzero(as_tuple=True)
    rows, places = rows[near], numbers[near] * size + within
    counts = rows.bincount(minlength=len(scores))
    width = int(counts.max())
    if width > k:
        return _best(scores, k)
    column = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    best = scores.new_full((len(scores), width), -torch.inf)
    best[rows, column] = scores[rows, places]
    found = places.new_zeros(len(scores), width)
    found[rows, column] = places
    return best, found


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k highest of each row and their places, the lower place first among equals."""
    best = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    places = best.indices[:, :k].sort(dim=1).values
    # If the next score equals the k-th, torch's topk has taken any of the equal ones.
    least = best.values[:, k - 1 : k]
    crowded = (least == best.values[:, k:]).any(dim=1)
    if crowded.any():
        rows, least = scores[crowded], least[crowded]
        above, equal = rows > least, rows == least
        first = equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)
        places[crowded] = (above | equal & first).nonzero()[:, 1].view(-1, k)
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


@torch.no_grad()
def nearest(
    name: SimilarityName, queries: Tensor, corpus: Tensor | Sequence[Tensor] | UnitVectors, k: int
) -> list[list[Hit]]:
    """Returns the k most similar vectors for each query, best first, the earlier vector before an equal one.

    Args:
        name: The similarity.
        queries: (Q, D).
        corpus: (C, D), or several matrices with its rows in order; for the cosine also ``UnitVectors``.
        k: Hits per query; all vectors if there are fewer.

    Raises:
        ValueError: Vectors of another width, integers, a value that is not finite, or ``k`` below 1.

    Example:
        >>> nearest("dot", torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 5.0], [2.0, 0.0]]), k=1)
        [[Hit(corpus_id=1, score=2.0)]]
    """
    if name == "cosine" or isinstance(corpus, UnitVectors):
        found = [top_k(queries, corpus, k)]
    else:
        parts = [corpus] if isinstance(corpus, Tensor) else corpus
        _check_searched(queries, parts, k)
        found = [_nearest_by(name, block, parts, k) for block in _blocks(queries)]
    return [
        list(map(Hit, *row)) for scores, ids in found for row in zip(ids.tolist(), scores.tolist(), strict=True)
    ]


def _nearest_by(name: SimilarityName, queries: Tensor, parts: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Returns the best of the whole corpus by a similarity other than the cosine."""
    scores, ids, start = queries.new_empty(len(queries), 0), _ids(queries, len(queries), 0), 0
    for columns in (block for part in parts for block in _blocks(part)):
        block = similarities(name, queries, columns.to(queries.device))
        if not bool(block.isfinite().all()):
            raise InvalidValueError(
                "search: expected finite similarities, got NaN or infinity; check the vectors of queries and "
                "corpus"
            )
        new_scores, places = _best(block, k)
        scores, ids = _merged(scores, ids, new_scores, places + start, k)
        start += len(columns)
    return scores, ids


def _blocks(vectors: Tensor) -> Iterator[Tensor]:
    return (vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK))


def _check_searched(queries: Tensor, parts: Sequence[Tensor], k: int) -> None:
    """Checks that queries and the parts of a corpus are vectors of one width, and that hits are requested."""
    at_least("k", k, 1)
    check_vectors("queries", queries)
    for part in parts:
        check_vectors("corpus", part)
        if queries.shape[1] != part.shape[1]:
            raise InvalidValueError(
                f"corpus: expected {queries.shape[1]} features, as the queries have, got {part.shape[1]}; "
                "encode both with one model"
            )


def similarities(name: SimilarityName, rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the similarity of each row with each column, (R, D) and (C, D) -> (R, C).

    Args:
        name: ``cosine``, ``dot``, or the negative distance ``euclidean`` or ``manhattan``.
        rows: (R, D).
        columns: (C, D).

    Example:
        >>> similarities("euclidean", torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[-5.]])
    """
    if name == "cosine" or name == "dot":
        return similarity_matrix(rows, columns, 1.0, similarity=name)
    with full_precision(rows.device):
        # By differences: the faster way by products has errors of 1e-3 between near vectors.
        way = "donot_use_mm_for_euclid_dist"
        wide = at_least_float32(rows), at_least_float32(columns)
        distances: Tensor = torch.cdist(*wide, p=_POWER[name], compute_mode=way)
        return distances.neg()


def pair_similarities(name: SimilarityName, first: Tensor, second: Tensor) -> Tensor:
    """Returns the similarity of each row with the row of the same number, (N, D) and (N, D) -> (N,).

    Example:
        >>> pair_similarities("manhattan", torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([-7.])
    """
    if name == "cosine":
        return (unit_vectors(first) * unit_vectors(second)).sum(dim=-1)
    first, second = at_least_float32(first), at_least_float32(second)
    if name == "dot":
        return (first * second).sum(dim=-1)
    distances: Tensor = torch.linalg.vector_norm(first - second, ord=_POWER[name], dim=-1)
    return distances.neg()


def retrieved(queries: Tensor, documents: Tensor, k: int, own: Sequence[int] | None = None) -> Tensor:
    """Returns the k documents nearest to each query by cosine, exactly, best first.

    Of equal cosines the lower number comes first. Errors are those of ``top_k``.

    Args:
        queries: (Q, D), on the device of the search.
        documents: (C, D).
        k: Places of a ranking.
        own: For each query a document to exclude; -1 for none.

    Returns:
        Numbers of documents, (Q, k), int64; -1 if there are no more.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> retrieved(vectors[:2], vectors, k=3, own=[0, -1])
        tensor([[ 2,  1, -1],
                [ 1,  2,  0]])
    """
    left_out = torch.full((len(queries),), -1) if own is None else torch.tensor(own, dtype=torch.long)
    left_out = left_out.to(queries.device)[:, None]
    found = top_k(queries, documents, k + 1)[1]
    found = torch.cat([found, found.new_full((len(found), 1), -1)], dim=1)
    last = (found == left_out).int().sort(dim=1, stable=True).indices
    found = torch.where(found == left_out, -1, found).gather(1, last)[:, :k]
    return torch.nn.functional.pad(found, (0, k - found.shape[1]), value=-1)


def retrieval_scores(
    data: RetrievalSet, queries: Tensor, documents: Tensor, figures: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Returns the retrieval scores of each query; see ``metrics.ranking_scores``.

    Args:
        data: Queries, corpus, and relevance.
        queries: Vectors of its queries, (Q, D).
        documents: Vectors of its documents, (C, D).
        figures: Names such as ``ndcg@10``; None for ``metrics.FIGURES``.

    Returns:
        Name -> its value for each query, (Q,), float64, on the CPU, in [0, 1].

    Raises:
        ValueError: Vectors of other shapes or with NaN, or another name of a figure.

    Example:
        >>> data = RetrievalSet(("a?", "b?"), ("b", "a"), ({1: 1.0}, {0: 1.0}), own=(-1, -1))
        >>> scores = retrieval_scores(data, torch.eye(2), torch.eye(2), figures=["mrr@10"])
        >>> scores["mrr@10"].tolist()
        [0.5, 0.5]
    """
    from contrastive_text.metrics import FIGURES, ranking_scores  # loads torchmetrics

    figures = FIGURES if figures is None else figures
    longest = max((int(name.rpartition("@")[2]) for name in figures), default=1)
    return ranking_scores(retrieved(queries, documents, longest, data.own), data.relevance, figures)


def unit_blocks(
    name: str, vectors: Tensor, block: int, device: torch.device | None = None, before: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Yields blocks of unit vectors with the start of each, counted from ``before``.

    Raises:
        ValueError: A value that is not finite.

    Example:
        >>> list(unit_blocks("corpus", torch.tensor([[2.0, 0.0], [0.0, 0.5]]), block=1))
        [(0, tensor([[1., 0.]])), (1, tensor([[0., 1.]]))]
    """
    for start in range(0, len(vectors), block):
        units = unit_vectors(vectors[start : start + block].to(device))
        if units.sum().isnan():  # as infinity is, over its norm
            row = before + start + int(units.isnan().any(dim=1).nonzero()[0])
            raise InvalidValueError(
                f"{name}: expected finite numbers, got others in row {row}; encode that text again"
            )
        yield before + start, units


def check_vectors(name: str, vectors: Tensor) -> None:
    """Checks that vectors are a matrix (N, D) of floating-point numbers.

    Raises:
        ValueError: Another shape, or integers.

    Example:
        >>> check_vectors("corpus", torch.ones(3))
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: corpus: expected a matrix (N, D), got the shape (3,); ...
    """
    if vectors.ndim != 2:
        raise InvalidValueError(
            f"{name}: expected a matrix (N, D), got the shape {tuple(vectors.shape)}; add an axis"
        )
    if not vectors.is_floating_point():
        raise InvalidValueError(
            f"{name}: expected floating-point vectors, got {vectors.dtype}; turn quantized ones back into numbers"
        )


def _ids(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.long, device=like.device)
