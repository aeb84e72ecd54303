"""Differences of scores between two settings of a sweep, paired by seed, with Student's t-test."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple


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
