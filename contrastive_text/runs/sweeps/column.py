"""A column of a sweep's table: one figure of every cell, its spread over the seeds, and what exceeds noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from contrastive_text.runs.sweeps.noise import SeedDifference, paired_difference
from contrastive_text.runs.sweeps.plan import Cell
from contrastive_text.runs.sweeps.reports import Report


class Spread(NamedTuple):
    """Mean and standard deviation (n - 1) over the seeds; NaN where there is none."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Column:
    """What the cells of a sweep scored in one figure.

    Args:
        report: The figure.
        scores: Cell -> seed -> score, of the runs that are finished; the first cell is the one to compare with.

    Example:
        >>> none, crop = Cell(("none",)), Cell(("CropTokens",))
        >>> column = Column(Report("val/spearman"), {none: {1: 70.0, 2: 71.0}, crop: {1: 72.0, 2: 73.2}})
        >>> column.spread(none), column.best().name
        (Spread(mean=70.5, sd=0.70...), 'CropTokens')
        >>> column.difference(crop).exceeds_noise
        True
    """

    report: Report
    scores: Mapping[Cell, Mapping[int, float]]

    def spread(self, cell: Cell) -> Spread:
        """Returns mean and standard deviation of a cell."""
        scores = [*self.scores[cell].values()]
        mean = math.fsum(scores) / len(scores) if scores else math.nan
        return Spread(mean, statistics.stdev(scores) if len(scores) > 1 and not math.isnan(mean) else math.nan)

    def difference(self, cell: Cell) -> SeedDifference | None:
        """Returns what a cell scores more than the first one; None for the first, or where no seed is shared."""
        first = next(iter(self.scores))
        return None if cell == first else paired_difference(self.scores[cell], self.scores[first])

    def best(self) -> Cell | None:
        """Returns the cell of the best mean, the first of equals."""
        means = {cell: self.spread(cell).mean for cell in self.scores}
        real = [cell for cell, mean in means.items() if not math.isnan(mean)]
        best = max if self.report.mode == "max" else min
        return best(real, key=means.__getitem__) if real else None
