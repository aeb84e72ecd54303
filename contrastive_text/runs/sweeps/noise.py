"""Whether a difference between two settings is more than what their seeds make."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple


class SeedDifference(NamedTuple):
    """A mean difference and half the width of its 95 % interval; NaN where one pair of scores gives none.

    Args:
        mean: Mean over the seeds of score minus baseline.
        margin: What the interval reaches to either side.

    Example:
        >>> SeedDifference(mean=1.2, margin=0.7).exceeds_noise
        True
    """

    mean: float
    margin: float

    @property
    def exceeds_noise(self) -> bool:
        """Whether the interval is on one side of 0."""
        return abs(self.mean) > self.margin


def paired_difference(scores: Mapping[int, float], baseline: Mapping[int, float]) -> SeedDifference | None:
    """Compares two settings seed by seed, by Student's t; None where they share no seed.

    Runs of one seed see the same texts in the same order, so that the spread of their differences is what
    counts, and it is often smaller than that of the scores.

    Args:
        scores: Seed -> score.
        baseline: The same of the setting to compare with.

    Example:
        >>> paired_difference({1: 80.0, 2: 81.0, 3: 82.0}, {1: 79.0, 2: 79.5, 3: 81.0})
        SeedDifference(mean=1.1666666666666667, margin=0.7171...)
    """
    pairs = [scores[seed] - baseline[seed] for seed in scores if seed in baseline]
    if not pairs:
        return None
    mean, count = math.fsum(pairs) / len(pairs), len(pairs)
    if count == 1 or math.isnan(mean):
        return SeedDifference(mean, math.nan)
    return SeedDifference(mean, t_bound(0.95, count - 1) * statistics.stdev(pairs) / math.sqrt(count))


def t_bound(share: float, degrees: int) -> float:
    """Returns the t within which, on either side of 0, such a share of Student's distribution lies.

    Formula: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4, inverted by bisection over the angle
    atan(t / sqrt(df)).

    Args:
        share: In (0, 1).
        degrees: Degrees of freedom, 1 or more.

    Example:
        >>> [round(t_bound(0.95, degrees), 3) for degrees in (1, 2, 10)]
        [12.706, 4.303, 2.228]
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # halved to the last bit of a float
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
