"""Figures of vectors and of scores against slow loops, closed forms and the values of the specification."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import parts
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from contrastive_text.metrics import (
    Alignment,
    PositiveAlignment,
    SpearmanSimilarity,
    Uniformity,
    alignment,
    answer_ranks,
    average_ranks,
    effective_rank,
    geometry,
    hubness,
    in_batch_accuracy,
    iso_score,
    k_occurrences,
    linear_cka,
    matthews,
    mean_cosine,
    nearest_similarity,
    neighbor_overlap,
    off_diagonal,
    pair_similarity,
    paired_retrieval,
    pearson,
    positive_pairs,
    spearman,
    spectrum,
    uniformity,
)
from contrastive_text.metrics.neighbors import guide_agreement, hubness_from_occurrences

SEEDS = st.integers(min_value=0, max_value=2**31)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
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
        assert off_diagonal(torch.ones(9, 4)) == off_diagonal(normal(3, 1)) == 0


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


class TestPairs:
    @pytest.mark.parametrize("alpha", [1.0, 2.0, 3.0])
    def test_alignment_equals_the_loop(self, alpha):
        x, y = normal(9, 4, seed=1), normal(9, 4, seed=2)
        distances = [float((a / a.norm() - b / b.norm()).norm()) ** alpha for a, b in zip(x, y, strict=True)]
        assert alignment(x, y, alpha=alpha).item() == pytest.approx(sum(distances) / 9, rel=1e-12)

    def test_the_similarity_of_equal_vectors_is_exactly_1_so_that_they_tie(self) -> None:
        x = normal(500, 384, dtype=torch.float32)
        assert pair_similarity(x, x).unique().tolist() == [1.0]


class TestSpearman:
    @given(pairs=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=40))
    def test_it_equals_scipy_with_many_ties(self, pairs):
        x, y = (torch.tensor(side, dtype=torch.float64) for side in zip(*pairs, strict=True))
        if len(x.unique()) == 1 or len(y.unique()) == 1:
            return
        expected = stats.spearmanr(x.numpy(), y.numpy()).statistic
        assert spearman(x, y).item() == pytest.approx(expected, abs=1e-12)
        assert pearson(x, y).item() == pytest.approx(stats.pearsonr(x.numpy(), y.numpy()).statistic, abs=1e-12)

    @given(values=st.lists(st.floats(-1, 1), min_size=1, max_size=40))
    def test_average_ranks_equal_scipys(self, values):
        expected = stats.rankdata(values, method="average").tolist()
        assert average_ranks(torch.tensor(values, dtype=torch.float64)).tolist() == expected

    def test_many_tied_pairs_do_not_overflow(self):
        # torchmetrics 1.9 sums the ranks of a tie in int32: here it gives 0.06 for 0.69
        x = normal(200_000, seed=1)
        y = ((x + normal(200_000, seed=2)) * 2).round()
        expected = stats.spearmanr(x.numpy(), y.numpy()).statistic
        assert spearman(x, y).item() == pytest.approx(expected, abs=1e-12)
        assert pearson(x, y).item() == pytest.approx(stats.pearsonr(x.numpy(), y.numpy()).statistic, abs=1e-12)

    @pytest.mark.parametrize("name", ["first", "second"])
    def test_a_constant_side_gives_zero_and_a_warning(self, name):
        sides = (torch.ones(4), torch.arange(4.0))
        x, y = sides if name == "first" else sides[::-1]
        with pytest.warns(UserWarning, match=f"all 4 values of the {name} argument are equal"):
            assert spearman(x, y).item() == 0


AGREE = (linear_cka, neighbor_overlap)
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
    *(
        (of, (torch.ones(4, 3), torch.ones(5, 3)), ["of the same n >= 2 texts", "(4, 3) and (5, 3)"])
        for of in AGREE
    ),
    *((of, (torch.eye(4), torch.eye(4) * math.nan), ["NaN or infinity in the second argument"]) for of in AGREE),
    (linear_cka, (torch.eye(3), torch.eye(3), True), ["n >= 4 texts"]),
    *((neighbor_overlap, (torch.eye(10), torch.eye(10), k), ["k", "1 to 9", f"got {k}"]) for k in (0, 10)),
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


def unit(x):
    rows = x.numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def slow_iso_score(x):
    """The steps of section 4 as the paper has them: reorient, take variances, normalize, defect, rescale."""
    points = unit(x)
    features = points.shape[1]
    centered = points - points.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(centered.T))
    variances = np.diag(np.cov((centered @ axes).T))
    normalized = math.sqrt(features) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalized - np.ones(features)) / math.sqrt(2 * (features - math.sqrt(features)))
    used = (features - defect**2 * (features - math.sqrt(features))) ** 2 / features**2
    return (features * used - 1) / (features - 1)


def slow_occurrences(x, k):
    points = unit(x)
    counts = np.zeros(len(points))
    for i, point in enumerate(points):
        others = sorted((-float(point @ other), j) for j, other in enumerate(points) if j != i)
        for _, j in others[:k]:
            counts[j] += 1
    return counts


class TestAgainstTheDefinition:
    @given(seed=SEEDS)
    def test_mean_cosine_equals_the_mean_over_all_pairs(self, seed):
        x = normal(9, 4, seed=seed) + 0.5
        cosines = [float(a @ b) for a, b in itertools.combinations(unit(x), 2)]
        assert mean_cosine(x).item() == pytest.approx(np.mean(cosines), abs=1e-12)

    @given(seed=SEEDS)
    def test_iso_score_equals_the_steps_of_the_paper(self, seed):
        x = normal(12, 5, seed=seed) * torch.tensor([4.0, 2.0, 1.0, 1.0, 0.5]) + 0.3
        assert iso_score(x).item() == pytest.approx(slow_iso_score(x), abs=1e-10)

    def test_the_spectrum_is_that_of_numpy_and_its_entropy_gives_the_effective_rank(self):
        x = normal(8, 5)
        values = np.linalg.svd(unit(x), compute_uv=False)
        np.testing.assert_allclose(spectrum(x).numpy(), values / values.sum(), rtol=1e-10)
        assert effective_rank(x).item() == pytest.approx(math.exp(stats.entropy(values)), rel=1e-10)

    @pytest.mark.parametrize("k", [1, 3, 18])
    def test_k_occurrences_equal_a_full_sort(self, k):
        x = normal(19, 3)
        assert k_occurrences(x, k).tolist() == slow_occurrences(x, k).tolist()

    @given(seed=SEEDS)
    def test_hubness_equals_scipys_skewness(self, seed):
        counts = torch.randint(0, 9, (30,), generator=torch.Generator().manual_seed(seed)).double()
        found = hubness_from_occurrences(counts)
        assert found.skewness == pytest.approx(stats.skew(counts.numpy()), abs=1e-12)
        assert found.orphans == pytest.approx(np.mean(counts.numpy() == 0))

    def test_the_nearest_similarity_is_the_largest_off_the_diagonal(self):
        x = normal(11, 4)
        cosines = unit(x) @ unit(x).T
        np.fill_diagonal(cosines, -1)
        np.testing.assert_allclose(nearest_similarity(x).numpy(), cosines.max(axis=1), rtol=1e-10)


class TestClosedForms:
    def test_vectors_that_are_all_equal_have_collapsed(self):
        x = normal(1, 300, dtype=torch.float32).repeat(40, 1) * torch.linspace(0.1, 9, 40).unsqueeze(1)
        assert mean_cosine(x).item() == pytest.approx(1.0, abs=1e-6)
        assert iso_score(x).item() == 0.0  # not the direction of rounding errors
        assert spectrum(x)[0].item() == pytest.approx(1.0, abs=1e-4)
        assert hubness(x) == (0.0, 0.0)  # not the order of the rows
        torch.testing.assert_close(k_occurrences(x), torch.full((40,), 10.0))

    def test_zero_vectors_are_similar_to_nothing(self):
        zeros = torch.zeros(4, 3)
        assert mean_cosine(zeros).item() == 0.0
        assert spectrum(zeros).tolist() == [0.0] * 3
        assert iso_score(zeros).item() == 0.0
        assert nearest_similarity(zeros).tolist() == [0.0] * 4
        assert mean_cosine(torch.cat([zeros[:1], torch.ones(2, 3)])).item() == pytest.approx(1 / 3)

    def test_of_equally_near_ones_each_has_its_share(self):
        x = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        assert k_occurrences(x, k=1).tolist() == [1.0, 1.0, 1.0]


class TestPositivePairs:
    def test_of_sts_b_they_are_the_scores_above_four(self):
        assert positive_pairs(torch.tensor([5.0, 4.001, 4.0, 3.9])).tolist() == [True, True, False, False]

    @pytest.mark.parametrize("score", [0.0, -1.0])
    def test_without_a_score_above_zero_there_are_none(self, score):
        assert not positive_pairs(torch.full((3,), score)).any()

    def test_without_positives_it_is_nan(self):
        metric = PositiveAlignment()
        metric.update(torch.eye(2), torch.eye(2), target=torch.zeros(2))
        assert metric.compute().isnan()


# Linear CKA


def cka_of_kernels(x: Tensor, y: Tensor) -> float:
    """Kornblith et al. 2019, equation 4, with the n x n kernels and the centering matrix spelled out."""
    centering = torch.eye(len(x), dtype=torch.float64) - 1 / len(x)
    k, m = (centering @ side @ side.T @ centering for side in (x, y))
    return float((k * m).sum() / ((k * k).sum() * (m * m).sum()).sqrt())


def hsic_of_quadruples(x: Tensor, y: Tensor) -> float:
    """The unbiased estimate by its meaning: a mean over all four different texts."""
    k, m = x @ x.T, y @ y.T
    terms = [
        k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q]) for i, j, q, r in itertools.permutations(range(len(x)), 4)
    ]
    return float(torch.stack(terms).mean())


def test_linear_cka_is_the_alignment_of_the_centered_kernels() -> None:
    x, y = normal(12, 5) + 3, normal(12, 7, seed=1) - 1
    assert float(linear_cka(x, y)) == pytest.approx(cka_of_kernels(x, y), abs=1e-12)  # float64
    assert float(linear_cka(x.float(), y.float())) == pytest.approx(cka_of_kernels(x, y), abs=1e-6)


def test_the_debiased_alignment_is_that_of_the_unbiased_estimates() -> None:
    x, y = normal(8, 3) + 2, normal(8, 4, seed=1)
    expected = hsic_of_quadruples(x, y) / math.sqrt(hsic_of_quadruples(x, x) * hsic_of_quadruples(y, y))
    assert float(linear_cka(x, y, debiased=True)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("debiased", [False, True])
def test_equal_vectors_have_no_alignment_with_anything(debiased: bool) -> None:
    assert linear_cka(torch.full((9, 4), 0.1), normal(9, 4), debiased).isnan()
    assert linear_cka(normal(9, 4), torch.zeros(9, 2), debiased).isnan()


# Overlap of neighbors


def overlap_of_sets(x: Tensor, y: Tensor, k: int) -> float:
    shares = []
    for i in range(len(x)):
        near = []
        for side in (x, y):
            cosines = torch.nn.functional.cosine_similarity(side[i : i + 1], side)
            others = sorted((j for j in range(len(side)) if j != i), key=lambda j: -float(cosines[j]))
            near.append({*others[:k]})
        shares.append(len(near[0] & near[1]) / k)
    return sum(shares) / len(shares)


@pytest.mark.parametrize("k", [1, 3, 19])
def test_the_overlap_is_that_of_the_sets_of_neighbors(k: int) -> None:
    x = normal(20, 4)
    y = x + 0.5 * normal(20, 4, seed=1)
    overlap = float(neighbor_overlap(x, y, k))
    assert overlap == pytest.approx(overlap_of_sets(x, y, k), abs=1e-12)  # float64
    assert float(neighbor_overlap(x, 3 * x, k)) == 1
    assert (overlap < 1) == (k < 19)


def test_ties_are_shared_whatever_the_order_of_the_texts() -> None:
    x = torch.eye(6)[[0, 0, 0, 0, 1, 2]]  # 0 to 3 are one text
    y = torch.eye(6)[[0, 0, 3, 4, 1, 2]]
    # Of text 0 one model has 1, 2 and 3 tied for two places, 2/3 each; the other has 1, and 2 to 5 tied at
    # cosine 0 for the place left, 1/4 each: 2/3 + 1/4 + 1/4 in common. Text 1 likewise. Of texts 2 and 3 the
    # first has 2/3 of three texts, the other 2/5 of all: 3 x 2/5. Of 4 and 5 both have 2/5 of all: 2.
    expected = (2 * (2 / 3 + 1 / 2) + 2 * 6 / 5 + 2 * 2) / (2 * 6)
    assert float(neighbor_overlap(x, y, k=2)) == pytest.approx(expected, abs=1e-6)  # float32
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert float(neighbor_overlap(x[order], y[order], k=2)) == pytest.approx(expected, abs=1e-6)
    assert float(neighbor_overlap(x, x, k=2)) == pytest.approx(1, abs=1e-6)


# Agreement with a guide


def test_agreement_with_a_guide_is_the_overlap_of_the_nearest_one_but_for_what_is_hidden() -> None:
    x, y = (torch.nn.functional.normalize(normal(30, size, seed=size), dim=1) for size in (3, 4))
    x[7], y[7] = x[9], y[9]  # equal texts share a place
    own = torch.eye(30, dtype=torch.bool)
    found = guide_agreement(x @ x.T, y @ y.T, own)
    torch.testing.assert_close(found, neighbor_overlap(x, y, k=1), rtol=0, atol=1e-12)
    assert 0 < float(found) < 1
    assert float(guide_agreement(x @ x.T, x @ x.T, own)) == 1
    one = ~own
    one[0, 1] = False  # the only row with a candidate that is not itself
    assert float(guide_agreement(x @ x.T, y @ y.T, one | own)) == 1
    assert float(guide_agreement(x @ x.T, y @ y.T, torch.ones_like(own))) == 0
