"""Tests whether a difference of scores is due to chance: paired bootstrap, paired t-test and Holm's adjustment.

The bootstrap compares two models on the same test rows, which are resampled with replacement to the same number.
Both models are scored on each resample, and the difference of their scores is stored (Efron and Tibshirani 1993,
"An Introduction to the Bootstrap", chapter 13; for language processing Koehn 2004,
https://aclanthology.org/W04-3250). Only the test set varies. The variation
between training seeds needs several training runs, which ``paired_difference`` compares by a t-test.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.metrics.similarity import spearman

_BLOCK_VALUES = 2**18
"""Number of random draws of a block of resamples: 2 MiB. 2**20 exceed the CPU cache and take twice as long."""
_MOST_RESAMPLES = 10**7
"""Largest number of resamples: the smallest p value is 2e-7, and a score of 1,000 pairs takes about an hour."""


@dataclass(frozen=True, slots=True)
class PairedBootstrap:
    """Difference of two models' scores on the test rows and on each resample of the test rows.

    Args:
        difference: Score of the second model minus score of the first, on the test rows.
        resample_differences: Score of the second model minus score of the first, on each of B resamples, (B,),
            float64.

    Example:
        >>> result = PairedBootstrap(0.6, torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64))
        >>> result.interval(confidence=0.5)
        (0.4375, 0.8125)
        >>> result.p_value  # 2 (1 + 0) / (4 + 1): no resample is at 0 or below
        0.4
    """

    difference: float
    resample_differences: Tensor

    @classmethod
    def mean(cls, parts: Sequence[PairedBootstrap]) -> PairedBootstrap:
        """Returns the difference of mean scores over several tasks, whose rows were resampled independently.

        Args:
            parts: Differences of each task.

        Raises:
            ValueError: There are no tasks, or tasks have different numbers of resamples.
        """
        if len({len(part.resample_differences) for part in parts}) != 1:
            raise InvalidValueError(
                "PairedBootstrap.mean: expected one or more tasks with equal numbers of resamples, got "
                f"{[len(part.resample_differences) for part in parts]}; draw the same number for each task"
            )
        return cls(
            difference=sum(part.difference for part in parts) / len(parts),
            resample_differences=torch.stack([part.resample_differences for part in parts]).mean(dim=0),
        )

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Returns the percentile confidence interval of the difference (Efron and Tibshirani 1993, section 13.3).

        Args:
            confidence: Share of the resamples inside the interval.

        Raises:
            ValueError: ``confidence`` is not between 0 and 1.
        """
        if not 0 < confidence < 1:
            raise InvalidValueError(f"interval.confidence: expected a share between 0 and 1, got {confidence}")
        ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
        low, high = self.resample_differences.quantile(ends).tolist()
        return low, high

    @property
    def p_value(self) -> float:
        """Two-sided p value of the hypothesis that the models' scores don't differ.

        2 min(1 + #(d <= 0), 1 + #(d >= 0)) / (B + 1), at most 1. It is 1 minus the confidence of the widest
        percentile interval without 0 (Efron and Tibshirani 1993, section 15.4); the added 1 keeps it above 0
        (Davison and Hinkley 1997, section 4.2). The shifted distribution of Berg-Kirkpatrick et al. 2012,
        https://aclanthology.org/D12-1091, is not used, because it can contradict the interval.
        """
        below, above = int((self.resample_differences <= 0).sum()), int((self.resample_differences >= 0).sum())
        return min(1.0, 2 * (1 + min(below, above)) / (len(self.resample_differences) + 1))


