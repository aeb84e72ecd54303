"""Exact search for the nearest vectors of a corpus, block by block, by cosine or another similarity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.machine import dot_products
from contrastive_text.core.similarity import (
    EPSILON,
    at_least_float32,
    best_columns,
    full_precision,
    similarity_matrix,
    unit_vectors,
)
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.inference.sparse import SparseVectors, comparable, is_sparse, sparse_top_k
from contrastive_text.inference.vector_files import Array

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
"""Name of a similarity of vectors, with the values of sentence-transformers."""

BLOCK = 4096
"""Number of rows and of columns of the largest tile of cosines in memory, which takes 64 MiB in float32."""

_PARTS = 4
"""Number of parts of a full tile of cosines. Each part is small enough for the processor's caches. With fewer
queries a part has more columns, because a hundred small parts take a third longer."""

_WIDEST = 8
"""Largest number of blocks of a corpus that are copied to the device at a time."""

_CELL = 256
"""Number of cosines of a cell of a search, of which the maximum is compared first."""

_POWER = {"euclidean": 2.0, "manhattan": 1.0}


class Hit(NamedTuple):
    """Text of a corpus that a search returns for a query.

    Args:
        corpus_id: Index of the text in the corpus.
        score: Similarity of the text to the query.

    Example:
        >>> Hit(corpus_id=3, score=0.91).corpus_id
        3
    """

    corpus_id: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class UnitVectors:
    """Unit vectors of a corpus, prepared once for many searches.

    A search with one query then takes 0.2 to 0.7 of the time, depending on the processor. With 1,000 queries it
    takes about as long.

    Args:
        values: Finite vectors of length 1, (C, D), in float32 or float64. ``of`` stores each feature of all
            vectors contiguously, which is the fastest order for a single query.

    Example:
        >>> corpus = UnitVectors.of(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> nearest("cosine", torch.tensor([[1.0, 0.0]]), corpus, k=1)
        [[Hit(corpus_id=1, score=1.0)]]
    """

    values: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, vectors: Tensor | Sequence[Tensor], device: torch.device | None = None) -> UnitVectors:
        """Checks vectors and stores a copy of them, scaled to unit length.

        Args:
            vectors: Vectors of the corpus, (C, D), or a list of matrices with their rows in order.
            device: Device of the search; None for the vectors' device.

        Raises:
            ValueError: A matrix has no floating-point numbers, the matrices differ in their number of features,
                or a value is not finite.
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
    """Finds the k vectors of a corpus that are nearest to each query by cosine, by exact search.

    Cosines are computed in float32 (float64 if both sides are), for half-precision vectors too, on the queries'
    device. Memory holds one tile of at most block x block cosines; with fewer queries a tile has more columns.
    The corpus may be a memory-mapped file larger than memory. Of equal cosines the lower id comes first. A zero
    vector has cosine 0 with every vector. Another block size changes only the rounding, by about 1e-7.

    Args:
        queries: Vectors of the queries, (Q, D).
        corpus: Vectors of the corpus, (C, D); a list of matrices with their rows in order; or ``UnitVectors``.
        k: Number of vectors for each query; all vectors if the corpus has fewer.
        block: Number of queries and of corpus vectors of a tile.

    Returns:
        Cosines and ids (indices in the corpus), best first, (Q, min(k, C)) each.

    Raises:
        ValueError: Shapes don't fit, vectors are integers, a value is not finite, or ``k`` or ``block`` is below
            1.

    Example:
        >>> corpus = torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
        >>> scores, ids = top_k(torch.tensor([[1.0, 0.0]]), corpus, k=3)
        >>> scores, ids
        (tensor([[1.0000, 1.0000, 0.6000]]), tensor([[1, 2, 3]]))
    """
    is_ready = isinstance(corpus, UnitVectors)
    vectors = corpus.values if isinstance(corpus, UnitVectors) else corpus
    parts = [vectors] if isinstance(vectors, Tensor) else vectors
    at_least("block", block, 1)
    _check_search(queries, parts, k)
    is_double = all(part.dtype == torch.float64 for part in (queries, *parts))
    dtype = torch.float64 if is_double else torch.float32
    width = min(k, sum(map(len, parts)))
    scores, ids = [queries.new_empty(0, width, dtype=dtype)], [_ids(queries, 0, width)]
    with full_precision(queries.device):
        for _, rows in unit_blocks("queries", queries, block):
            columns = max(1, block // _PARTS) * max(1, block // len(rows))
            columns = columns if is_ready else min(columns, _WIDEST * block)
            best = _nearest(rows.to(dtype), _columns(parts, columns, rows.device, dtype, is_ready), k)
            scores.append(best[0])
            ids.append(best[1])
    return torch.cat(scores), torch.cat(ids)


def _columns(
    parts: Sequence[Tensor], block: int, device: torch.device, dtype: torch.dtype, is_ready: bool
) -> Iterator[tuple[int, Tensor, Tensor | None]]:
    """Yields blocks of a corpus: index of the first vector, vectors, and factors of the cosines or None.

    The factors are the inverse lengths of the vectors. Scaling the cosines saves a copy of the vectors.
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
    """Returns scores and ids of the nearest vectors of all blocks for query unit vectors, (Q, D)."""
    scores, ids = queries.new_empty(len(queries), 0), _ids(queries, len(queries), 0)
    for start, vectors, inverse in columns:
        cosines = dot_products(queries, vectors)
        if inverse is not None:
            cosines *= inverse
        new_scores, places = (
            best_columns(cosines, k) if scores.shape[1] < k else _above(cosines, scores[:, -1:], k)
        )
        del cosines  # the next tile reuses its memory, which is in the caches
        scores, ids = _merge(scores, ids, new_scores, places + start, k)
    return scores, ids


def _merge(scores: Tensor, ids: Tensor, new_scores: Tensor, new_ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Merges the hits of each row: returns the k best of the earlier and the new hits."""
    # Earlier hits have lower ids and are first, and a stable sort keeps them before equal hits.
    scores, order = torch.cat([scores, new_scores], dim=1).sort(dim=1, descending=True, stable=True)
    return scores[:, :k], torch.cat([ids, new_ids], dim=1).gather(1, order)[:, :k]


def _above(scores: Tensor, least: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the scores of each row that are above ``least``, (Q, 1), padded with -inf, and their columns.

    After the first tiles few scores are above ``least``, so the maximum of each cell is compared first. If a row
    has more than k such scores, the best k scores of each row are returned, above ``least`` or not.
    """
    size = _CELL if scores.shape[1] % _CELL == 0 else 1
    cells = scores.view(len(scores), -1, size)
    rows, numbers = (cells.amax(dim=2) > least).nonzero(as_tuple=True)
    near, offsets = (cells[rows, numbers] > least[rows]).nonzero(as_tuple=True)
    rows, places = rows[near], numbers[near] * size + offsets
    counts = rows.bincount(minlength=len(scores))
    width = int(counts.max())
    if width > k:
        return best_columns(scores, k)
    slots = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    best = scores.new_full((len(scores), width), -torch.inf)
    best[rows, slots] = scores[rows, places]
    columns = places.new_zeros(len(scores), width)
    columns[rows, slots] = places
    return best, columns


@torch.no_grad()
def nearest(
    name: SimilarityName,
    queries: Tensor | SparseVectors,
    corpus: Tensor | Sequence[Tensor] | UnitVectors | SparseVectors,
    k: int,
) -> list[list[Hit]]:
    """Finds the k vectors of a corpus that are most similar to each query, by any similarity and exact search.

    Args:
        name: Name of the similarity.
        queries: Vectors of the queries, (Q, D).
        corpus: Vectors of the corpus, (C, D), or a list of matrices with their rows in order. For the cosine also
            ``UnitVectors``. Sparse vectors if the queries are sparse.
        k: Number of hits per query; all vectors if the corpus has fewer.

    Returns:
        Hits of each query, best first. Of equal hits the lower id comes first.

    Raises:
        ValueError: Numbers of features differ, vectors are integers, a value is not finite, or ``k`` is below 1.

    Example:
        >>> nearest("dot", torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 5.0], [2.0, 0.0]]), k=1)
        [[Hit(corpus_id=1, score=2.0)]]
    """
    if is_sparse(queries) or is_sparse(corpus):
        results = [sparse_top_k(comparable(name, queries), comparable(name, corpus), k)]
    elif name == "cosine" or isinstance(corpus, UnitVectors):
        results = [top_k(queries, corpus, k)]
    else:
        parts = [corpus] if isinstance(corpus, Tensor) else corpus
        _check_search(queries, parts, k)
        results = [_nearest_by(name, block, parts, k) for block in _blocks(queries)]
    return [
        list(map(Hit, *row)) for scores, ids in results for row in zip(ids.tolist(), scores.tolist(), strict=True)
    ]


def _nearest_by(name: SimilarityName, queries: Tensor, parts: Sequence[Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Returns scores and ids of the vectors of a corpus that are most similar to each query, except by cosine."""
    scores, ids, start = queries.new_empty(len(queries), 0), _ids(queries, len(queries), 0), 0
    for columns in (block for part in parts for block in _blocks(part)):
        block = similarities(name, queries, columns.to(queries.device))
        if not bool(block.isfinite().all()):
            raise InvalidValueError(
                "search: expected finite similarities, got NaN or infinity; check the vectors of queries and "
                "corpus"
            )
        new_scores, places = best_columns(block, k)
        scores, ids = _merge(scores, ids, new_scores, places + start, k)
        start += len(columns)
    return scores, ids


