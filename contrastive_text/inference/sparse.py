"""Sparse vectors as rows of scipy's CSR arrays, and exact search by an inverted index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least, one_of
from contrastive_text.core.libraries import require
from contrastive_text.core.similarity import best_columns
from contrastive_text.inference.vector_files import Array

SparseVectors: TypeAlias = Any
"""Vectors of N texts, a ``scipy.sparse.csr_array`` of shape (N, V). Any: scipy is optional and has no types."""

_SCORES = 2**24
"""Largest number of scores in memory at a time: 64 MiB in float32."""
_WHERE = "sparse vectors"


def is_sparse(vectors: object) -> TypeGuard[SparseVectors]:
    """Returns whether vectors are a sparse matrix or array of scipy, or a sparse tensor of torch.

    Example:
        >>> is_sparse(to_csr(torch.eye(2))), is_sparse(torch.eye(2))
        (True, False)
    """
    if isinstance(vectors, Tensor):
        return vectors.layout is not torch.strided
    return type(vectors).__module__.startswith("scipy.sparse")


def to_csr(vectors: Tensor | SparseVectors) -> SparseVectors:
    """Converts dense or sparse vectors to a CSR array, (n, V).

    Example:
        >>> to_csr(torch.tensor([[0.0, 2.0, 0.0]])).indices.tolist()
        [1]
    """
    scipy = require("scipy.sparse", _WHERE)
    if not isinstance(vectors, Tensor):
        return scipy.csr_array(vectors)
    if not is_sparse(vectors):
        return scipy.csr_array(vectors.detach().cpu().numpy())
    coo = vectors.detach().cpu().to_sparse_coo().coalesce()
    return scipy.csr_array((coo.values().numpy(), tuple(coo.indices().numpy())), shape=tuple(coo.shape))


def csr_of(arrays: Sequence[Array], shape: tuple[int, ...]) -> SparseVectors:
    """Returns a CSR array of its data, column indices and row pointers, after a check that they fit together.

    Raises:
        ValueError: The arrays don't fit together.

    Example:
        >>> csr_of([np.ones(1), np.zeros(1, int), np.array([0, 1])], (1, 2)).toarray().tolist()
        [[1.0, 0.0]]
    """
    rows = require("scipy.sparse", _WHERE).csr_array(tuple(arrays), shape=shape)
    rows.check_format()
    return rows


def join_rows(parts: Sequence[SparseVectors], features: int) -> SparseVectors:
    """Concatenates rows of sparse vectors; an empty array (0, V) without any.

    Example:
        >>> join_rows([], features=3).shape
        (0, 3)
    """
    scipy = require("scipy.sparse", _WHERE)
    return scipy.vstack(parts, format="csr") if parts else scipy.csr_array((0, features), dtype=np.float32)


def to_coo(vectors: SparseVectors) -> Tensor:
    """Converts sparse vectors to a sparse tensor in torch's COO layout, as sentence-transformers returns them.

    Example:
        >>> to_coo(to_csr(torch.eye(2))).to_dense()
        tensor([[1., 0.],
                [0., 1.]])
    """
    coo = vectors.tocoo()
    indices = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
    values = torch.from_numpy(coo.data)
    return torch.sparse_coo_tensor(indices, values, coo.shape, check_invariants=True).coalesce()


def comparable(name: str, vectors: SparseVectors) -> SparseVectors:
    """Returns rows whose dot products are the similarities, in CSR: scaled to unit length for the cosine.

    Args:
        name: ``dot`` or ``cosine``.
        vectors: Sparse vectors, (N, V), of scipy or of torch.

    Raises:
        ValueError: Dense vectors, or another similarity, which an inverted index can't compute.

    Example:
        >>> comparable("cosine", to_csr(torch.tensor([[3.0, 4.0]]))).toarray().tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    if not is_sparse(vectors):
        raise InvalidValueError(
            f"similarity: expected sparse vectors on both sides, got {type(vectors).__name__}; "
            "encode both with one model"
        )
    vectors = to_csr(vectors)
    if one_of("similarity_fn_name of sparse vectors", name, ("dot", "cosine")) == "dot":
        return vectors
    lengths = np.sqrt((vectors * vectors).sum(axis=1))
    scaled = vectors.copy()
    scaled.data /= np.repeat(np.maximum(lengths, 1e-12), np.diff(vectors.indptr)).astype(scaled.dtype)
    return scaled


def sparse_top_k(queries: SparseVectors, documents: SparseVectors, k: int) -> tuple[Tensor, Tensor]:
    """Finds the k documents with the largest dot product for each query, by exact search.

    The documents are stored by term. A query reads the documents of its own terms only. Of equal scores the lower
    id comes first.

    Args:
        queries: Sparse vectors of the queries, (Q, V).
        documents: Sparse vectors of the documents, (C, V).
        k: Number of documents for each query; all documents if there are fewer.

    Returns:
        Dot products and ids of the documents, best first, (Q, min(k, C)) each.

    Raises:
        ValueError: The number of features differs, or ``k`` is below 1.

    Example:
        >>> documents = to_csr(torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 1.0]]))
        >>> sparse_top_k(to_csr(torch.tensor([[1.0, 3.0]])), documents, k=2)
        (tensor([[3., 3.]]), tensor([[0, 2]]))
    """
    at_least("k", k, 1)
    if not (is_sparse(queries) and is_sparse(documents)) or queries.shape[1] != documents.shape[1]:
        shapes = " and ".join(str(tuple(vectors.shape)) for vectors in (queries, documents))
        raise InvalidValueError(
            f"corpus: expected sparse vectors of queries and corpus with one number of features, got {shapes}; "
            "encode both with one model"
        )
    inverted = documents.T.tocsr()
    k = min(k, documents.shape[0])
    scores, ids = [torch.empty(0, k)], [torch.empty(0, k, dtype=torch.long)]
    for block in _blocks(queries, max(1, _SCORES // max(1, documents.shape[0]))):
        best = best_columns(torch.from_numpy((block @ inverted).toarray()), k)
        scores.append(best[0])
        ids.append(best[1])
    return torch.cat(scores), torch.cat(ids)


def _blocks(vectors: SparseVectors, size: int) -> Iterator[SparseVectors]:
    return (vectors[start : start + size] for start in range(0, vectors.shape[0], size))


def token_weights(vectors: SparseVectors, tokens: Sequence[str], top_k: int | None) -> Iterable[dict[str, float]]:
    """Yields the tokens of each text with their weights, the largest weight first.

    Args:
        vectors: Sparse vectors, (N, V).
        tokens: Token of each feature, (V,).
        top_k: Number of tokens to return; None for all with a weight.

    Example:
        >>> list(token_weights(to_csr(torch.tensor([[0.5, 0.0, 2.0]])), ["a", "b", "c"], top_k=None))
        [{'c': 2.0, 'a': 0.5}]
    """
    for start, end in zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True):
        values, places = vectors.data[start:end], vectors.indices[start:end]
        order = np.argsort(-values, kind="stable")[:top_k]
        yield {tokens[places[place]]: float(values[place]) for place in order}
