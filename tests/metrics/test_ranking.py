"""Figures of rankings: those of sentence-transformers and trec_eval, ties included."""

from __future__ import annotations

from types import SimpleNamespace

import parts
import pytest
import torch
from torch import Tensor

from contrastive_text.inference.search import top_k
from contrastive_text.metrics import RETRIEVAL_METRICS, ranking_scores


def ranked_documents(similarities: Tensor, k: int) -> Tensor:
    """Returns numbers of documents, best first, of equal ones the lower number first; -1 beyond the corpus."""
    order = similarities.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return torch.nn.functional.pad(order, (0, k - order.shape[1]), value=-1)


def signs(rows: int, generator: torch.Generator) -> Tensor:
    """Vectors whose cosines are whole sixteenths, exactly: many of them are equal."""
    return torch.randint(0, 2, (rows, 16), generator=generator).float() * 2 - 1


def corpus(kind: str) -> tuple[Tensor, Tensor, list[str], list[dict[int, float]]]:
    """Returns vectors of queries and documents, ids of the documents in their order, and what is relevant."""
    generator = torch.Generator().manual_seed(3)
    documents = {"few": 7, "ties": 150, "plain": 120}[kind]
    draw = signs if kind != "plain" else lambda rows, of: torch.randn(rows, 8, generator=of)
    ids = sorted(f"d{place}" for place in range(documents))  # d1, d10, d100, d2: not the order of numbers
    vectors = draw(documents, generator)
    if kind == "ties":
        vectors[20:90] = vectors[20]  # more copies than a ranking of 100 leaves room for
    relevance = [
        dict.fromkeys(torch.randperm(documents, generator=generator)[: 1 + query % 5].tolist(), 1.0)
        for query in range(12)
    ]
    return draw(12, generator), vectors, ids, relevance


@pytest.mark.parametrize("kind", ["few", "ties", "plain"])
def test_figures_are_those_of_sentence_transformers(kind: str) -> None:
    evaluation = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    util = pytest.importorskip("sentence_transformers.util")
    queries, documents, ids, relevance = corpus(kind)
    shuffled = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1)).tolist()
    peer = evaluation.InformationRetrievalEvaluator(
        {f"q{number}": "" for number in range(len(queries))},
        {ids[place]: "" for place in shuffled},
        {f"q{number}": {ids[place] for place in grades} for number, grades in enumerate(relevance)},
        corpus_chunk_size=40,
        precision_recall_at_k=[1, 10, 100],
    )
    model = SimpleNamespace(
        encode_query=lambda *_, **__: queries, similarity=util.cos_sim, similarity_fn_name="cosine"
    )
    peer.score_functions = {"cosine": util.cos_sim}
    theirs = peer.compute_all_metrics(model, corpus_embeddings=documents[shuffled])["cosine"]
    places = min(100, len(documents))
    blocked = torch.nn.functional.pad(top_k(queries, documents, 100, block=32)[1], (0, 100 - places), value=-1)
    ours = {name: float(each.mean()) for name, each in ranking_scores(blocked, relevance).items()}
    expected = {name: theirs[f"{name.split('@')[0]}@k"][int(name.split("@")[1])] for name in RETRIEVAL_METRICS}
    assert ours == pytest.approx(expected, abs=1e-6)
    if kind != "plain":  # whose cosines the blocks may round otherwise
        unit = torch.nn.functional.normalize
        assert torch.equal(blocked, ranked_documents(unit(queries) @ unit(documents).T, 100))


def test_grades_count_as_in_trec_eval() -> None:
    trec = pytest.importorskip("pytrec_eval")
    grades = [{0: 2, 3: 1, 5: 3, 6: -1}, {1: 1, 2: 1, 4: 0}]
    similarities = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.95], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]])
    qrels = {
        str(query): {str(place): grade for place, grade in each.items()} for query, each in enumerate(grades)
    }
    run = {
        str(query): {str(place): float(score) for place, score in enumerate(row)}
        for query, row in enumerate(similarities)
    }
    theirs = trec.RelevanceEvaluator(qrels, {"ndcg_cut.3,10", "recall.5", "recip_rank"}).evaluate(run)
    names = {"ndcg@3": "ndcg_cut_3", "ndcg@10": "ndcg_cut_10", "recall@5": "recall_5", "mrr@10": "recip_rank"}
    ours = ranking_scores(ranked_documents(similarities, 10), grades, metrics=list(names))
    for name, their_name in names.items():
        assert ours[name].tolist() == pytest.approx([theirs[query][their_name] for query in ("0", "1")]), name


@pytest.mark.parametrize(
    ("ranked", "relevance", "figure", "words"),
    [
        ([[0, 1]], [{0: 1}], "ndcg@3", ["expected 3 documents", "got 2"]),
        ([[0, 1]], [{0: 1}], "hits@1", ["expected one of ndcg@K", "got 'hits@1'"]),
        ([[0, 1]], [{0: 1}], "ndcg@0", ["got 'ndcg@0'"]),
        ([[0, 1], [1, 1]], [{0: 1}, {0: 1}], "mrr@2", ["twice in row 1"]),
        ([[0, -1, -1], [1, 0, 2]], [{0: 1}, {1: 0}], "mrr@3", ["no such document for query 1"]),
        ([[0, 1]], [{0: 1}, {0: 1}], "mrr@2", ["got (1, 2) and 2"]),
    ],
)
def test_what_is_no_ranking_is_refused(
    ranked: list[list[int]], relevance: list[dict[int, float]], figure: str, words: list[str]
) -> None:
    parts.check_refused(lambda: ranking_scores(torch.tensor(ranked), relevance, [figure]), ValueError, words)
