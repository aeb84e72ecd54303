"""Scores counted in bins: their quantiles and a picture of them, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from contrastive_text.core.errors import InvalidValueError

_BIN = 0.001
"""Width of a bin, within which a quantile is not told apart."""
_BARS = 16


class ScoreCounts:
    """How often scores occur, to 0.001: memory doesn't grow with their number, and two counts add up.

    Args:
        bins: Number of a bin, a thousandth of its middle -> scores in it.
        total: Sum of all scores.

    Example:
        >>> scores = ScoreCounts()
        >>> scores.add([0.1, 0.2, 0.3, 0.9])
        >>> scores.count, round(scores.mean, 3), scores.quantile(0.25), scores.quantile(1.0)
        (4, 0.375, 0.1, 0.9)
    """

    def __init__(self, bins: Mapping[int, int] | None = None, total: float = 0.0) -> None:
        self.bins = Counter(bins or {})
        self.total = total

    @property
    def count(self) -> int:
        """Number of scores."""
        return self.bins.total()

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count

    def add(self, scores: Iterable[float]) -> None:
        """Counts scores."""
        for score in scores:
            self.bins[round(score / _BIN)] += 1
            self.total += score

    def quantile(self, share: float) -> float:
        """Returns the lowest score that a share of all are not above, to 0.001.

        Raises:
            ValueError: No score.
        """
        left = max(share * self.count, 1)
        for number, count in sorted(self.bins.items()):
            left -= count
            if left <= 0:
                return round(number * _BIN, 3)
        raise InvalidValueError("quantile: expected scores, got none")

    def to_json(self) -> dict[str, object]:
        """Returns its fields, for a record."""
        return {"bins": {str(number): count for number, count in self.bins.items()}, "total": self.total}


def histogram(counts: Mapping[str, ScoreCounts]) -> str:
    """Returns a picture of scores: a line for each bin, a column of bars for each kind, all over the same bins.

    Example:
        >>> low, high = ScoreCounts(), ScoreCounts()
        >>> low.add([0.0, 0.0, 0.1]), high.add([0.7])
        (None, None)
        >>> print(histogram({"negative": low, "positive": high}).splitlines()[0])
                  negative          positive
    """
    numbers = [number for each in counts.values() for number in each.bins]
    low, high = min(numbers), max(numbers) + 1
    width = max(-(-(high - low) // _BARS), 1)
    sums = {name: Counter[int]() for name in counts}
    for name, each in counts.items():
        for number, count in each.bins.items():
            sums[name][(number - low) // width] += count
    most = {name: max(found.values(), default=1) for name, found in sums.items()}
    lines = [("          " + "".join(f"{name:<18}" for name in counts)).rstrip()]
    for place in range(-(-(high - low) // width)):
        bars = "".join(f"{'#' * -(-16 * sums[name][place] // most[name]):<18}" for name in counts)
        lines.append(f"{(low + place * width) * _BIN:>8.3f}  {bars}".rstrip())
    return "\n".join(lines)
