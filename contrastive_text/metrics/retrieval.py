"""How often a text finds its partner among all others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.metrics.functional import answer_ranks, check_pairs


class RetrievalScores(NamedTuple):
    """Scores of a retrieval task, times 100.

    Args:
        recall_at_1: Share of the queries whose answer ranks first.
        mrr: Mean of 1 / rank of the answer (mean reciprocal rank).

    Example:
        >>> RetrievalScores(recall_at_1=50.0, mrr=62.5).mrr
        62.5
    """

    recall_at_1: float
    mrr: float


def paired_retrieval(queries: Tensor, documents: Tensor) -> RetrievalScores:
    """Scores the search for document i with query i among all documents.

    Ranks are by cosine similarity and pessimistic: rank = 1 + the number of other documents whose
    similarity is not smaller than the answer's. A copy of the answer counts against it, and collapsed
    vectors get the worst scores. The N x N matrix is never whole in memory.

    Args:
        queries: Vectors of the queries, (N, D).
        documents: Vectors of their answers, (N, D).

    Returns:
        Recall at 1 and mean reciprocal rank (Voorhees 1999, the TREC-8 question answering track), in
        [0, 100].

    Raises:
        ValueError: The shapes differ or hold no rows.

    Example:
        >>> queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> paired_retrieval(queries, documents=torch.tensor([[2.0, 1.0], [1.0, 0.0]]))
        RetrievalScores(recall_at_1=0.0, mrr=50.0)
    """
    check_pairs("paired_retrieval", queries, documents)
    ranks = answer_ranks(queries, documents, target=torch.arange(len(queries), device=queries.device))
    return RetrievalScores(
        recall_at_1=100 * (ranks == 1).float().mean().item(),
        mrr=100 * ranks.float().reciprocal().mean().item(),
    )
