"""Retrieval metrics, such as nDCG, of ranked documents for each query, and ranks of answers within a batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import cosine_similarity_matrix
from contrastive_text.metrics.geometry import row_blocks
from contrastive_text.metrics.similarity import check_pairs, check_rows

RETRIEVAL_METRICS = (
    "ndcg@10",
    "mrr@10",
    "recall@1",
    "recall@10",
    "recall@100",
    "map@100",
    "accuracy@1",
    "accuracy@10",
)
"""Names of the retrieval metrics that are reported. The first, nDCG@10, is the score of a task, as in BEIR."""


def ranking_scores(
    ranked: Tensor, relevance: Sequence[Mapping[int, float]], metrics: Sequence[str] = RETRIEVAL_METRICS
) -> dict[str, Tensor]:
    """Returns retrieval metrics of rankings for each query. Papers report their means over queries.

    A document is relevant if its grade is above 0. The metrics are:

    - ``ndcg@k``: sum of grade / log2(1 + rank) over the first k documents, divided by the largest possible sum
    (Järvelin
      and Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques", section 2, with the linear gain of
      trec_eval and BEIR);
    - ``mrr@k``: 1 / rank of the first relevant document, 0 if it is not among the first k;
    - ``recall@k``: share of the relevant documents that are among the first k;
    - ``map@k``: sum of the precision at each relevant document of the first k, divided by the smaller of k and
    the number
      of relevant documents, as in sentence-transformers (trec_eval divides by the number of relevant documents);
    - ``accuracy@k``: 1 if a relevant document is among the first k, else 0.

    Args:
        ranked: Numbers of documents, best first, (Q, K), different in each row. K is at least the largest cutoff;
            -1 fills rows with fewer documents.
        relevance: For each query the grades of documents by their numbers; other documents have grade 0.
        metrics: Names of metrics with a cutoff, such as ``ndcg@10``.

    Returns:
        Name -> value for each query, (Q,), float64, in [0, 1].

    Raises:
        ValueError: A name is unknown, a ranking is too short for a cutoff or has a document twice, or a query has
            no relevant document.

    Example:
        >>> ranked = torch.tensor([[4, 0, 2], [1, 3, -1]])
        >>> scores = ranking_scores(ranked, [{0: 1, 2: 2}, {1: 1}], metrics=["mrr@3", "recall@2"])
        >>> {name: values.tolist() for name, values in scores.items()}
        {'mrr@3': [0.5, 1.0], 'recall@2': [0.5, 1.0]}
    """
    kinds = {name: _parse_name(name) for name in metrics}
    width = max((k for _, k in kinds.values()), default=0)
    _check(ranked, relevance, width)
    grade_lists = [
        [grades.get(document, 0.0) for document in row]
        for row, grades in zip(ranked[:, :width].tolist(), relevance, strict=True)
    ]
    ideal = [sorted(grades.values(), reverse=True)[:width] for grades in relevance]
    relevant = [sum(grade > 0 for grade in grades.values()) for grades in relevance]
    rankings = _Rankings(
        grades=_matrix(grade_lists, width),
        ideal=_matrix([row + [0.0] * (width - len(row)) for row in ideal], width),
        relevant=torch.tensor(relevant, dtype=torch.float64),
    )
    return {name: _KINDS[kind](rankings, k) for name, (kind, k) in kinds.items()}


class _Rankings(NamedTuple):
    grades: Tensor  # grade of the document at each rank, (Q, K)
    ideal: Tensor  # the same for the best possible ranking
    relevant: Tensor  # number of relevant documents, (Q,)


def _matrix(grades: Sequence[Sequence[float]], width: int) -> Tensor:
    """Returns grades as a matrix, (Q, width). Grades below 0 are set to 0, as in trec_eval."""
    return torch.tensor(grades, dtype=torch.float64).reshape(len(grades), width).clamp(min=0)


def _gain(grades: Tensor) -> Tensor:
    return (grades / torch.arange(2, grades.shape[1] + 2, dtype=torch.float64).log2()).sum(dim=1)


def _ndcg(rankings: _Rankings, k: int) -> Tensor:
    return _gain(rankings.grades[:, :k]) / _gain(rankings.ideal[:, :k])


def _mrr(rankings: _Rankings, k: int) -> Tensor:
    reciprocal = (rankings.grades[:, :k] > 0) / torch.arange(1, k + 1, dtype=torch.float64)
    return reciprocal.amax(dim=1)


def _recall(rankings: _Rankings, k: int) -> Tensor:
    return (rankings.grades[:, :k] > 0).sum(dim=1) / rankings.relevant


def _map(rankings: _Rankings, k: int) -> Tensor:
    is_relevant = (rankings.grades[:, :k] > 0).double()
    precision = is_relevant.cumsum(dim=1) / torch.arange(1, k + 1, dtype=torch.float64)
    return (precision * is_relevant).sum(dim=1) / rankings.relevant.clamp(max=k)


def _accuracy(rankings: _Rankings, k: int) -> Tensor:
    return (rankings.grades[:, :k] > 0).any(dim=1).double()


_KINDS: Mapping[str, Callable[[_Rankings, int], Tensor]] = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "map": _map,
    "accuracy": _accuracy,
}


def _parse_name(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z]+)@([1-9]\d*)", name)
    if match is None or match[1] not in _KINDS:
        raise InvalidValueError(
            f"figures: expected one of {', '.join(f'{kind}@K' for kind in _KINDS)}, got {name!r}; use a name "
            "such as ndcg@10"
        )
    return match[1], int(match[2])


def _check(ranked: Tensor, relevance: Sequence[Mapping[int, float]], width: int) -> None:
    if ranked.ndim != 2 or len(ranked) != len(relevance):
        raise InvalidValueError(
            f"ranking_scores: expected rankings (Q, K) and grades of Q queries, got {tuple(ranked.shape)} and "
            f"{len(relevance)}; give a ranking for each query"
        )
    if ranked.shape[1] < width:
        raise InvalidValueError(
            f"ranking_scores.ranked: expected {width} documents, the largest cutoff, got {ranked.shape[1]}; rank "
            "more documents, or fill with -1 if there are no more"
        )
    numbers = ranked.sort(dim=1).values
    repeats = ((numbers[:, 1:] == numbers[:, :-1]) & (numbers[:, 1:] >= 0)).any(dim=1).nonzero().flatten()
    if len(repeats):
        raise InvalidValueError(
            f"ranking_scores.ranked: expected a document once in a ranking, got a document twice in row "
            f"{int(repeats[0])}; remove the second"
        )
    for number, grades in enumerate(relevance):
        if not any(grade > 0 for grade in grades.values()):
            raise InvalidValueError(
                f"ranking_scores.relevance: expected a document with a grade above 0 for each query, got no such "
                f"document for query {number}; remove the query"
            )


class RetrievalScores(NamedTuple):
    """Scores of a retrieval task with one answer per query, times 100.

    Args:
        recall_at_1: Share of the queries whose answer has rank 1.
        mrr: Mean of 1 / rank of the answer (mean reciprocal rank).

    Example:
        >>> RetrievalScores(recall_at_1=50.0, mrr=62.5).mrr
        62.5
    """

    recall_at_1: float
    mrr: float


def paired_retrieval(queries: Tensor, documents: Tensor) -> RetrievalScores:
    """Returns recall at 1 and mean reciprocal rank of searching document i with query i among all documents.

    The rank by cosine similarity is 1 plus the number of other documents whose similarity is not smaller than the
    answer's. A copy of the answer therefore counts against the answer, and collapsed vectors get the worst
    scores. The N x N matrix is never completely in memory.

    Args:
        queries: Vectors of the queries, (N, D).
        documents: Vectors of their answers, (N, D).

    Returns:
        Recall at 1 and mean reciprocal rank (Voorhees 1999, the TREC-8 question answering track), in [0, 100].

    Raises:
        ValueError: The shapes differ or have no rows.

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


