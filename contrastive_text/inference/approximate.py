"""Approximate search in the vectors of a segment, by faiss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.inference.search import Hit, SimilarityName, as_tensor, nearest, pair_similarities
from contrastive_text.inference.vector_files import Array

GraphKind: TypeAlias = Literal["hnsw", "ivf"]
"""Approximate search: a graph of neighbors (Malkov and Yashunin 2016, https://arxiv.org/abs/1603.09320), or cells
of k-means of which the nearest are searched (Jegou et al. 2011, https://hal.inria.fr/inria-00514462)."""

APPROXIMATE_FROM = 10_000
"""Number of vectors of a segment from which it is searched approximately. Exact search takes 2 ms below it."""
_NEIGHBORS = 32
"""Neighbors of a vector in the graph of ``hnsw``."""
_BUILD_WIDTH = 64
"""Number of candidates that ``hnsw`` keeps while it builds the graph."""
_SEARCH_WIDTH = 128
"""Smallest number of candidates that ``hnsw`` keeps while it searches."""
_PROBED = 16
"""``ivf`` searches one of this many cells, the nearest ones. There are sqrt(N) cells."""
_SAMPLE = 200
"""Number of vectors of the segment whose neighbors measure the recall."""
RECALL_AT = 10
"""Number of neighbors over which the recall is measured."""
_BLOCK = 16_384


def _faiss() -> ModuleType:
    return require("faiss", "approximate search")


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Index of faiss over the vectors of a segment.

    Args:
        index: The index of faiss.
        recall: Share of the nearest ten vectors that the index finds, in [0, 1]. Sampled vectors of the segment
            are the queries.
    """

    index: Any  # Any: faiss has no types
    recall: float

    @classmethod
    def build(cls, kind: GraphKind, similarity: SimilarityName, vectors: Array) -> Self | None:
        """Builds the index of a segment, and measures its recall. Returns None for a small segment.

        Args:
            kind: Kind of the approximate search.
            similarity: Similarity of the search.
            vectors: Vectors, (N, D), float32.

        Raises:
            ImportError: faiss isn't installed.
        """
        if len(vectors) < APPROXIMATE_FROM:
            return None
        faiss, features = _faiss(), vectors.shape[1]
        metric = faiss.METRIC_L2 if similarity == "euclidean" else faiss.METRIC_INNER_PRODUCT
        if kind == "hnsw":
            index = faiss.IndexHNSWFlat(features, _NEIGHBORS, metric)
            index.hnsw.efConstruction = _BUILD_WIDTH
        else:
            cells = round(len(vectors) ** 0.5)
            index = faiss.IndexIVFFlat(faiss.IndexFlat(features, metric), features, cells, metric)
            places = np.random.default_rng(0).permutation(len(vectors))[: 64 * cells]
            index.train(_prepared(similarity, vectors[np.sort(places)]))
        for start in range(0, len(vectors), _BLOCK):
            index.add(_prepared(similarity, vectors[start : start + _BLOCK]))
        graph = cls(index, recall=1.0)
        return cls(index, graph._measured(similarity, vectors))

    def _measured(self, similarity: SimilarityName, vectors: Array) -> float:
        places = np.sort(np.random.default_rng(1).permutation(len(vectors))[:_SAMPLE])
        queries = torch.from_numpy(vectors[places])
        k = RECALL_AT + 1  # the vector itself is the first
        exact = nearest(similarity, queries, as_tensor(vectors), k)
        found = self.search(similarity, queries, vectors, k)
        shares = [
            len({hit.corpus_id for hit in hits} & {hit.corpus_id for hit in near} - {place}) / RECALL_AT
            for place, hits, near in zip(places.tolist(), exact, found, strict=True)
        ]
        return min(sum(shares) / len(shares), 1.0)

    def search(self, similarity: SimilarityName, queries: Tensor, vectors: Array, k: int) -> list[list[Hit]]:
        """Finds about the k nearest vectors of the segment. Their similarities are computed exactly.

        Args:
            similarity: Similarity of the search.
            queries: Vectors of the queries, (Q, D).
            vectors: Vectors of the segment, (N, D).
            k: Number of vectors for each query.

        Returns:
            Row and similarity of each vector that is found, best first, for each query.
        """
        faiss = _faiss()
        if isinstance(self.index, faiss.IndexHNSW):
            options = faiss.SearchParametersHNSW(efSearch=max(_SEARCH_WIDTH, 2 * k))
        else:
            options = faiss.SearchParametersIVF(nprobe=max(1, self.index.nlist // _PROBED))
        asked = _prepared(similarity, queries.detach().cpu().float().numpy())
        _, places = self.index.search(asked, min(k, len(vectors)), params=options)
        results = []
        for query, row in zip(queries.detach().cpu(), places, strict=True):
            rows = np.unique(row[row >= 0])
            near = torch.from_numpy(vectors[rows])
            scores = pair_similarities(similarity, query.expand_as(near), near).tolist()
            hits = map(Hit, rows.tolist(), scores)
            results.append(sorted(hits, key=lambda hit: (-hit.score, hit.corpus_id)))
        return results

    def content(self) -> bytes:
        """Returns the bytes of the index's file."""
        content: bytes = _faiss().serialize_index(self.index).tobytes()
        return content

    @classmethod
    def read(cls, path: Path, recall: float) -> Self:
        """Reads the file of an index.

        Raises:
            ImportError: faiss isn't installed.
            ValueError: faiss can't read the file.
        """
        faiss = _faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            raise InvalidValueError(
                f"{path}: expected an index of faiss, got {str(error)[:200]}; build the index again"
            ) from error
        if not isinstance(index, faiss.IndexHNSW | faiss.IndexIVF):
            raise InvalidValueError(f"{path}: expected hnsw or ivf, got {type(index).__name__}; build it again")
        return cls(index, recall)


def _prepared(similarity: SimilarityName, vectors: Array) -> Array:
    """Returns vectors as faiss compares them: of unit length for the cosine."""
    values = torch.from_numpy(np.array(vectors, np.float32))
    prepared: Array = (unit_vectors(values) if similarity == "cosine" else values).numpy()
    return prepared
