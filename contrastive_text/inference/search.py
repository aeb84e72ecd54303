"""Exact search by cosine: the nearest of many vectors, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.onednn import products
from contrastive_text.core.similarity import EPSILON, at_least_float32, full_precision, unit_vectors

BLOCK = 4096
"""Side of the largest tile of cosines, which is what memory holds at once: 64 MiB in float32."""

_PARTS = 4
"""Of a full tile, so many are made one after the other, to be read while caches hold them. Of fewer queries each
has more columns: a hundred small ones take a third longer."""

_WIDEST = 8
"""Blocks of a corpus at once where they have to be copied."""

_CELL = 256
"""Cosines of which the highest is looked at first."""


class Hit(NamedTuple):
    """A text that a search found.

    Args:
        corpus_id: Its place in the corpus.
        score: Its cosine similarity to the query.

    Example:
        >>> Hit(corpus_id=3, score=0.91).corpus_id
        3
    """

    corpus_id: int
    score: float


@dataclass(frozen=True, slots=True, eq=False)
class UnitVectors:
    """Checked vectors of a corpus at length 1, made once for many searches: a query takes a third of the time.

    Args:
        values: (C, D), in float32, or float64. ``of`` lays each feature of all vectors together in memory, from
            which a single query's cosines are made fastest.

    Example:
        >>> corpus = UnitVectors.of(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> hits(torch.tensor([[1.0, 0.0]]), corpus, k=1)
        [[Hit(corpus_id=1, score=1.0)]]
    """

    values: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, vectors: Tensor | Sequence[Tensor], device: torch.device | None = None) -> UnitVectors:
        """Returns a copy of vectors at unit length.

        Args:
            vectors: (C, D), or several that have its rows one after the other.
            device: Where to search; None for where they are.

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
        for start, units in _unit_blocks_of(parts, BLOCK, place):
            by_feature[:, start : start + len(units)] = units.T
        return cls(by_feature.T)


def hits(queries: Tensor, corpus: Tensor | Sequence[Tensor] | UnitVectors, k: int) -> list[list[Hit]]:
    """Returns the k nearest vectors of each query's, best first; arguments and errors are those of ``top_k``.

    Example:
        >>> hits(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]]), k=1)
        [[Hit(corpus_id=1, score=1.0)]]
    """
    scores, ids = top_k(queries, corpus, k)
    return [list(map(Hit, *found)) for found in zip(ids.tolist(), scores.tolist(), strict=True)]


def check_searched(queries: Tensor, parts: Sequence[Tensor]) -> None:
    """Checks that queries and the parts of a corpus are vectors of one width.

    Raises:
        ValueError: Another shape or width, or integers.
    """
    check_vectors("queries", queries)
    for part in parts:
        check_vectors("corpus", part)
        if queries.shape[1] != part.shape[1]:
            raise InvalidValueError(
                f"corpus: expected {queries.shape[1]} features, as the queries have, got {part.shape[1]}; "
                "encode both with one model"
            )


@torch.no_grad()
def top_k(
    queries: Tensor, corpus: Tensor | Sequence[Tensor] | UnitVectors, k: int, block: int = BLOCK
) -> tuple[Tensor, Tensor]:
    """Returns the k vectors of a corpus that are nearest to each query by cosine, exactly.

    Cosines are taken in float32 (float64 where both sides are) for half-precision vectors too, a tile of at most
    block x block, of fewer queries and more columns, at a time on the queries' device: the corpus may be a
    memory-mapped file larger than memory. Of equal cosines the lower id comes first. A zero vector has cosine 0
    with everything. Another block size rounds cosines differently, by some 1e-7.

    Args:
        queries: (Q, D).
        corpus: (C, D), or several that have its rows one after the other, or one made ready for many searches.
        k: Vectors for each query; all of the corpus where it has fewer.
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
    check_at_least_one(k=k, block=block)
    check_searched(queries, parts)
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
    """Yields blocks of a corpus with the start of each, and what its cosines are multiplied by; None for 1.

    That is the inverse of lengths, which takes no copy of the vectors.
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
        # What was found before has lower ids and stands to the left, where a stable sort leaves it.
        scores, order = torch.cat([scores, new_scores], dim=1).sort(dim=1, descending=True, stable=True)
        ids = torch.cat([ids, places + start], dim=1).gather(1, order)[:, :k]
        scores = scores[:, :k]
    return scores, ids


def _above(scores: Tensor, least: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the scores of each row above its least one, (Q, 1), by place, filled up with -inf; their places.

    After the first tiles few are: the highest of some is compared first. Where a row has more than k, the best k
    of each row are returned, of which some may not be above it.
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
    # Where the next one equals the k-th, torch's topk has taken any of those.
    least = best.values[:, k - 1 : k]
    crowded = (least == best.values[:, k:]).any(dim=1)
    if crowded.any():
        rows, least = scores[crowded], least[crowded]
        above, equal = rows > least, rows == least
        first = equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)
        places[crowded] = (above | equal & first).nonzero()[:, 1].view(-1, k)
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def unit_blocks(
    name: str, vectors: Tensor, block: int, device: torch.device | None = None, before: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Yields blocks of unit vectors, each with its start, counted from a number of rows before all.

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


def _unit_blocks_of(parts: Sequence[Tensor], block: int, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yields blocks of unit vectors of a corpus in parts, each with its start in the whole."""
    before = 0
    for part in parts:
        yield from unit_blocks("corpus", part, block, device, before)
        before += len(part)


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


def check_at_least_one(**numbers: int) -> None:
    """Checks that numbers are at least 1, by their names.

    Raises:
        ValueError: One is.

    Example:
        >>> check_at_least_one(k=3, block=0)
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: block: expected 1 or more, got 0
    """
    for name, number in numbers.items():
        if number < 1:
            raise InvalidValueError(f"{name}: expected 1 or more, got {number}")


def _ids(like: Tensor, rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, dtype=torch.long, device=like.device)
