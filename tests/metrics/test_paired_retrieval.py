"""Retrieval scores against a full sort, and what ties do to them."""

import pytest
import torch

from contrastive_text.metrics import geometry, paired_retrieval


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_it_equals_a_full_sort():
    documents = normal(60, 6, seed=1)
    queries = documents + normal(60, 6, seed=2)
    ranks = []
    for i, query in enumerate(queries):
        cosines = [float(query @ d / query.norm() / d.norm()) for d in documents]
        ranks.append(1 + sorted(range(60), key=lambda j: -cosines[j]).index(i))
    scores = paired_retrieval(queries, documents)
    assert 0 < scores.recall_at_1 < 100
    assert scores.recall_at_1 == pytest.approx(100 * ranks.count(1) / 60, rel=1e-5)
    assert scores.mrr == pytest.approx(100 * sum(1 / r for r in ranks) / 60, rel=1e-5)


def test_blocks_do_not_change_the_scores(monkeypatch):
    queries, documents = normal(30, 3, seed=1), normal(30, 3, seed=2)
    whole = paired_retrieval(queries, documents)
    monkeypatch.setattr(geometry, "_BLOCK_VALUES", 100)
    assert paired_retrieval(queries, documents) == whole


def test_identical_vectors_find_themselves():
    vectors = normal(50, 8)
    assert paired_retrieval(vectors, vectors) == (100.0, 100.0)


def test_a_copy_of_the_answer_counts_against_it():
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    scores = paired_retrieval(queries, queries)
    assert scores.recall_at_1 == pytest.approx(100 / 3, rel=1e-5)
    assert scores.mrr == pytest.approx(100 * (1 / 2 + 1 + 1 / 2) / 3, rel=1e-5)


def test_collapsed_vectors_get_the_worst_scores():
    scores = paired_retrieval(torch.ones(20, 4), torch.ones(20, 4))
    assert scores.recall_at_1 == 0
    assert scores.mrr == pytest.approx(100 / 20, rel=1e-5)


def test_unequal_numbers_are_refused():
    with pytest.raises(ValueError, match="paired_retrieval: expected paired vectors"):
        paired_retrieval(torch.ones(3, 2), torch.ones(4, 2))
