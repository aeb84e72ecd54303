"""Similarities by which a model compares its vectors, with the names and values of sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, full_precision, similarity_matrix, unit_vectors
from contrastive_text.inference.search import BLOCK, Hit, check_at_least_one, check_searched, hits

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
NAMES: tuple[SimilarityName, ...] = get_args(SimilarityName)
_POWER = {"euclidean": 2.0, "manhattan": 1.0}


def check_similarity(name: str, where: str) -> SimilarityName:
    """Returns the name of a similarity, or raises ValueError for another name."""
    for known in NAMES:
        if known == name:
            return known
    raise InvalidValueError(f"{where}: expected one of {', '.join(NAMES)}, got {name!r}; give one of them")


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


@torch.no_grad()
def nearest(name: SimilarityName, queries: Tensor, corpus: Tensor | Sequence[Tensor], k: int) -> list[list[Hit]]:
    """Returns the k most similar vectors for each query, best first, the earlier vector before an equal one.

    Args:
        name: The similarity.
        queries: (Q, D).
        corpus: (C, D), or several tensors that have its rows one after the other.
        k: Hits per query; all vectors if there are fewer.

    Raises:
        ValueError: Vectors of another width, integers, a value that is not finite, or ``k`` below 1.

    Example:
        >>> nearest("dot", torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 5.0], [2.0, 0.0]]), k=1)
        [[Hit(corpus_id=1, score=2.0)]]
    """
    if name == "cosine":
        return hits(queries, corpus, k)
    check_at_least_one(k=k)
    parts = [corpus] if isinstance(corpus, Tensor) else corpus
    check_searched(queries, parts)
    return [found for block in _blocks(queries) for found in _nearest(name, block, parts, k)]


def _nearest(name: SimilarityName, queries: Tensor, parts: Sequence[Tensor], k: int) -> list[list[Hit]]:
    scores = queries.new_empty(len(queries), 0)
    ids = torch.empty(len(queries), 0, dtype=torch.long, device=queries.device)
    start = 0
    for columns in (block for part in parts for block in _blocks(part)):
        found = similarities(name, queries, columns.to(queries.device))
        _check_finite(found)
        places = torch.arange(start, start + len(columns), device=queries.device).expand(len(queries), -1)
        # Vectors found before have lower numbers: a stable sort leaves them before equal ones.
        scores, order = torch.cat([scores, found], 1).sort(dim=1, descending=True, stable=True)
        ids = torch.cat([ids, places], 1).gather(1, order)[:, :k]
        scores, start = scores[:, :k], start + len(columns)
    return [list(map(Hit, *found)) for found in zip(ids.tolist(), scores.tolist(), strict=True)]


def _blocks(vectors: Tensor) -> Iterator[Tensor]:
    return (vectors[start : start + BLOCK] for start in range(0, len(vectors), BLOCK))


def _check_finite(scores: Tensor) -> None:
    if not bool(scores.isfinite().all()):
        raise InvalidValueError(
            "search: expected finite similarities, got NaN or infinity; check the vectors of queries and corpus"
        )
