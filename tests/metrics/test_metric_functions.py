"""The formulas of the metrics against slow loops and the values of the specification."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import parts
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contrastive_text.metrics import (
    Alignment,
    SpearmanSimilarity,
    Uniformity,
    alignment,
    answer_ranks,
    average_ranks,
    effective_rank,
    geometry,
    in_batch_accuracy,
    iso_score,
    k_occurrences,
    matthews,
    mean_cosine,
    nearest_similarity,
    off_diagonal,
    pair_similarity,
    paired_retrieval,
    pearson,
    spearman,
    uniformity,
)

SEEDS = st.integers(min_value=0, max_value=2**31)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def slow_uniformity(x, t):
    unit = torch.stack([row / row.norm() for row in x])
    potentials = [math.exp(-t * float((a - b).norm()) ** 2) for a, b in itertools.combinations(unit, 2)]
    return math.log(sum(potentials) / len(potentials))


def slow_ranks(rows, columns, target):
    def cosine(a, b):
        return float(a @ b / a.norm() / b.norm())

    return [
        1 + sum(cosine(row, c) >= cosine(row, columns[own]) for j, c in enumerate(columns) if j != own)
        for row, own in zip(rows, target.tolist(), strict=True)
    ]


class TestSpecification:
    def test_e2_holds_with_the_vectors_file(self, vectors):
        case = vectors["spearman_ties"]
        result = spearman(torch.tensor(case["system"]), torch.tensor(case["gold"]))
        assert result.item() == pytest.approx(case["spearman_average_ranks"], abs=1e-6)

    def test_e1_the_sub_sets_and_their_union_hold(self, vectors):
        case = vectors["sts_aggregation"]
        subsets = {name: [torch.tensor(s[k]) for k in ("system", "gold")] for name, s in case["subsets"].items()}
        for name, (system, gold) in subsets.items():
            assert spearman(system, gold).item() == pytest.approx(case["spearman_per_subset"][name], abs=1e-6)
        system, gold = (torch.cat(parts) for parts in zip(*subsets.values(), strict=True))
        assert spearman(system, gold).item() == pytest.approx(case["all"], abs=1e-6)

    def test_e3_a_zero_vector_has_similarity_zero(self):
        u = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
        assert pair_similarity(u, torch.tensor([[1.0, 2.0], [0.0, 0.0]])).tolist() == [0.0, 0.0]

    def test_e4_holds_with_the_vectors_file(self, vectors):
        case = vectors["alignment_uniformity"]
        x = torch.tensor(case["x_unnormalised"], dtype=torch.float64)
        y = torch.tensor(case["y_unnormalised"], dtype=torch.float64)
        assert alignment(x, y).item() == pytest.approx(case["alignment_alpha2"], abs=1e-9)
        together = uniformity(torch.cat([x, y])).item()
        assert together == pytest.approx(case["uniformity_t2_all_six_points"], abs=1e-9)
        assert uniformity(x).item() == pytest.approx(case["uniformity_x_only"], abs=1e-9)

    @pytest.mark.parametrize(("second", "expected"), [([-3.0, 0.0], -8.0), ([0.0, 2.0], -4.0), ([5.0, 0.0], 0.0)])
    def test_e4_two_points_give_minus_eight_minus_four_or_zero(self, second, expected):
        assert uniformity(torch.tensor([[1.0, 0.0], second])).item() == pytest.approx(expected, abs=1e-6)


class TestUniformity:
    @pytest.mark.parametrize("t", [0.5, 2.0, 300.0])
    def test_it_equals_the_double_loop(self, t):
        # t = 300: each term alone underflows in float32, not in the log-sum-exp
        x = normal(17, 5)
        assert uniformity(x, t=t).item() == pytest.approx(slow_uniformity(x, t=t), rel=1e-9)

    @pytest.mark.parametrize("values", [1, 7, 40, 10**6])
    def test_blocks_do_not_change_the_result(self, monkeypatch, values):
        x = normal(13, 4)
        whole = uniformity(x)
        monkeypatch.setattr(geometry, "_BLOCK_VALUES", values)
        torch.testing.assert_close(uniformity(x), whole, rtol=1e-12, atol=1e-12)

    def test_a_gradient_flows_through_the_blocks(self, monkeypatch):
        monkeypatch.setattr(geometry, "_BLOCK_VALUES", 10)
        x = normal(5, 3).requires_grad_()
        assert torch.autograd.gradcheck(uniformity, (x,))


class TestOffDiagonal:
    def test_it_is_the_root_mean_square_of_numpys_correlations(self):
        x = normal(9, 4)
        correlations = np.corrcoef(x.numpy(), rowvar=False)[~np.eye(4, dtype=bool)]
        expected = math.sqrt((correlations**2).mean())
        assert off_diagonal(x).item() == pytest.approx(expected, rel=1e-12)
        assert off_diagonal(100 + 7 * x).item() == pytest.approx(expected, rel=1e-9)

    def test_features_of_one_direction_are_all_alike_and_constant_ones_are_like_none(self):
        assert off_diagonal(normal(9, 1) @ normal(1, 4)).item() == pytest.approx(1)
        assert off_diagonal(torch.ones(9, 4)) == 0

    def test_one_feature_is_like_no_other(self):
        assert off_diagonal(normal(3, 1)) == 0


class TestAlignment:
    @pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0])
    def test_it_equals_the_loop(self, alpha):
        x, y = normal(9, 4, seed=1), normal(9, 4, seed=2)
        distances = [float((a / a.norm() - b / b.norm()).norm()) ** alpha for a, b in zip(x, y, strict=True)]
        assert alignment(x, y, alpha=alpha).item() == pytest.approx(sum(distances) / 9, rel=1e-12)


class TestEqualVectors:
    def test_their_similarity_is_exactly_1_so_that_they_tie(self) -> None:
        torch.manual_seed(0)
        x = torch.randn(500, 384)
        assert pair_similarity(x, x).unique().tolist() == [1.0]


class TestEffectiveRank:
    def test_collapsed_vectors_have_rank_one_and_an_orthonormal_set_its_size(self):
        assert effective_rank(torch.ones(6, 4)).item() == pytest.approx(1.0, abs=1e-4)
        assert effective_rank(torch.eye(5)).item() == pytest.approx(5.0, abs=1e-4)

    def test_zero_vectors_give_one(self):
        assert effective_rank(torch.zeros(3, 2)).item() == 1.0


class TestAnswerRanks:
    def test_they_equal_the_loop(self):
        rows, columns = normal(9, 5, seed=1), normal(12, 5, seed=2)
        target = torch.tensor([0, 11, 3, 3, 5, 6, 7, 8, 1])
        assert answer_ranks(rows, columns, target).tolist() == slow_ranks(rows, columns, target)

    def test_collapsed_vectors_come_last(self):
        same = normal(1, 384, dtype=torch.float32).repeat(50, 1)
        assert answer_ranks(same, same, torch.arange(50)).tolist() == [50] * 50
        assert in_batch_accuracy(same, same, torch.arange(50)).item() == 0

    def test_a_scaled_copy_of_the_answer_is_a_tie(self):
        # The copy is rounded differently from the answer: without a tolerance chance would decide.
        answer = normal(40, 257, dtype=torch.float32)
        columns = torch.cat([answer, answer * 0.3])
        assert answer_ranks(answer, columns, torch.arange(40)).tolist() == [2] * 40

    def test_zero_vectors_come_last(self):
        assert answer_ranks(torch.zeros(2, 3), torch.eye(3), torch.arange(2)).tolist() == [3, 3]


class TestSpearman:
    @given(pairs=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=40))
    @settings(max_examples=100, deadline=None)
    def test_it_equals_scipy_with_many_ties(self, pairs):
        x, y = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
        if len(x.unique()) == 1 or len(y.unique()) == 1:
            return
        expected = stats.spearmanr(x.numpy(), y.numpy()).statistic
        assert spearman(x, y).item() == pytest.approx(expected, abs=1e-12)
        assert pearson(x, y).item() == pytest.approx(stats.pearsonr(x.numpy(), y.numpy()).statistic, abs=1e-12)

    @given(values=st.lists(st.floats(-1, 1), min_size=1, max_size=40))
    @settings(max_examples=100, deadline=None)
    def test_average_ranks_equal_scipys(self, values):
        expected = stats.rankdata(values, method="average").tolist()
        assert average_ranks(torch.tensor(values, dtype=torch.float64)).tolist() == expected

    @given(seed=SEEDS)
    @settings(max_examples=25, deadline=None)
    def test_only_the_order_counts(self, seed):
        x, y = normal(20, seed=seed), normal(20, seed=seed + 1)
        torch.testing.assert_close(spearman(x.exp(), 3 * y - 1), spearman(x, y))
        torch.testing.assert_close(spearman(x, -y), -spearman(x, y))
        torch.testing.assert_close(spearman(y, x), spearman(x, y))

    def test_many_tied_pairs_do_not_overflow(self):
        # torchmetrics 1.9 sums the ranks of a tie in int32: here it gives 0.06 for 0.69
        x = normal(200_000, seed=1)
        y = ((x + normal(200_000, seed=2)) * 2).round()
        expected = stats.spearmanr(x.numpy(), y.numpy()).statistic
        assert spearman(x, y).item() == pytest.approx(expected, abs=1e-12)
        assert pearson(x, y).item() == pytest.approx(stats.pearsonr(x.numpy(), y.numpy()).statistic, abs=1e-12)

    def test_columns_of_a_matrix_give_no_warning(self, recwarn):
        matrix = normal(5, 2)
        spearman(matrix[:, 0], matrix[:, 1])
        assert not recwarn.list

    @pytest.mark.parametrize("name", ["first", "second"])
    def test_a_constant_side_gives_zero_and_a_warning(self, name):
        sides = (torch.ones(4), torch.arange(4.0))
        x, y = sides if name == "first" else sides[::-1]
        with pytest.warns(UserWarning, match=f"all 4 values of the {name} argument are equal"):
            assert spearman(x, y).item() == 0


REFUSED: list[tuple[Callable[..., object], tuple[Any, ...], list[str]]] = [
    *(
        (alignment, (torch.ones(x), torch.ones(y)), ["alignment", f"{x}"])
        for x, y in (((2, 3), (3, 3)), ((2, 3), (2, 4)), ((0, 3), (0, 3)), ((3,), (3,)))
    ),
    (alignment, (torch.eye(2), torch.eye(2), 0), ["alignment.alpha", "0"]),
    (Alignment, (0.0,), ["Alignment.alpha", "0.0"]),
    (Uniformity, (-1.0,), ["Uniformity.t", "-1.0"]),
    *((uniformity, (torch.eye(2), t), ["uniformity.t", f"{t}"]) for t in (0.0, math.inf, math.nan)),
    *(
        (figure, (torch.ones(1, 3),), ["n >= 2", "(1, 3)"])
        for figure in (uniformity, mean_cosine, iso_score, nearest_similarity, k_occurrences)
    ),
    *((k_occurrences, (torch.eye(5), k), ["k_occurrences.k", "1 to 4", f"{k}"]) for k in (0, 5, 9)),
    (iso_score, (torch.ones(4, 1),), ["2 features", "(4, 1)"]),
    *(
        (
            answer_ranks,
            (torch.ones(3, 5), torch.ones(columns), torch.zeros(target)),
            ["answer_ranks", f"{columns}"],
        )
        for columns, target in (((4, 2), 3), ((4, 5), 2), ((0, 5), 3))
    ),
    *(
        (spearman, (torch.arange(3.0), torch.tensor([1.0, value, 2.0])), ["NaN or infinity", "second"])
        for value in (math.nan, math.inf)
    ),
    *(
        (spearman, (torch.ones(x), torch.ones(y)), ["spearman", f"{x}"])
        for x, y in (((1,), (1,)), ((3,), (4,)), ((3, 1), (3, 1)))
    ),
    (
        SpearmanSimilarity().update,
        (torch.eye(3), torch.eye(3), torch.ones(3, 1)),
        ["SpearmanSimilarity.target", "(3, 1)"],
    ),
    (matthews, (torch.zeros(3, 2), torch.zeros(3)), ["matthews", "a predicted and a true class"]),
    (paired_retrieval, (torch.ones(3, 2), torch.ones(4, 2)), ["paired_retrieval", "(4, 2)"]),
]


@pytest.mark.parametrize(("figure", "values", "words"), REFUSED, ids=lambda each: getattr(each, "__name__", ""))
def test_values_without_a_figure_are_refused(
    figure: Callable[..., object], values: tuple[Any, ...], words: list[str]
) -> None:
    parts.check_refused(lambda: figure(*values), ValueError, words)


# SpearmanSimilarity


def test_e2_ties_take_average_ranks():
    # Unit vectors at these cosines to (1, 0): system scores .5, .5, .2, .9
    cosines = torch.tensor([0.5, 0.5, 0.2, 0.9], dtype=torch.float64)
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    v = torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1)
    metric = SpearmanSimilarity()
    metric.update(u, v, target=torch.tensor([3, 1, 1, 5]))
    assert metric.compute().item() == pytest.approx(83.33333333, abs=1e-7)


def test_e3_a_zero_vector_counts_as_similarity_zero():
    u = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    metric = SpearmanSimilarity()
    metric.update(u, v, target=torch.tensor([5.0, 3.0, 1.0]))
    assert metric.compute().item() == pytest.approx(100.0)


def test_a_collapsed_encoder_scores_zero_with_a_warning():
    metric = SpearmanSimilarity()
    metric.update(torch.ones(3, 2), torch.ones(3, 2), target=torch.arange(3.0))
    with pytest.warns(UserWarning, match="collapsed"):
        assert metric.compute().item() == 0


def test_nan_vectors_are_refused():
    metric = SpearmanSimilarity()
    metric.update(torch.full((3, 2), torch.nan), torch.ones(3, 2), target=torch.arange(3.0))
    with pytest.raises(ValueError, match="NaN or infinity"):
        metric.compute()


# Retrieval of pairs


def test_paired_retrieval_equals_a_full_sort():
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


def test_a_copy_of_the_answer_counts_against_it():
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    scores = paired_retrieval(queries, queries)
    assert scores.recall_at_1 == pytest.approx(100 / 3, rel=1e-5)
    assert scores.mrr == pytest.approx(100 * (1 / 2 + 1 + 1 / 2) / 3, rel=1e-5)
