"""The paired bootstrap, against scipy's correlation of each resample, and on data whose truth is known."""

from __future__ import annotations

from collections.abc import Callable

import parts
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.metrics import bootstrap
from contrastive_text.metrics.bootstrap import (
    PairedBootstrap,
    draw_resamples,
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
    for draws in draw_resamples([len(rows) for rows in groups], resamples, seeded(seed)):
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
    torch.testing.assert_close(found.resample_differences, expected, atol=1e-12, rtol=0)  # float64
    observed = sum(
        weight * (spearman_by_scipy(second[rows], gold[rows]) - spearman_by_scipy(first[rows], gold[rows]))
        for rows, weight in zip(groups, weights, strict=True)
    )
    assert found.difference == pytest.approx(observed, abs=1e-12)


def test_pairs_are_drawn_within_their_sub_sets() -> None:
    for draws in draw_resamples([3, 5], resamples=7, generator=seeded()):
        assert [tuple(drawn.shape) for drawn in draws] == [(3, 7), (5, 7)]
        assert [int(drawn.max()) for drawn in draws] == [2, 4]


def test_every_resample_has_exactly_the_mean_of_its_rows() -> None:
    first, second = (torch.rand(30, generator=seeded(seed)) < 0.6 for seed in (1, 2))
    found = paired_bootstrap_mean(first, second, resamples=50, generator=seeded(3))
    ((drawn,),) = draw_resamples([30], resamples=50, generator=seeded(3))
    for number, resampled in enumerate(found.resample_differences.tolist()):
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


def test_a_resample_without_an_order_counts_as_correlation_zero() -> None:
    gold = torch.tensor([1.0, 1.0, 1.0, 2.0])  # one resample in three lacks the last pair
    found = paired_bootstrap_spearman(-gold, gold, gold, resamples=200, generator=seeded())
    assert set(found.resample_differences.tolist()) == {0.0, 2.0}


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=200))
def test_a_p_below_a_twentieth_means_an_interval_without_zero(resampled: list[float]) -> None:
    found = PairedBootstrap(0.0, torch.tensor(resampled, dtype=torch.float64))
    low, high = found.interval()
    assert 0 < found.p_value <= 1
    if found.p_value < 0.05:
        assert low > 0 or high < 0


def test_the_interval_leaves_half_of_the_rest_on_either_side_and_the_p_counts_both() -> None:
    found = PairedBootstrap(0.0, torch.arange(-10, 191).double() / 200)
    assert found.interval() == pytest.approx((-0.025, 0.925))  # 2.5 % of 200 steps from each end
    assert found.interval(0.5) == pytest.approx((0.2, 0.7))
    assert found.p_value == 2 * (1 + 11) / 202


def test_the_mean_over_tasks_pairs_their_resamples_in_order() -> None:
    parts = [PairedBootstrap(0.25, torch.tensor([0.5, 0.0])), PairedBootstrap(0.75, torch.tensor([1.5, 1.0]))]
    mean = PairedBootstrap.mean(parts)
    assert (mean.difference, mean.resample_differences.tolist()) == (0.5, [1.0, 0.5])
    with pytest.raises(ValueError, match=r"equal numbers of resamples, got \[2, 3\]"):
        PairedBootstrap.mean([parts[0], PairedBootstrap(0.0, torch.zeros(3))])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_takes_the_largest_of_the_steps_so_far(p_values: list[float]) -> None:
    ordered = sorted(p_values)
    steps = [min(1.0, (len(ordered) - place) * p) for place, p in enumerate(ordered)]
    expected = {p: max(steps[: ordered.index(p) + ordered.count(p)]) for p in ordered}
    assert holm(p_values) == [expected[p] for p in p_values]


FIRST, SECOND, GOLD = pairs()
REFUSED: list[tuple[Callable[[], object], list[str]]] = [
    (lambda: paired_bootstrap_spearman(FIRST, SECOND, GOLD, ["a", "b"]), ["got 40, 40, 40 and 2", "same pairs"]),
    (lambda: paired_bootstrap_mean(FIRST, SECOND[1:]), ["got (40,) and (39,)", "the same rows"]),
    (lambda: paired_bootstrap_mean(FIRST[:0], SECOND[:0]), ["got (0,)"]),
    (
        lambda: paired_bootstrap_spearman(FIRST, SECOND * torch.nan, GOLD),
        ["NaN or infinity in the first argument"],
    ),
    (lambda: paired_bootstrap_mean(FIRST, SECOND * torch.nan), ["expected finite scores"]),
    (
        lambda: paired_bootstrap_spearman(FIRST, SECOND, GOLD, ["alone"] + ["others"] * 39),
        ["two or more values", "(1,)"],
    ),
    (lambda: paired_bootstrap_mean(FIRST, SECOND, resamples=0), ["resamples", "1 or more", "got 0"]),
    (lambda: PairedBootstrap(0.0, torch.zeros(3)).interval(95), ["a share between 0 and 1", "got 95"]),
]


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_is_not_paired_or_no_number_is_refused(call: Callable[[], object], words: list[str]) -> None:
    parts.check_refused(call, ValueError, words)
