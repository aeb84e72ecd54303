"""The paired bootstrap, against scipy's correlation of each resample, and on data whose truth is known."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.metrics import bootstrap
from contrastive_text.metrics.bootstrap import (
    PairedBootstrap,
    draw_rows,
    holm,
    paired_bootstrap_mean,
    paired_bootstrap_spearman,
)

SUBSETS = ["news"] * 20 + ["forum"] * 12 + ["images"] * 8


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pairs(n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities of two models and gold scores, with ties in the gold and in one model."""
    gold = torch.randint(6, (n,), generator=seeded(1)).float()
    first = gold + 2 * torch.randn(n, generator=seeded(2))
    second = (gold + 3 * torch.randn(n, generator=seeded(3))).round()
    return first, second, gold


def spearman_by_scipy(similarities: Tensor, gold: Tensor) -> float:
    return float(scipy.stats.spearmanr(similarities.numpy(), gold.numpy()).statistic)


def differences_by_loop(groups: list[list[int]], weights: list[float], resamples: int, seed: int) -> list[float]:
    first, second, gold = pairs()
    found = []
    for draws in draw_rows([len(rows) for rows in groups], resamples, seeded(seed)):
        for number in range(draws[0].shape[1]):
            difference = 0.0
            for rows, weight, drawn in zip(groups, weights, draws, strict=True):
                places = torch.tensor(rows)[drawn[:, number]]
                new, old = (spearman_by_scipy(side[places], gold[places]) for side in (second, first))
                difference += weight * (new - old)
            found.append(difference)
    return found


@pytest.mark.parametrize("setting", ["all", "mean", "wmean"])
def test_every_resample_has_exactly_scipys_correlations(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_BLOCK_VALUES", 400)  # ten resamples at a time
    first, second, gold = pairs()
    groups = (
        [list(range(40))] if setting == "all" else [list(range(20)), list(range(20, 32)), list(range(32, 40))]
    )
    weights = [len(rows) / 40 if setting != "mean" else 1 / 3 for rows in groups]
    subsets = None if setting == "all" else SUBSETS
    weighted = setting == "wmean"
    found = paired_bootstrap_spearman(first, second, gold, subsets, weighted, resamples=64, generator=seeded(4))
    expected = torch.tensor(differences_by_loop(groups, weights, resamples=64, seed=4), dtype=torch.float64)
    torch.testing.assert_close(found.resampled, expected, atol=1e-12, rtol=0)  # float64
    observed = sum(
        weight * (spearman_by_scipy(second[rows], gold[rows]) - spearman_by_scipy(first[rows], gold[rows]))
        for rows, weight in zip(groups, weights, strict=True)
    )
    assert found.difference == pytest.approx(observed, abs=1e-12)


def test_pairs_are_drawn_within_their_sub_sets() -> None:
    for draws in draw_rows([3, 5], resamples=7, generator=seeded()):
        assert [tuple(drawn.shape) for drawn in draws] == [(3, 7), (5, 7)]
        assert [int(drawn.max()) for drawn in draws] == [2, 4]


def test_every_resample_has_exactly_the_mean_of_its_rows() -> None:
    first, second = (torch.rand(30, generator=seeded(seed)) < 0.6 for seed in (1, 2))
    found = paired_bootstrap_mean(first, second, resamples=50, generator=seeded(3))
    ((drawn,),) = draw_rows([30], resamples=50, generator=seeded(3))
    for number, resampled in enumerate(found.resampled.tolist()):
        rows = drawn[:, number].tolist()
        right = [sum(bool(side[row]) for row in rows) for side in (first, second)]
        assert resampled == pytest.approx((right[1] - right[0]) / 30, abs=1e-12)
    assert found.difference == pytest.approx((int(second.sum()) - int(first.sum())) / 30, abs=1e-12)


def test_equal_models_differ_by_nothing_at_all() -> None:
    first, _, gold = pairs()
    for found in (
        paired_bootstrap_spearman(first, first, gold, SUBSETS, generator=seeded()),
        paired_bootstrap_spearman(first, first.exp(), gold, generator=seeded()),  # the same order
        paired_bootstrap_mean(first > 2, first > 2, generator=seeded()),
    ):
        assert (found.difference, found.interval(), found.p_value) == (0, (0, 0), 1)


def test_the_same_seed_gives_the_same_interval_and_another_one_another() -> None:
    first, second, gold = pairs()
    intervals = [
        paired_bootstrap_spearman(first, second, gold, generator=seeded(seed)).interval() for seed in (5, 5, 6)
    ]
    assert intervals[0] == intervals[1] != intervals[2]


def test_swapping_the_models_mirrors_the_interval() -> None:
    first, second, gold = pairs()
    there = paired_bootstrap_spearman(first, second, gold, generator=seeded())
    back = paired_bootstrap_spearman(second, first, gold, generator=seeded())
    assert torch.equal(back.resampled, -there.resampled)
    assert back.p_value == there.p_value


def test_a_resample_without_an_order_counts_as_correlation_zero() -> None:
    gold = torch.tensor([1.0, 1.0, 1.0, 2.0])  # one resample in three lacks the last pair
    found = paired_bootstrap_spearman(-gold, gold, gold, resamples=200, generator=seeded())
    assert set(found.resampled.tolist()) == {0.0, 2.0}


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=200))
def test_a_p_below_a_twentieth_means_an_interval_without_zero(resampled: list[float]) -> None:
    found = PairedBootstrap(0.0, torch.tensor(resampled, dtype=torch.float64))
    low, high = found.interval()
    assert 0 < found.p_value <= 1
    if found.p_value < 0.05:
        assert low > 0 or high < 0


