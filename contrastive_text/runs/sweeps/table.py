"""The table of a sweep: mean and spread over seeds, and what exceeds noise."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.runs.sweeps.folder import SweepRun
from contrastive_text.runs.sweeps.noise import SeedDifference, paired_difference
from contrastive_text.runs.sweeps.plan import Cell

Take = Literal["best", "last"]
"""Which validation of a run counts: the one with the best score, or the last."""
Mode = Literal["max", "min"]
"""Whether the best is the highest or the lowest."""


@dataclass(frozen=True, slots=True)
class SweepTable:
    """What the runs of a sweep scored.

    Args:
        axes: Names of what varies.
        cells: The grid; the first cell is the one to compare with.
        runs: What came of the runs so far, in any order.
        seeds: The seeds that each cell is to have.
        score: Name of the figure.
        take: Which validation of a run counts.
        mode: Whether high scores are good.

    Example:
        >>> cells = [Cell(("none",)), Cell(("CropTokens",))]
        >>> runs = [SweepRun(cell.labels, seed, validations=[{"val/spearman": score}])
        ...         for cell, scores in zip(cells, ([70.0, 71.0], [72.0, 73.2]))
        ...         for seed, score in enumerate(scores, start=1)]
        >>> print(SweepTable(["model.views.positive"], cells, runs, seeds=[1, 2]).markdown())
        # val/spearman: best of a run, mean ± sd over seeds 1, 2
        <BLANKLINE>
        | model.views.positive | val/spearman | seeds | minus the first cell | beyond noise |
        | --- | ---: | ---: | ---: | --- |
        | none | 70.50 ± 0.71 | 2 | | |
        | CropTokens | **72.60 ± 0.85** | 2 | +2.10 ± 1.27 | yes |
        <BLANKLINE>
        After a difference stands half its 95 % interval, paired by seed (Student's t). ...
    """

    axes: Sequence[str]
    cells: Sequence[Cell]
    runs: Sequence[SweepRun]
    seeds: Sequence[int]
    score: str = "val/spearman"
    take: Take = "best"
    mode: Mode = "max"

    def figures(self, run: SweepRun) -> dict[str, float]:
        """Returns all figures of the validation that counts.

        Raises:
            ValueError: The run has no such score.
        """
        if run.error:
            return {}
        scored = [each for each in run.validations if self.score in each]
        if not scored:
            known = ", ".join(sorted({name for each in run.validations for name in each} - {"step"}))
            raise InvalidValueError(f"--score: expected one of {known or 'no figure at all'}, got {self.score}")
        if self.take == "last":
            return scored[-1]
        real = [each for each in scored if not math.isnan(each[self.score])]
        best = max if self.mode == "max" else min
        return best(real, key=lambda each: each[self.score]) if real else scored[-1]

    def scores(self, cell: Cell) -> dict[int, float]:
        """Returns a cell's score by seed, of the runs that are finished."""
        runs = [run for run in self._ordered() if run.labels == cell.labels and not run.error]
        return {run.seed: self.figures(run)[self.score] for run in runs}

    def mean_and_sd(self, cell: Cell) -> tuple[float, float]:
        """Returns mean and standard deviation (n - 1) over the seeds; NaN where there is none."""
        scores = [*self.scores(cell).values()]
        mean = math.fsum(scores) / len(scores) if scores else math.nan
        return mean, statistics.stdev(scores) if len(scores) > 1 and not math.isnan(mean) else math.nan

    def difference(self, cell: Cell) -> SeedDifference | None:
        """Returns what a cell scores more than the first one; None for the first, or where no seed is shared."""
        first = self.cells[0]
        return None if cell == first else paired_difference(self.scores(cell), self.scores(first))

    def best(self) -> Cell | None:
        """Returns the cell of the best mean, the first of equals."""
        means = {cell: self.mean_and_sd(cell)[0] for cell in self.cells}
        real = [cell for cell in self.cells if not math.isnan(means[cell])]
        best = max if self.mode == "max" else min
        return best(real, key=means.__getitem__) if real else None

    def failures(self) -> list[SweepRun]:
        """Returns the runs that failed."""
        return [run for run in self._ordered() if run.error]

    def markdown(self) -> str:
        """Returns the table of all cells, of two axes after a table of the grid, with notes under it."""
        seeds = ", ".join(map(str, self.seeds))
        over = f"mean ± sd over seeds {seeds}" if len(self.seeds) > 1 else f"seed {seeds}"
        lines = [f"# {self.score}: {self.take} of a run, {over}", ""]
        if len(self.axes) == 2:
            lines += [*self._grid(), ""]
        header = [*self.axes, self.score, "seeds", "minus the first cell", "beyond noise"]
        rules = [*["---"] * len(self.axes), "---:", "---:", "---:", "---"]
        rows = [
            [*cell.labels, self._cell(cell), str(len(self.scores(cell))), *_difference(self.difference(cell))]
            for cell in self.cells
        ]
        lines += [_line(header), "| " + " | ".join(rules) + " |", *map(_line, rows), "", *self._notes()]
        return "\n".join(lines)

    def csv(self) -> str:
        """Returns a line for each run, with all its figures in full precision."""
        found = [(run, self.figures(run)) for run in self._ordered()]
        names = sorted({name for _, figures in found for name in figures} - {"step"})
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*self.axes, "seed", "step", *names, "seconds", "error"])
        for run, figures in found:
            scores = [figures.get(name, "") for name in ("step", *names)]
            writer.writerow([*run.labels, run.seed, *scores, run.seconds, run.error])
        return out.getvalue().rstrip("\n")

    def json(self) -> str:
        """Returns cells, runs and comparisons in full precision; ``null`` where there is no figure."""
        cells = []
        for cell in self.cells:
            mean, sd = self.mean_and_sd(cell)
            runs = [
                {
                    "seed": run.seed,
                    "seconds": run.seconds,
                    "figures": {name: _finite(value) for name, value in self.figures(run).items()},
                    **({"error": run.error} if run.error else {}),
                }
                for run in self._ordered()
                if run.labels == cell.labels
            ]
            difference = self.difference(cell)
            against = None if difference is None else {k: _finite(v) for k, v in difference._asdict().items()}
            labels = dict(zip(self.axes, cell.labels, strict=True))
            cells.append(
                {"labels": labels, "mean": _finite(mean), "sd": _finite(sd), "minus_first": against, "runs": runs}
            )
        said = {"score": self.score, "take": self.take, "mode": self.mode, "seeds": [*self.seeds], "cells": cells}
        return json.dumps(said, indent=1, ensure_ascii=False)

    def _ordered(self) -> list[SweepRun]:
        places = {cell.labels: number for number, cell in enumerate(self.cells)}
        ours = [run for run in self.runs if run.labels in places and run.seed in self.seeds]
        return sorted(ours, key=lambda run: (places[run.labels], run.seed))

    def _grid(self) -> list[str]:
        """Returns the lines of rows times columns."""
        across = list(dict.fromkeys(cell.labels[1] for cell in self.cells))
        cells = {cell.labels: self._cell(cell) for cell in self.cells}
        lines = [_line([r" \ ".join(self.axes), *across]), "| --- |" + " ---: |" * len(across)]
        for row in dict.fromkeys(cell.labels[0] for cell in self.cells):
            lines.append(_line([row, *(cells[row, column] for column in across)]))
        return lines

    def _cell(self, cell: Cell) -> str:
        mean, sd = self.mean_and_sd(cell)
        if not self.scores(cell):
            return "failed" if any(run.labels == cell.labels for run in self.failures()) else ""
        if math.isnan(mean):
            return "n/a"
        said = f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"
        return f"**{said}**" if cell == self.best() else said

    def _notes(self) -> list[str]:
        count = len(self.cells) - 1
        notes = []
        if len(self.seeds) > 1 and count:
            chance = f"; of {count} such comparisons 5 % exceed it by chance alone" if count > 1 else ""
            notes.append(
                "After a difference stands half its 95 % interval, paired by seed (Student's t). It is beyond "
                f"noise where the interval leaves out 0{chance}."
            )
        elif count:
            notes.append("One seed says nothing of noise: give --seeds 3 for a spread.")
        for run in self.failures():
            notes.append(f"- failed: {' | '.join(run.labels)}, seed {run.seed}: {run.error}")
        return notes


def _difference(difference: SeedDifference | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    mean, margin = difference
    if math.isnan(margin):
        return f"{mean:+.2f}", "unknown"
    return f"{mean:+.2f} ± {margin:.2f}", "yes" if difference.exceeds_noise else "no"


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell.replace('|', chr(92) + '|')} " if cell else " " for cell in cells) + "|"


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