def paired_bootstrap_spearman(
    first: Tensor,
    second: Tensor,
    target: Tensor,
    subsets: Sequence[str] | None = None,
    weighted: bool = False,
    resamples: int = 1000,
    generator: torch.Generator | None = None,
) -> PairedBootstrap:
    """Bootstraps the difference of two models' Spearman correlations with gold scores, by resampling pairs.

    Each resample has its exact average ranks, with ties. They are computed without sorting from the number of
    draws of each value: 1,000 resamples of 3,000 pairs take 0.2 s.

    Args:
        first: Similarities of the first model, (n,).
        second: Similarities of the second model for the same pairs, (n,).
        target: Gold scores, (n,).
        subsets: Name of each pair's subset. The score is then the mean of the subsets' correlations (setting
            ``mean``), and pairs are resampled within each subset. None for one correlation of all pairs
            (``all``).
        weighted: Whether the mean weights subsets by their number of pairs (``wmean``).
        resamples: Number of resamples, B; the smallest p value is 2 / (B + 1).
        generator: Generator of the draws; None for torch's global generator.

    Returns:
        The second model's score minus the first model's, between -2 and 2. A model with equal similarities has a
        correlation of 0 (see ``spearman``).

    Raises:
        ValueError: The shapes differ, a value is NaN or infinite, a subset has one pair, or ``resamples`` is
            below 1.

    Example:
        >>> gold = torch.arange(6.0)
        >>> result = paired_bootstrap_spearman(-gold, gold, target=gold, generator=torch.Generator())
        >>> result.difference, result.interval()
        (2.0, (2.0, 2.0))
    """
    names = list(subsets) if subsets is not None else [""] * len(target)
    if not len(first) == len(second) == len(target) == len(names):
        raise InvalidValueError(
            "paired_bootstrap_spearman: expected two similarities, a gold score and a subset for each pair, got "
            f"{len(first)}, {len(second)}, {len(target)} and {len(names)}; give both models the same pairs"
        )
    groups = [
        torch.tensor([row for row, subset in enumerate(names) if subset == name]) for name in dict.fromkeys(names)
    ]
    weights = [len(rows) / len(names) if weighted else 1 / len(groups) for rows in groups]
    sides = [side.detach().cpu().double() for side in (target, first, second)]
    difference = 0.0
    levels = []
    for rows, weight in zip(groups, weights, strict=True):
        gold, old, new = (side[rows] for side in sides)
        difference += weight * float(spearman(new, gold) - spearman(old, gold))
        levels.append([torch.unique(side, return_inverse=True)[1] for side in (gold, old, new)])
    differences = []
    for draws in draw_resamples([len(rows) for rows in groups], resamples, generator):
        parts = zip(weights, draws, levels, strict=True)
        terms = [weight * _spearman_difference(rows, *group_levels) for weight, rows, group_levels in parts]
        differences.append(torch.stack(terms).sum(dim=0))
    return PairedBootstrap(difference, torch.cat(differences))


def paired_bootstrap_mean(
    first: Tensor, second: Tensor, resamples: int = 1000, generator: torch.Generator | None = None
) -> PairedBootstrap:
    """Bootstraps the difference of two models' mean scores per row, such as their accuracies, by resampling rows.

    Args:
        first: Score of the first model for each row, or whether its answer is correct, (n,).
        second: Score of the second model for the same rows, (n,).
        resamples: Number of resamples, B; the smallest p value is 2 / (B + 1).
        generator: Generator of the draws; None for torch's global generator.

    Returns:
        The second model's mean minus the first model's.

    Raises:
        ValueError: The shapes differ, there are no rows, a value is NaN or infinite, or ``resamples`` is below 1.

    Example:
        >>> first, second = torch.tensor([True, True, False, True]), torch.tensor([True, False, False, False])
        >>> paired_bootstrap_mean(first, second).difference
        -0.5
    """
    if first.ndim != 1 or first.shape != second.shape or len(first) == 0:
        raise InvalidValueError(
            f"paired_bootstrap_mean: expected two tensors (n,) of one score per row, got {tuple(first.shape)} "
            f"and {tuple(second.shape)}; give both models the same rows"
        )
    gain = second.detach().cpu().double() - first.detach().cpu().double()
    if not bool(gain.isfinite().all()):
        raise InvalidValueError(
            "paired_bootstrap_mean: expected finite scores, got NaN or infinity; check both models"
        )
    means = [gain[rows].mean(dim=0) for (rows,) in draw_resamples([len(gain)], resamples, generator)]
    return PairedBootstrap(float(gain.mean()), torch.cat(means))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts the p values of several tests by Holm's method, which controls the chance of any false difference.

    Suppose adjusted p values of at most 0.05 are reported as differences. The chance that any of them is false is
    then at most 0.05, for any dependence between the tests (Holm 1979, "A simple sequentially rejective multiple
    test procedure").

    Args:
        p_values: p value of each test, from 0 to 1.

    Returns:
        Adjusted p values in the same order, each at least as large as before and at most 1.

    Example:
        >>> holm([0.0625, 0.5, 0.125])  # times 3, times 1, times 2
        [0.1875, 0.5, 0.25]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, number in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[number]))
        adjusted[number] = largest
    return adjusted


class SeedDifference(NamedTuple):
    """Mean difference of two settings over the seeds, with half the width of its 95 % confidence interval.

    Args:
        mean: Mean over the seeds of score minus baseline.
        margin: Half the width of the interval; NaN for a single seed.
        p_value: Two-sided p value of the paired t-test; NaN for a single seed.

    Example:
        >>> SeedDifference(mean=1.2, margin=0.7).exceeds_noise
        True
    """

    mean: float
    margin: float
    p_value: float = math.nan

    @property
    def exceeds_noise(self) -> bool:
        """True if the confidence interval of the difference excludes 0."""
        return abs(self.mean) > self.margin