def test_the_mean_over_tasks_pairs_their_resamples_in_order() -> None:
    parts = [PairedBootstrap(0.25, torch.tensor([0.5, 0.0])), PairedBootstrap(0.75, torch.tensor([1.5, 1.0]))]
    mean = PairedBootstrap.mean(parts)
    assert (mean.difference, mean.resampled.tolist()) == (0.5, [1.0, 0.5])
    with pytest.raises(ValueError, match=r"as many resamples each, got \[2, 3\]"):
        PairedBootstrap.mean([parts[0], PairedBootstrap(0.0, torch.zeros(3))])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_takes_the_largest_of_the_steps_so_far(p_values: list[float]) -> None:
    ordered = sorted(p_values)
    steps = [min(1.0, (len(ordered) - place) * p) for place, p in enumerate(ordered)]
    expected = {p: max(steps[: ordered.index(p) + ordered.count(p)]) for p in ordered}
    assert holm(p_values) == [expected[p] for p in p_values]


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [(0.6, 0.6), (0.5, 0.7)])
def test_the_interval_holds_the_true_difference_as_often_as_it_says(one: float, other: float) -> None:
    # The Spearman correlation of two normal variables of Pearson correlation r is 6 / pi asin(r / 2).
    truth = 6 / math.pi * (math.asin(other / 2) - math.asin(one / 2))
    generator = seeded(9)
    held, rejected, runs = 0, 0, 600
    for _ in range(runs):
        gold, noise, more = torch.randn(3, 200, generator=generator)
        first = one * gold + math.sqrt(1 - one**2) * noise
        second = other * gold + math.sqrt(1 - other**2) * (0.6 * noise + 0.8 * more)
        found = paired_bootstrap_spearman(first, second, gold, resamples=400, generator=generator)
        low, high = found.interval()
        held += low <= truth <= high
        rejected += found.p_value < 0.05
    # 95 % of 600 runs has a standard deviation of 0.9 %; 0.035 are four of it.
    assert held / runs == pytest.approx(0.95, abs=0.035)
    if one == other:
        assert rejected / runs == pytest.approx(0.05, abs=0.035)
    else:
        assert rejected / runs > 0.8


# Errors


def test_what_is_not_paired_is_refused() -> None:
    first, second, gold = pairs()
    with pytest.raises(ValueError, match=r"got 40, 40, 40 and 2; give both models the same pairs"):
        paired_bootstrap_spearman(first, second, gold, ["a", "b"])
    with pytest.raises(ValueError, match=r"got \(40,\) and \(39,\); give both models the same rows"):
        paired_bootstrap_mean(first, second[1:])
    with pytest.raises(ValueError, match=r"got \(0,\)"):
        paired_bootstrap_mean(first[:0], second[:0])


def test_nan_is_refused() -> None:
    first, second, gold = pairs()
    with pytest.raises(ValueError, match="got NaN or infinity in the first argument"):
        paired_bootstrap_spearman(first, second * torch.nan, gold)
    with pytest.raises(ValueError, match="expected finite scores"):
        paired_bootstrap_mean(first, second * torch.nan)


def test_a_sub_set_of_one_pair_and_no_resamples_are_refused() -> None:
    first, second, gold = pairs()
    with pytest.raises(ValueError, match=r"two values or more, got \(1,\)"):
        paired_bootstrap_spearman(first, second, gold, ["alone"] + ["others"] * 39)
    with pytest.raises(ValueError, match="resamples: expected 1 or more, got 0"):
        paired_bootstrap_mean(first, second, resamples=0)
    with pytest.raises(ValueError, match="a share between 0 and 1, got 95"):
        PairedBootstrap(0.0, torch.zeros(3)).interval(95)
