"""Exact search: tile by tile as by one dense sort, whatever the block, the type and the ties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from covering import rest_slow
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.inference.duplicates import connected_groups, near_duplicates
from contrastive_text.inference.search import UnitVectors, nearest, top_k


def random_vectors(count: int, features: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def few_directions(count: int, seed: int) -> Tensor:
    """Vectors along the axes, some zero, whose cosines are exact in any order of summation."""
    draws = torch.Generator().manual_seed(seed)
    axis = torch.randint(0, 4, (count,), generator=draws)
    sign = torch.randint(-1, 2, (count,), generator=draws)
    return (
        torch.nn.functional.one_hot(axis, 4)
        * (sign * 2 ** torch.randint(0, 3, (count,), generator=draws))[:, None]
    )


def sorted_cosines(queries: Tensor, corpus: Tensor) -> list[list[tuple[float, int]]]:
    """Cosine and id of the whole corpus for each query, by a loop: best first, then the lower id."""
    found = []
    for query in queries.double():
        cosines = []
        for i, vector in enumerate(corpus.double()):
            length = float(query.norm() * vector.norm())
            cosines.append((float(query @ vector) / length if length else 0.0, i))
        found.append(sorted(cosines, key=lambda each: (-each[0], each[1])))
    return found


@given(count=st.integers(1, 40), k=st.integers(1, 50), block=st.integers(1, 45), seed=st.integers(0, 99))
def test_top_k_equals_the_dense_sort_with_ties_by_id(count: int, k: int, block: int, seed: int) -> None:
    queries, corpus = few_directions(7, seed).float(), few_directions(count, seed + 1).float()
    scores, ids = top_k(queries, corpus, k=k, block=block)
    expected = [row[:k] for row in sorted_cosines(queries, corpus)]
    found = [list(zip(*each, strict=True)) for each in zip(scores.tolist(), ids.tolist(), strict=True)]
    assert found == expected
    assert scores.shape == ids.shape == (7, min(k, count))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_top_k_of_any_type_is_that_of_its_values_in_float64(dtype: torch.dtype) -> None:
    queries, corpus = random_vectors(5).to(dtype), random_vectors(300, seed=1).to(dtype)
    scores, ids = top_k(queries, corpus, k=9, block=64)
    expected = sorted_cosines(queries, corpus)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert ids.tolist() == [[i for _, i in row[:9]] for row in expected]
    # Six products of float32 are rounded by at most 6 x 6e-8; in half precision it would be 1e-3.
    tolerance = 1e-14 if dtype == torch.float64 else 5e-7
    best = torch.tensor([[score for score, _ in row[:9]] for row in expected], dtype=torch.float64)
    torch.testing.assert_close(scores.double(), best, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("length", "count", "block"),
    rest_slow([(1e-6, 3, 256), (1.0, 1, 4096), (1.0, 4, 7), (1.0, 9, 256), (1e6, 3, 4096)], quick=2),
)
def test_a_corpus_of_any_length_and_one_made_ready_give_the_best_cosines(
    length: float, count: int, block: int
) -> None:
    corpus, queries = random_vectors(1100, 8).float(), random_vectors(count, 8, seed=1).float()
    cosines = torch.nn.functional.normalize(queries.double()) @ torch.nn.functional.normalize(corpus.double()).T
    corpus *= length
    for given_as in (corpus, UnitVectors.of([corpus[:500], corpus[500:]])):
        scores, ids = top_k(queries, given_as, k=9, block=block)
        torch.testing.assert_close(scores.double(), cosines.topk(9).values, rtol=0, atol=1e-6)  # float32
        torch.testing.assert_close(scores.double(), cosines.gather(1, ids), rtol=0, atol=1e-6)


def test_parts_made_ready_keep_the_widest_type_and_have_the_same_features() -> None:
    parts = [random_vectors(3, 8).float(), random_vectors(2, 8, seed=1).double(), random_vectors(2, 8).half()]
    assert UnitVectors.of(parts).values.dtype == torch.float64
    assert UnitVectors.of(parts[2]).values.dtype == torch.float32
    with pytest.raises(ValueError, match="corpus: expected 8 features in every part, as the first has, got 1;"):
        UnitVectors.of([parts[0], torch.ones(4, 1)])


def test_an_empty_side_gives_an_empty_answer_and_zero_vectors_are_no_duplicates() -> None:
    for queries, corpus, shape in ((0, 5, (0, 3)), (2, 0, (2, 0))):
        scores, ids = top_k(torch.ones(queries, 4, requires_grad=True), torch.ones(corpus, 4), k=3)
        assert scores.shape == ids.shape == shape and not scores.requires_grad
    assert near_duplicates(torch.zeros(3, 4), threshold=0.1)[0].shape == (0, 2)


def test_cosines_stay_in_float32_under_autocast() -> None:
    queries, corpus = random_vectors(3, 64).float(), random_vectors(90, 64, seed=1).float()
    plain = top_k(queries, corpus, k=5)
    pairs = near_duplicates(corpus, threshold=0.2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(top_k(queries, corpus, k=5)[0], plain[0])
        assert torch.equal(near_duplicates(corpus, threshold=0.2)[1], pairs[1])


@given(count=st.integers(0, 40), block=st.integers(1, 45), seed=st.integers(0, 99))
def test_near_duplicates_are_those_of_the_double_loop(count: int, block: int, seed: int) -> None:
    vectors = random_vectors(count, features=3, seed=seed)
    ids, scores = near_duplicates(vectors, threshold=0.8, block=block)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    expected = {(i, j): float(unit[i] @ unit[j]) for i in range(count) for j in range(i + 1, count)}
    expected = {pair: cosine for pair, cosine in expected.items() if cosine >= 0.8}
    assert [tuple(pair) for pair in ids.tolist()] == list(expected)
    # The cosines are rounded to float32, by 6e-8.
    assert scores.tolist() == pytest.approx(list(expected.values()), abs=1e-7)


@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan"])
def test_search_by_another_similarity_equals_a_loop(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrastive_text.inference.search.BLOCK", 4)
    # Small whole numbers: sums are exact, and many similarities are equal.
    draws = torch.Generator().manual_seed(0)
    queries, corpus = (torch.randint(-2, 3, (n, 2), generator=draws).double() for n in (5, 11))
    found = nearest(name, queries, [corpus[:7], corpus[7:]], k=6)
    for query, hits in zip(queries, found, strict=True):
        apart = (query - corpus).abs()
        # math.sqrt rounds the square root of a whole number rightly. Torch's may be off in the last bit, by MKL.
        distances = [math.sqrt(square) for square in apart.square().sum(1).tolist()]
        scores = {
            "dot": (corpus @ query).tolist(),
            "euclidean": [-distance for distance in distances],
            "manhattan": (-apart.sum(1)).tolist(),
        }[name]
        best = sorted(range(11), key=lambda i, scores=scores: (-scores[i], i))[:6]
        assert [hit.corpus_id for hit in hits] == best
        assert [hit.score for hit in hits] == [scores[i] for i in best]


@given(pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)).filter(lambda pair: pair[0] != pair[1])))
def test_groups_are_connected_components_named_by_their_first(pairs: list[tuple[int, int]]) -> None:
    reached = [{i} for i in range(12)]
    for _ in range(12):  # spread along edges until nothing changes
        for one, other in pairs:
            reached[one] |= reached[other]
            reached[other] |= reached[one]
    found = connected_groups(torch.tensor(pairs, dtype=torch.long).reshape(-1, 2), count=12)
    assert found.tolist() == [min(each) for each in reached]
