"""Retrieval scores: figures of ranked documents for each query, and ranks of answers within a batch."""

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

FIGURES = ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map@100", "accuracy@1", "accuracy@10")
"""What retrieval is reported by, the first one as its score: nDCG@10, as in BEIR."""


def ranking_scores(
    ranked: Tensor, relevance: Sequence[Mapping[int, float]], figures: Sequence[str] = FIGURES
) -> dict[str, Tensor]:
    """Returns figures of rankings, for each query by itself; their means are what papers report.

    With the grade of a document above 0 where it is relevant:

    - ``ndcg@k``: the sum of grade / log2(1 + rank) over the first k, divided by the best that can be had
      (Järvelin and Kekäläinen 2002, "Cumulated gain-based evaluation of IR techniques", section 2, with the
      linear gain of trec_eval and BEIR);
    - ``mrr@k``: 1 / rank of the first relevant document, 0 beyond k;
    - ``recall@k``: share of the relevant documents that are among the first k;
    - ``map@k``: sum of the precision at each relevant document of the first k, divided by the smaller of k and
      the number of relevant ones, as in sentence-transformers; trec_eval divides by their number;
    - ``accuracy@k``: whether a relevant document is among the first k.

    Args:
        ranked: Numbers of documents, best first, (Q, K), none twice in a row; K is the largest cutoff at least,
            -1 fills places that no document takes.
        relevance: For each query the grades of its documents by their numbers; those that aren't named have 0.
        figures: Names, of a kind and a cutoff.

    Returns:
        Name -> its value for each query, (Q,), float64, in [0, 1].

    Raises:
        ValueError: Another name, a ranking that is too short for a cutoff or has a document twice, or a query
            without a relevant document.

    Example:
        >>> ranked = torch.tensor([[4, 0, 2], [1, 3, -1]])
        >>> found = ranking_scores(ranked, [{0: 1, 2: 2}, {1: 1}], figures=["mrr@3", "recall@2"])
        >>> {name: values.tolist() for name, values in found.items()}
        {'mrr@3': [0.5, 1.0], 'recall@2': [0.5, 1.0]}
    """
    wanted = {name: _parsed(name) for name in figures}
    width = max((k for _, k in wanted.values()), default=0)
    _check(ranked, relevance, width)
    graded = [
        [grades.get(document, 0.0) for document in row]
        for row, grades in zip(ranked[:, :width].tolist(), relevance, strict=True)
    ]
    ideal = [sorted(grades.values(), reverse=True)[:width] for grades in relevance]
    relevant = [sum(grade > 0 for grade in grades.values()) for grades in relevance]
    found = _Graded(
        places=_matrix(graded, width),
        ideal=_matrix([row + [0.0] * (width - len(row)) for row in ideal], width),
        relevant=torch.tensor(relevant, dtype=torch.float64),
    )
    return {name: _KINDS[kind](found, k) for name, (kind, k) in wanted.items()}


class _Graded(NamedTuple):
    places: Tensor  # grade of each place, (Q, K)
    ideal: Tensor  # the same of the best ranking
    relevant: Tensor  # number of relevant documents, (Q,)


def _matrix(grades: Sequence[Sequence[float]], width: int) -> Tensor:
    """Returns grades as a matrix, (Q, width); those below 0 are no more than irrelevant, as in trec_eval."""
    return torch.tensor(grades, dtype=torch.float64).reshape(len(grades), width).clamp(min=0)


def _gain(grades: Tensor) -> Tensor:
    return (grades / torch.arange(2, grades.shape[1] + 2, dtype=torch.float64).log2()).sum(dim=1)


def _ndcg(found: _Graded, k: int) -> Tensor:
    return _gain(found.places[:, :k]) / _gain(found.ideal[:, :k])


def _mrr(found: _Graded, k: int) -> Tensor:
    reciprocal = (found.places[:, :k] > 0) / torch.arange(1, k + 1, dtype=torch.float64)
    return reciprocal.amax(dim=1)