def paired_difference(scores: Mapping[int, float], baseline: Mapping[int, float]) -> SeedDifference | None:
    """Compares the scores of two settings by a paired t-test over seeds; None if they share no seed.

    Runs with the same seed read the same texts in the same order. The spread of their differences is therefore
    often smaller than the spread of the scores.

    Args:
        scores: Seed -> score of the first setting.
        baseline: Seed -> score of the setting to compare with.

    Example:
        >>> paired_difference({1: 80.0, 2: 81.0, 3: 82.0}, {1: 79.0, 2: 79.5, 3: 81.0})
        SeedDifference(mean=1.1666666666666667, margin=0.7171..., p_value=0.0198...)
    """
    pairs = [scores[seed] - baseline[seed] for seed in scores if seed in baseline]
    if not pairs:
        return None
    mean, count = math.fsum(pairs) / len(pairs), len(pairs)
    if count == 1 or math.isnan(mean):
        return SeedDifference(mean, math.nan)
    error = statistics.stdev(pairs) / math.sqrt(count)
    within = _share_within(math.atan2(abs(mean), error * math.sqrt(count - 1)), count - 1)
    return SeedDifference(mean, t_bound(0.95, count - 1) * error, max(0.0, 1 - within))


def t_bound(share: float, degrees: int) -> float:
    """Returns the bound t for which Student's distribution has a given share between -t and t.

    Formula: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4, inverted by bisection over the angle
    atan(t / sqrt(df)).

    Args:
        share: Share of the distribution, in (0, 1).
        degrees: Degrees of freedom, 1 or more.

    Example:
        >>> [round(t_bound(0.95, degrees), 3) for degrees in (1, 2, 10)]
        [12.706, 4.303, 2.228]
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # until the interval is as small as the last bit of a float
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, degrees) < share else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _share_within(angle: float, degrees: int) -> float:
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    series = 0.0
    for k in range(odd + 1, degrees + odd, 2):
        series += term
        term *= math.cos(angle) ** 2 * (k / (k + 1))
    within = math.sin(angle) * series
    return 2 / math.pi * (angle + within) if odd else within


def check_resamples(resamples: int) -> None:
    """Checks that a number of resamples is from 1 to 10 million (ValueError)."""
    at_least("resamples", resamples, 1, "with 1,000 the smallest p is 0.002")
    if resamples > _MOST_RESAMPLES:
        raise InvalidValueError(
            f"resamples: expected at most {_MOST_RESAMPLES:,}, got {resamples}; 1,000 give a p down to 0.002"
        )


def draw_resamples(
    sizes: Sequence[int], resamples: int, generator: torch.Generator | None = None
) -> Iterator[list[Tensor]]:
    """Yields random rows of bootstrap resamples, block by block, so that memory stays bounded.

    Args:
        sizes: Number of rows of each group. Rows are resampled within their group.
        resamples: Number of resamples.
        generator: Generator of the draws; None for torch's global generator.

    Yields:
        The rows of some resamples for each group, (size of the group, resamples of the block).

    Raises:
        ValueError: ``resamples`` is below 1.
    """
    check_resamples(resamples)
    block = max(1, _BLOCK_VALUES // sum(sizes))
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        yield [torch.randint(size, (size, count), generator=generator) for size in sizes]


def _spearman_difference(rows: Tensor, target: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Returns the difference of two models' Spearman correlations in each of b resamples, (b,).

    Args:
        rows: Rows of the resamples, (n, b).
        target: Index of each row's gold score among the sorted distinct gold scores, (n,).
        first: Index of each row's similarity among the sorted distinct similarities of the first model, (n,).
        second: The same indices for the second model, (n,).
    """
    counts = torch.zeros(rows.shape, dtype=torch.float64)
    counts.scatter_add_(0, rows, torch.ones_like(counts))
    gold = _centered_ranks(counts, target)
    correlations = []
    for levels in (first, second):
        ranks = _centered_ranks(counts, levels)
        covariance = (counts * ranks * gold).sum(dim=0)
        scale = ((counts * ranks * ranks).sum(dim=0) * (counts * gold * gold).sum(dim=0)).sqrt()
        correlations.append(torch.where(scale > 0, covariance / scale, 0.0))  # 0 for equal values, as in spearman
    return correlations[1] - correlations[0]


def _centered_ranks(counts: Tensor, levels: Tensor) -> Tensor:
    """Returns each row's average rank in each resample minus the mean rank, (n, b).

    All copies of a level have the mean of their ranks, which follow the ranks of all lower levels.

    Args:
        counts: Number of draws of each row in each resample, (n, b).
        levels: Index of each row's value among the sorted distinct values, (n,).
    """
    copies = torch.zeros(int(levels.max()) + 1, counts.shape[1], dtype=counts.dtype).index_add_(0, levels, counts)
    ranks = copies.cumsum(dim=0) - (copies - 1) / 2
    return (ranks - (len(levels) + 1) / 2)[levels]
