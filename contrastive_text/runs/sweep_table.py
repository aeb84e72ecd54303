"""The table of a sweep: scores of runs, their spread over the seeds, and differences from the first cell."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.core.terminal import as_markdown
from contrastive_text.evaluation.results import as_json, without_nan
from contrastive_text.metrics.verdicts import Mode
from contrastive_text.runs.grid import Cell

RECORD = "scores.json"
"""Name of the file of a sweep in the folder of a measured run."""


@dataclass(frozen=True, slots=True)
class SweepRun:
    """Scores of a cell under one seed.

    Args:
        labels: Labels of the cell.
        seed: The run's ``seed_everything``.
        seconds: Seconds from the run's last start to its end.
        validations: Figures of every validation by their names, times 100, in order, each with its ``step``.
        error: Empty, or why the run failed.
        scores: Scores of the best weights on tasks of suites, by the names that reports have for them.
    """

    labels: tuple[str, ...]
    seed: int
    seconds: float = 0.0
    validations: list[dict[str, float]] = field(default_factory=list)
    error: str = ""
    scores: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, cell: Cell, seed: int, folder: Path) -> SweepRun | None:
        """Reads a measured run from its folder; None if it isn't measured yet.

        Raises:
            ValueError: A damaged record, or no ``metrics.csv``.
        """
        file = folder / RECORD
        if not file.is_file():
            return None
        kept = Record.read(file, "delete it to have the run measured again")
        scores = kept.record("scores")
        known = {
            name: math.nan if value is None else scores.number(name) for name, value in scores.values.items()
        }
        return cls(cell.labels, seed, kept.number("seconds"), read_validations(folder), scores=known)

    def write(self, folder: Path) -> None:
        """Marks the run as measured in its folder."""
        write_json(folder / RECORD, {"seconds": self.seconds, "scores": without_nan(self.scores)})


def read_validations(folder: Path) -> list[dict[str, float]]:
    """Returns the figures of a run's validations, in order, from the ``metrics.csv`` in its folder.

    Raises:
        ValueError: No ``metrics.csv``.
    """
    file = folder / "metrics.csv"
    if not file.is_file():
        raise InvalidValueError(
            f"sweep: expected metrics.csv in {folder}, found none; delete the folder to run it again"
        )
    by_step: dict[int, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            figures = {name: float(value) for name, value in row.items() if name.startswith("val/") and value}
            if figures:
                step = int(row["step"])
                by_step[step] = {"step": step, **by_step.get(step, {}), **figures}
    return [by_step[step] for step in sorted(by_step)]


@dataclass(frozen=True, slots=True)
class Report:
    """A figure that a table reports.

    Args:
        name: As it stands over its column: ``val/spearman``, ``sts:mean``, ``diagnose:uniformity``.
        mode: Whether a high figure is good.
        parts: Names of the scores of a run that it is the mean of; none for a figure of the validation.
        over: What a mean is over, in words.

    Example:
        >>> mean = Report("sts:mean", parts=("sts:STS12", "sts:STS-B"), over="STS12, STS-B")
        >>> mean.figure({}, {"sts:STS12": 60.0, "sts:STS-B": 70.0}), mean.title
        (65.0, 'sts:mean of STS12, STS-B')
    """

    name: str
    mode: Mode = "max"
    parts: tuple[str, ...] = ()
    over: str = ""

    @property
    def title(self) -> str:
        """The name, and for a mean what it is over."""
        return f"{self.name} of {self.over}" if self.over else self.name

    def figure(self, validation: Mapping[str, float], scores: Mapping[str, float]) -> float | None:
        """Returns the figure of a run; None where it lacks one.

        Args:
            validation: Figures of the validation that counts.
            scores: Scores of the best weights.
        """
        if not self.parts:
            return validation.get(self.name)
        found = [scores[part] for part in self.parts if part in scores]
        return math.fsum(found) / len(found) if len(found) == len(self.parts) else None


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
        """Returns whether the interval excludes 0."""
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


class Spread(NamedTuple):
    """Mean and standard deviation (n - 1) over the seeds; NaN where there is none."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Column:
    """Scores of the cells of a sweep in one figure.

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


Take = Literal["best", "last"]
"""Which validation of a run counts: the one with the best score, or the last."""


@dataclass(frozen=True, slots=True)
class SweepTable:
    """Scores of the runs of a sweep, and their tables.

    Args:
        axes: Names of what varies.
        cells: The grid; the first cell is the one to compare with.
        runs: What came of the runs so far, in any order.
        seeds: The seeds that each cell is to have.
        select: The figure of the validation that chooses which validation of a run counts.
        take: Which one of it counts.
        mode: Whether high figures of it are good.
        reports: What is shown; none for the figure that chooses.

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
    select: str = "val/spearman"
    take: Take = "best"
    mode: Mode = "max"
    reports: Sequence[Report] = ()

    def figures(self, run: SweepRun) -> dict[str, float]:
        """Returns all figures of the validation that counts, of a run that is finished.

        Raises:
            ValueError: The run was never validated with the figure that chooses.
        """
        scored = [each for each in run.validations if self.select in each]
        if not scored:
            known = ", ".join(sorted({name for each in run.validations for name in each} - {"step"}))
            raise InvalidValueError(f"--select: expected one of {known or 'no figure at all'}, got {self.select}")
        if self.take == "last":
            return scored[-1]
        real = [each for each in scored if not math.isnan(each[self.select])]
        best = max if self.mode == "max" else min
        return best(real, key=lambda each: each[self.select]) if real else scored[-1]

    def reported(self, run: SweepRun) -> dict[Report, float]:
        """Returns the reports of a run; none of one that failed, or lacks scores.

        Raises:
            ValueError: A figure that no validation has.
        """
        if run.error:
            return {}
        validation = self.figures(run)
        found = {report: report.figure(validation, run.scores) for report in self._reports}
        for report, figure in found.items():
            if figure is None and not report.parts:
                known = ", ".join(sorted(validation.keys() - {"step"}))
                raise InvalidValueError(f"--report: expected one of {known}, got {report.name}")
        return {report: figure for report, figure in found.items() if figure is not None}

    @property
    def _reports(self) -> Sequence[Report]:
        return self.reports or (Report(self.select, self.mode),)

    def columns(self) -> list[Column]:
        """Returns the figures of all cells, report by report."""
        found = [(run, self.reported(run)) for run in self._ordered()]
        return [
            Column(
                report,
                {
                    cell: {
                        run.seed: figures[report]
                        for run, figures in found
                        if run.labels == cell.labels and report in figures
                    }
                    for cell in self.cells
                },
            )
            for report in self._reports
        ]

    def failures(self) -> list[SweepRun]:
        """Returns the runs that failed."""
        return [run for run in self._ordered() if run.error]

    def markdown(self) -> str:
        """Returns a table of all cells for each report, of two axes after a table of the grid, and notes."""
        lines = []
        for column in self.columns():
            lines += [f"# {as_markdown(column.report.title)}: {self._described(column.report)}", ""]
            if len(self.axes) == 2:
                lines += [*self._grid(column), ""]
            header = [
                *map(as_markdown, self.axes),
                as_markdown(column.report.name),
                "seeds",
                "minus the first cell",
                "beyond noise",
            ]
            rules = [*["---"] * len(self.axes), "---:", "---:", "---:", "---"]
            lines += [_line(header), "| " + " | ".join(rules) + " |"]
            for cell in self.cells:
                found = [self._cell(column, cell), str(len(column.scores[cell]))]
                lines.append(
                    _line([*map(as_markdown, cell.labels), *found, *_difference(column.difference(cell))])
                )
            lines.append("")
        return "\n".join([*lines, *self._notes()])

    def _described(self, report: Report) -> str:
        seeds = ", ".join(map(str, self.seeds))
        by = "" if report.name == self.select or self.take == "last" else f" by {self.select}"
        over = f"mean ± sd over seeds {seeds}" if len(self.seeds) > 1 else f"seed {seeds}"
        return f"{self.take} of a run{by}, {over}"

    def csv(self) -> str:
        """Returns a line for each run, with all its figures in full precision."""
        found = [(run, self._all_figures(run)) for run in self._ordered()]
        names = sorted({name for _, figures in found for name in figures} - {"step"})
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*self.axes, "seed", "step", *names, "seconds", "error"])
        for run, figures in found:
            scores = [figures.get(name, "") for name in ("step", *names)]
            writer.writerow([*run.labels, run.seed, *scores, run.seconds, run.error])
        return out.getvalue().rstrip("\n")

    def _all_figures(self, run: SweepRun) -> dict[str, float]:
        """Returns the validation that counts, all scores, and what is reported."""
        reported = {report.name: figure for report, figure in self.reported(run).items()}
        return {} if run.error else {**self.figures(run), **run.scores, **reported}

    def json(self) -> str:
        """Returns cells, runs and comparisons in full precision; ``null`` where there is no figure."""
        cells = []
        columns = self.columns()
        for cell in self.cells:
            runs = [
                {
                    "seed": run.seed,
                    "seconds": run.seconds,
                    "figures": self._all_figures(run),
                    **({"error": run.error} if run.error else {}),
                }
                for run in self._ordered()
                if run.labels == cell.labels
            ]
            reports = {}
            for column in columns:
                difference = column.difference(cell)
                against = None if difference is None else difference._asdict()
                reports[column.report.name] = {**column.spread(cell)._asdict(), "minus_first": against}
            labels = dict(zip(self.axes, cell.labels, strict=True))
            cells.append({"labels": labels, "reports": reports, "runs": runs})
        shown = [{"name": each.name, "mode": each.mode, "mean_of": each.parts} for each in self._reports]
        chosen = {"select": self.select, "take": self.take, "mode": self.mode, "seeds": self.seeds}
        return as_json({**chosen, "reports": shown, "cells": cells})

    def _ordered(self) -> list[SweepRun]:
        places = {cell.labels: number for number, cell in enumerate(self.cells)}
        ours = [run for run in self.runs if run.labels in places and run.seed in self.seeds]
        return sorted(ours, key=lambda run: (places[run.labels], run.seed))

    def _grid(self, column: Column) -> list[str]:
        """Returns the lines of rows times columns."""
        across = list(dict.fromkeys(cell.labels[1] for cell in self.cells))
        cells = {cell.labels: self._cell(column, cell) for cell in self.cells}
        lines = [
            _line([r" \ ".join(map(as_markdown, self.axes)), *map(as_markdown, across)]),
            "| --- |" + " ---: |" * len(across),
        ]
        for row in dict.fromkeys(cell.labels[0] for cell in self.cells):
            lines.append(_line([as_markdown(row), *(cells[row, label] for label in across)]))
        return lines

    def _cell(self, column: Column, cell: Cell) -> str:
        mean, sd = column.spread(cell)
        if not column.scores[cell]:
            return "failed" if any(run.labels == cell.labels for run in self.failures()) else ""
        if math.isnan(mean):
            return "n/a"
        said = f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"
        return f"**{said}**" if cell == column.best() else said

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
            failed = f"failed: {' | '.join(run.labels)}, seed {run.seed}: {run.error}"
            notes.append(f"- {as_markdown(failed)}")
        return notes


def _difference(difference: SeedDifference | None) -> tuple[str, str]:
    if difference is None:
        return "", ""
    mean, margin = difference
    if math.isnan(margin):
        return f"{mean:+.2f}", "unknown"
    return f"{mean:+.2f} ± {margin:.2f}", "yes" if difference.exceeds_noise else "no"


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