def _blocks(vectors: Tensor) -> Iterator[Tensor]:
    return (vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK))


def _check_search(queries: Tensor, parts: Sequence[Tensor], k: int) -> None:
    """Checks that queries and corpus are matrices with the same number of features, and that k is at least 1."""
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
    """Returns the similarity matrix of rows and columns, (R, D) and (C, D) -> (R, C).

    Args:
        name: ``cosine``, ``dot``, or the negative distance ``euclidean`` or ``manhattan``.
        rows: Vectors, (R, D).
        columns: Vectors, (C, D).

    Example:
        >>> similarities("euclidean", torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[-5.]])
    """
    if name == "cosine" or name == "dot":
        return similarity_matrix(rows, columns, 1.0, similarity=name)
    with full_precision(rows.device):
        # Matrix products would be faster, but have errors of 1e-3 between near vectors.
        mode = "donot_use_mm_for_euclid_dist"
        pair = at_least_float32(rows), at_least_float32(columns)
        distances: Tensor = torch.cdist(*pair, p=_POWER[name], compute_mode=mode)
        return distances.neg()


def pair_similarities(name: SimilarityName, first: Tensor, second: Tensor) -> Tensor:
    """Returns the similarity of each pair of rows with the same index, (N, D) and (N, D) -> (N,).

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


def rank_documents(
    queries: Tensor | SparseVectors,
    documents: Tensor | SparseVectors,
    k: int,
    own: Sequence[int] | None = None,
) -> Tensor:
    """Ranks the k documents nearest to each query by cosine, by exact search; sparse vectors by dot product.

    Of equal similarities the lower id comes first.

    Args:
        queries: Vectors of the queries, (Q, D), on the device of the search.
        documents: Vectors of the documents, (C, D).
        k: Length of a ranking.
        own: Id of a document to exclude for each query; -1 for none.

    Returns:
        Ids of the documents, best first, (Q, k), int64; -1 where there are no more documents.

    Raises:
        ValueError: Shapes don't fit, vectors are integers, a value is not finite, or ``k`` is below 1.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> rank_documents(vectors[:2], vectors, k=3, own=[0, -1])
        tensor([[ 2,  1, -1],
                [ 1,  2,  0]])
    """
    if is_sparse(queries) or is_sparse(documents):
        ids = sparse_top_k(queries, documents, k + 1)[1]
    else:
        ids = top_k(queries, documents, k + 1)[1]
    excluded = torch.full((len(ids),), -1) if own is None else torch.tensor(own, dtype=torch.long)
    excluded = excluded.to(ids.device)[:, None]
    ids = torch.cat([ids, ids.new_full((len(ids), 1), -1)], dim=1)
    order = (ids == excluded).int().sort(dim=1, stable=True).indices  # moves the excluded document to the end
    ids = torch.where(ids == excluded, -1, ids).gather(1, order)[:, :k]
    return torch.nn.functional.pad(ids, (0, k - ids.shape[1]), value=-1)


def retrieval_scores(
    data: RetrievalSet,
    queries: Tensor | SparseVectors,
    documents: Tensor | SparseVectors,
    figures: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Ranks the documents of a retrieval set and scores each query's ranking; see ``metrics.ranking_scores``.

    Args:
        data: Queries, corpus and relevance judgments.
        queries: Vectors of the queries of ``data``, (Q, D).
        documents: Vectors of the documents of ``data``, (C, D).
        figures: Names of scores, such as ``ndcg@10``; None for ``metrics.RETRIEVAL_METRICS``.

    Returns:
        Name of a score -> its value for each query in [0, 1], (Q,), float64, on the CPU.

    Raises:
        ValueError: Shapes don't fit, a value is not finite, or the name of a score is unknown.

    Example:
        >>> data = RetrievalSet(("a?", "b?"), ("b", "a"), ({1: 1.0}, {0: 1.0}), own_documents=(-1, -1))
        >>> scores = retrieval_scores(data, torch.eye(2), torch.eye(2), figures=["mrr@10"])
        >>> scores["mrr@10"].tolist()
        [0.5, 0.5]
    """
    from contrastive_text.metrics import RETRIEVAL_METRICS, ranking_scores  # here: it imports torchmetrics

    figures = RETRIEVAL_METRICS if figures is None else figures
    longest = max((int(name.rpartition("@")[2]) for name in figures), default=1)
    return ranking_scores(
        rank_documents(queries, documents, longest, data.own_documents), data.relevance, figures
    )


