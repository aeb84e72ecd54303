"""Agreement of two models on the same texts, against the definitions over texts by texts."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from contrastive_text.metrics import geometry
from contrastive_text.metrics.neighbours import guide_agreement, linear_cka, neighbour_overlap


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Linear CKA


def cka_of_kernels(x: Tensor, y: Tensor) -> float:
    """Kornblith et al. 2019, equation 4, with the n x n kernels and the centring matrix spelled out."""
    centring = torch.eye(len(x), dtype=torch.float64) - 1 / len(x)
    k, m = (centring @ side @ side.T @ centring for side in (x, y))
    return float((k * m).sum() / ((k * k).sum() * (m * m).sum()).sqrt())


def hsic_of_quadruples(x: Tensor, y: Tensor) -> float:
    """The unbiased estimate by its meaning: a mean over all four different texts."""
    k, m = x @ x.T, y @ y.T
    terms = [
        k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q]) for i, j, q, r in itertools.permutations(range(len(x)), 4)
    ]
    return float(torch.stack(terms).mean())


def test_linear_cka_is_the_alignment_of_the_centred_kernels() -> None:
    x, y = draw(12, 5) + 3, draw(12, 7, seed=1) - 1
    assert float(linear_cka(x, y)) == pytest.approx(cka_of_kernels(x, y), abs=1e-12)  # float64
    assert float(linear_cka(x.float(), y.float())) == pytest.approx(cka_of_kernels(x, y), abs=1e-6)


def test_the_debiased_alignment_is_that_of_the_unbiased_estimates() -> None:
    x, y = draw(8, 3) + 2, draw(8, 4, seed=1)
    expected = hsic_of_quadruples(x, y) / math.sqrt(hsic_of_quadruples(x, x) * hsic_of_quadruples(y, y))
    assert float(linear_cka(x, y, debiased=True)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("debiased", [False, True])
def test_turning_moving_and_scaling_changes_no_alignment(debiased: bool) -> None:
    x, y = draw(30, 6), draw(30, 6, seed=1)
    turned = 7 * x @ torch.linalg.qr(draw(6, 6, seed=2)).Q + 100
    assert float(linear_cka(x, turned, debiased)) == pytest.approx(1, abs=1e-9)  # 100 costs two digits squared
    assert float(linear_cka(turned, y, debiased)) == pytest.approx(float(linear_cka(x, y, debiased)), abs=1e-9)


def test_unrelated_vectors_have_no_alignment_once_it_is_debiased() -> None:
    x, y = draw(400, 200), draw(400, 200, seed=1)
    assert float(linear_cka(x, y)) == pytest.approx(200 / 600, abs=0.01)  # D / (n + D)
    # Its standard deviation is about 1 / n here: four of them.
    assert float(linear_cka(x, y, debiased=True)) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("debiased", [False, True])
def test_equal_vectors_have_no_alignment_with_anything(debiased: bool) -> None:
    assert linear_cka(torch.full((9, 4), 0.1), draw(9, 4), debiased).isnan()
    assert linear_cka(draw(9, 4), torch.zeros(9, 2), debiased).isnan()


# Overlap of neighbours


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
def test_the_overlap_is_that_of_the_sets_of_neighbours(k: int) -> None:
    x = draw(20, 4)
    y = x + 0.5 * draw(20, 4, seed=1)
    overlap = float(neighbour_overlap(x, y, k))
    assert overlap == pytest.approx(overlap_of_sets(x, y, k), abs=1e-12)  # float64
    assert float(neighbour_overlap(x, 3 * x, k)) == 1
    assert (overlap < 1) == (k < 19)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = draw(23, 4), draw(23, 6, seed=1)
    whole = neighbour_overlap(x, y)
    monkeypatch.setattr(geometry, "_BLOCK_VALUES", 100)  # four rows at a time
    assert float(neighbour_overlap(x, y)) == pytest.approx(float(whole), abs=1e-12)  # order of a float64 sum


def test_ties_are_shared_whatever_the_order_of_the_texts() -> None:
    x = torch.eye(6)[[0, 0, 0, 0, 1, 2]]  # 0 to 3 are one text
    y = torch.eye(6)[[0, 0, 3, 4, 1, 2]]
    # Of text 0 one model has 1, 2 and 3 tied for two places, 2/3 each; the other has 1, and 2 to 5 tied at
    # cosine 0 for the place left, 1/4 each: 2/3 + 1/4 + 1/4 in common. Text 1 likewise. Of texts 2 and 3 the
    # first has 2/3 of three texts, the other 2/5 of all: 3 x 2/5. Of 4 and 5 both have 2/5 of all: 2.
    expected = (2 * (2 / 3 + 1 / 2) + 2 * 6 / 5 + 2 * 2) / (2 * 6)
    assert float(neighbour_overlap(x, y, k=2)) == pytest.approx(expected, abs=1e-6)  # float32
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    assert float(neighbour_overlap(x[order], y[order], k=2)) == pytest.approx(expected, abs=1e-6)
    assert float(neighbour_overlap(x, x, k=2)) == pytest.approx(1, abs=1e-6)


# Errors


@pytest.mark.parametrize("measure", [linear_cka, neighbour_overlap])
def test_other_texts_and_nan_are_refused(measure: object) -> None:
    assert callable(measure)
    with pytest.raises(ValueError, match=r"of the same n >= 2 texts, got \(4, 3\) and \(5, 3\)"):
        measure(draw(4, 3), draw(5, 3))
    with pytest.raises(ValueError, match="got NaN or infinity in the second argument"):
        measure(draw(4, 3), draw(4, 3) * torch.nan)


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="n >= 4 texts"):
        linear_cka(draw(3, 2), draw(3, 2), debiased=True)
    for k in (0, 10):
        with pytest.raises(ValueError, match=rf"k: expected 1 to 9 neighbours of 10 texts, got {k}"):
            neighbour_overlap(draw(10, 2), draw(10, 2), k)


# Agreement with a guide


def test_agreement_with_a_guide_is_the_overlap_of_the_nearest_one_but_for_what_is_hidden() -> None:
    x, y = (torch.nn.functional.normalize(draw(30, size, seed=size), dim=1) for size in (3, 4))
    x[7], y[7] = x[9], y[9]  # equal texts share a place
    own = torch.eye(30, dtype=torch.bool)
    found = guide_agreement(x @ x.T, y @ y.T, own)
    torch.testing.assert_close(found, neighbour_overlap(x, y, k=1), rtol=0, atol=1e-12)
    assert 0 < float(found) < 1
    assert float(guide_agreement(x @ x.T, x @ x.T, own)) == 1
    one = ~own
    one[0, 1] = False  # the only row with a candidate that is not itself
    assert float(guide_agreement(x @ x.T, y @ y.T, one | own)) == 1
    assert float(guide_agreement(x @ x.T, y @ y.T, torch.ones_like(own))) == 0
