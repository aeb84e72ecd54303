"""Queries that search a corpus by cosine, and what the rankings score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.inference.search import top_k
from contrastive_text.metrics import FIGURES, ranking_scores


def retrieved(queries: Tensor, documents: Tensor, k: int, own: Sequence[int] | None = None) -> Tensor:
    """Returns the k documents that are nearest to each query by cosine, exactly, best first.

    Of equal cosines the lower number comes first; see ``top_k``, whose errors it has.

    Args:
        queries: (Q, D), on the device that computes.
        documents: (C, D).
        k: Places of a ranking.
        own: For each query a document that it never finds; -1 for none.

    Returns:
        Numbers of documents, (Q, k), int64; -1 where there are no more.

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
    data: RetrievalSet, queries: Tensor, documents: Tensor, figures: Sequence[str] = FIGURES
) -> dict[str, Tensor]:
    """Returns what vectors score, for each query by itself; see ``metrics.ranking_scores``.

    Args:
        data: Queries, corpus, and what is relevant.
        queries: Vectors of its queries, (Q, D).
        documents: Vectors of its documents, (C, D).
        figures: Names such as ``ndcg@10``.

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
    longest = max((int(name.rpartition("@")[2]) for name in figures), default=1)
    return ranking_scores(retrieved(queries, documents, longest, data.own), data.relevance, figures)
