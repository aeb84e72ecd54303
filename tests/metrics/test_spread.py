"""How evenly vectors spread, against slow definitions in numpy and the closed forms of simple sets."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from contrastive_text.metrics import (
    PositiveAlignment,
    effective_rank,
    geometry,
    hubness,
    iso_score,
    k_occurrences,
    mean_cosine,
    nearest_similarity,
    positive_pairs,
    spectrum,
)
from contrastive_text.metrics.neighbours import hubs

SEEDS = st.integers(min_value=0, max_value=2**31)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def unit(x):
    rows = x.numpy()
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def slow_iso_score(x):
    """The steps of section 4 as the paper has them: reorient, take variances, normalise, defect, rescale."""
    points = unit(x)
    features = points.shape[1]
    centred = points - points.mean(axis=0)
    _, axes = np.linalg.eigh(np.cov(centred.T))
    variances = np.diag(np.cov((centred @ axes).T))
    normalised = math.sqrt(features) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - np.ones(features)) / math.sqrt(2 * (features - math.sqrt(features)))
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
        found = hubs(counts)
        assert found.skewness == pytest.approx(stats.skew(counts.numpy()), abs=1e-12)
        assert found.orphans == pytest.approx(np.mean(counts.numpy() == 0))

    def test_the_nearest_similarity_is_the_largest_off_the_diagonal(self):
        x = normal(11, 4)
        cosines = unit(x) @ unit(x).T
        np.fill_diagonal(cosines, -1)
        np.testing.assert_allclose(nearest_similarity(x).numpy(), cosines.max(axis=1), rtol=1e-10)

    @pytest.mark.parametrize("values", [1, 17, 60])
    def test_blocks_change_nothing(self, monkeypatch, values):
        x = normal(20, 4)
        whole = k_occurrences(x, 3), nearest_similarity(x)
        monkeypatch.setattr(geometry, "_BLOCK_VALUES", values)
        torch.testing.assert_close(k_occurrences(x, 3), whole[0], rtol=0, atol=0)
        # Products of other shapes are summed in another order: rounding of float64.
        torch.testing.assert_close(nearest_similarity(x), whole[1], rtol=0, atol=1e-14)


class TestClosedForms:
    @pytest.mark.parametrize("used", [1, 2, 5])
    def test_iso_score_grows_with_the_directions_that_are_used_alike(self, used):
        x = torch.cat([torch.eye(5)[:used], -torch.eye(5)[:used]])
        assert iso_score(x).item() == pytest.approx((used - 1) / 4, abs=1e-6)

    def test_vectors_that_are_all_equal_have_collapsed(self):
        x = normal(1, 300, dtype=torch.float32).repeat(40, 1) * torch.linspace(0.1, 9, 40).unsqueeze(1)
        assert mean_cosine(x).item() == pytest.approx(1.0, abs=1e-6)
        assert iso_score(x).item() == 0.0  # not the direction of rounding errors
        assert spectrum(x)[0].item() == pytest.approx(1.0, abs=1e-4)
        assert hubness(x) == (0.0, 0.0)  # not the order of the rows
        torch.testing.assert_close(k_occurrences(x), torch.full((40,), 10.0))

    def test_two_clusters_of_m_at_right_angles(self):
        m = 5
        x = torch.eye(2).repeat_interleave(m, dim=0)
        assert mean_cosine(x).item() == pytest.approx((m - 1) / (2 * m - 1))
        assert spectrum(x).tolist() == pytest.approx([0.5, 0.5])
        assert iso_score(x).item() == pytest.approx(0.0, abs=1e-6)  # around the mean they lie on a line
        assert k_occurrences(x, m - 1).tolist() == pytest.approx([m - 1] * (2 * m))

    def test_zero_vectors_are_similar_to_nothing(self):
        zeros = torch.zeros(4, 3)
        assert mean_cosine(zeros).item() == 0.0
        assert spectrum(zeros).tolist() == [0.0] * 3
        assert iso_score(zeros).item() == 0.0
        assert nearest_similarity(zeros).tolist() == [0.0] * 4
        assert mean_cosine(torch.cat([zeros[:1], torch.ones(2, 3)])).item() == pytest.approx(1 / 3)

    def test_a_centre_is_a_hub_and_its_rim_are_orphans(self):
        rim = torch.eye(6)
        x = torch.cat([rim, rim.sum(dim=0, keepdim=True), torch.full((1, 6), 1.0) + 0.1 * rim[:1]])
        occurrences = k_occurrences(x, k=1)
        assert occurrences.sum().item() == pytest.approx(8)  # one each
        found = hubness(x, k=1)
        assert found.orphans == pytest.approx(6 / 8)
        assert found.skewness > 1.5

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