def unit_blocks(
    name: str, vectors: Tensor, block: int, device: torch.device | None = None, before: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Scales vectors to unit length block by block. Yields the index of each block's first vector, and the block.

    Args:
        name: Beginning of error messages.
        vectors: Vectors, (N, D).
        block: Number of vectors of a block.
        device: Device of the unit vectors; None for the vectors' device.
        before: Index of the first vector.

    Raises:
        ValueError: A value is not finite.

    Example:
        >>> list(unit_blocks("corpus", torch.tensor([[2.0, 0.0], [0.0, 0.5]]), block=1))
        [(0, tensor([[1., 0.]])), (1, tensor([[0., 1.]]))]
    """
    for start in range(0, len(vectors), block):
        units = unit_vectors(vectors[start : start + block].to(device))
        if units.sum().isnan():  # infinity becomes NaN when it is divided by its norm
            row = before + start + int(units.isnan().any(dim=1).nonzero()[0])
            raise InvalidValueError(
                f"{name}: expected finite numbers, got NaN or infinity in row {row}; encode that text again"
            )
        yield before + start, units


def check_vectors(name: str, vectors: Tensor) -> None:
    """Checks that vectors are a matrix (N, D) of floating-point numbers.

    Raises:
        ValueError: The vectors have another shape, or are integers.

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
            f"{name}: expected floating-point vectors, got {vectors.dtype}; convert quantized vectors to "
            "numbers first"
        )


def _ids(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.long, device=like.device)


def as_tensor(vectors: Array) -> Tensor:
    """Returns a tensor with the memory of an array, without torch's warning on read-only arrays.

    A read-only array is passed to torch as writable, because filters of warnings would change all threads. The
    tensor must not be written to.
    """
    return torch.from_numpy(vectors if vectors.flags.writeable else np.asarray(_WritableArray(vectors)))


class _WritableArray:
    """Exposes the memory of a read-only array to torch without the read-only flag."""

    def __init__(self, array: Array) -> None:
        self._array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