def answer_ranks(rows: Tensor, columns: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the rank of each row's target column among all columns, by cosine similarity.

    The rank is 1 plus the number of other columns whose similarity is not smaller. Ties count against the row, so
    that collapsed vectors get the last rank. Similarities within 8 units of rounding are ties.

    Args:
        rows: Vectors of the rows, (R, D).
        columns: Vectors of the columns, (C, D).
        target: Index of each row's target column, (R,).
        mask: True for columns that a row ignores, (R, C), but not its target; None to compare all.

    Returns:
        Ranks from 1 to C, (R,), int64.

    Raises:
        ValueError: The shapes don't fit together.

    Example:
        >>> rows, columns = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 1.0]])
        >>> answer_ranks(rows, columns, target=torch.tensor([0]))
        tensor([2])
    """
    check_rows("answer_ranks", rows, least=1)
    check_rows("answer_ranks", columns, least=1)
    if rows.shape[1] != columns.shape[1] or target.shape != rows.shape[:1]:
        raise InvalidValueError(
            f"answer_ranks: expected (R, D), (C, D) and (R,), got {tuple(rows.shape)}, "
            f"{tuple(columns.shape)} and {tuple(target.shape)}; give one target per row"
        )
    ranks = []
    for block in row_blocks(len(rows), columns=len(columns)):
        cosines = cosine_similarity_matrix(rows[block], columns)
        target_cosines = cosines.gather(1, target[block, None])
        rounding = 8 * torch.finfo(cosines.dtype).eps
        nearer = cosines >= target_cosines - rounding  # includes the target itself, which counts as 1
        ranks.append((nearer if mask is None else nearer & ~mask[block]).sum(dim=1))
    return torch.cat(ranks)


def in_batch_accuracy(rows: Tensor, columns: Tensor, target: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Returns the share of rows whose target column is more similar than all other columns.

    Ties count against the row (see ``answer_ranks``), so that collapsed vectors have an accuracy of 0.

    Args:
        rows: Vectors of the rows, (R, D).
        columns: Vectors of the columns, (C, D).
        target: Index of each row's target column, (R,).
        unseen: True for columns that a row ignores, (R, C), but not its target; None to compare all.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: The shapes don't fit together.

    Example:
        >>> in_batch_accuracy(torch.eye(2), torch.eye(2), target=torch.tensor([0, 0]))
        tensor(0.5000)
    """
    return (answer_ranks(rows, columns, target, unseen) == 1).float().mean()