def _recall(found: _Graded, k: int) -> Tensor:
    return (found.places[:, :k] > 0).sum(dim=1) / found.relevant


def _map(found: _Graded, k: int) -> Tensor:
    right = (found.places[:, :k] > 0).double()
    precision = right.cumsum(dim=1) / torch.arange(1, k + 1, dtype=torch.float64)
    return (precision * right).sum(dim=1) / found.relevant.clamp(max=k)


def _accuracy(found: _Graded, k: int) -> Tensor:
    return (found.places[:, :k] > 0).any(dim=1).double()


_KINDS: Mapping[str, Callable[[_Graded, int], Tensor]] = {
    "ndcg": _ndcg,
    "mrr": _mrr,
    "recall": _recall,
    "map": _map,
    "accuracy": _accuracy,
}


def _parsed(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"([a-z]+)@([1-9]\d*)", name)
    if found is None or found[1] not in _KINDS:
        raise InvalidValueError(
            f"figures: expected one of {', '.join(f'{kind}@K' for kind in _KINDS)}, got {name!r}; such as ndcg@10"
        )
    return found[1], int(found[2])


def _check(ranked: Tensor, relevance: Sequence[Mapping[int, float]], width: int) -> None:
    if ranked.ndim != 2 or len(ranked) != len(relevance):
        raise InvalidValueError(
            f"ranking_scores: expected rankings (Q, K) and grades of as many queries, got {tuple(ranked.shape)} "
            f"and {len(relevance)}; give a ranking for each query"
        )
    if ranked.shape[1] < width:
        raise InvalidValueError(
            f"ranking_scores.ranked: expected {width} places, as the largest cutoff has, got {ranked.shape[1]}; "
            "rank more documents, or fill up with -1 where there are no more"
        )
    ordered = ranked.sort(dim=1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(dim=1).nonzero().flatten()
    if len(twice):
        raise InvalidValueError(
            f"ranking_scores.ranked: expected a document once in a ranking, got one twice in row "
            f"{int(twice[0])}; leave out the second"
        )
    for number, grades in enumerate(relevance):
        if not any(grade > 0 for grade in grades.values()):
            raise InvalidValueError(
                f"ranking_scores.relevance: expected a document with a grade above 0 for each query, got none "
                f"for query {number}; leave the query out"
            )


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


def answer_ranks(rows: Tensor, columns: Tensor, target: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Returns for each row the rank of its column among all columns, by cosine similarity.

    1 + the number of other columns whose similarity is not smaller: ties count against the row, so that
    collapsed vectors, all equal, come last and not first. Similarities within 8 units of rounding are ties.

    Args:
        rows: Vectors that ask, (R, D).
        columns: Vectors to choose from, (C, D).
        target: For each row the index of its column, (R,).
        unseen: True for a column that a row doesn't meet, (R, C), never its own; None where rows meet all.

    Returns:
        Ranks from 1 to C, (R,), int64.

    Raises:
        ValueError: A shape does not fit.

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
        own = cosines.gather(1, target[block, None])
        rounding = 8 * torch.finfo(cosines.dtype).eps
        nearer = cosines >= own - rounding  # the answer itself is the 1
        ranks.append((nearer if unseen is None else nearer & ~unseen[block]).sum(dim=1))
    return torch.cat(ranks)


def in_batch_accuracy(rows: Tensor, columns: Tensor, target: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Returns the share of rows whose own column is the most similar one.

    Ties count against the row (see ``answer_ranks``): collapsed vectors score 0.

    Args:
        rows: Vectors that ask, (R, D).
        columns: Vectors to choose from, (C, D).
        target: For each row the index of its column, (R,).
        unseen: As for ``answer_ranks``.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> in_batch_accuracy(torch.eye(2), torch.eye(2), target=torch.tensor([0, 0]))
        tensor(0.5000)
    """
    return (answer_ranks(rows, columns, target, unseen) == 1).float().mean()
