"""Tables of a sweep: scores of runs, their spread over the seeds, and differences from the first cell."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.core.terminal import as_markdown
from contrastive_text.evaluation.results import (
    as_csv,
    as_json,
    as_latex,
    in_latex,
    in_markdown,
    latex_comment,
    without_nan,
)
from contrastive_text.metrics.bootstrap import SeedDifference, holm, paired_difference
from contrastive_text.metrics.verdict import Mode
from contrastive_text.runs.grid import Cell

_HEADER = ("seeds", "minus the first cell", "Holm p", "beyond noise")
"""Columns of the table after the varied keys and the score."""
_SIGNIFICANT = 0.05
"""Largest adjusted p value of a difference that is called beyond noise."""
RECORD = "scores.json"
"""Name of the file with the scores of a measured run, in the run's folder."""


@dataclass(frozen=True, slots=True)
class SweepRun:
    """Scores of one run of a sweep: a cell of the grid with one seed.

    Args:
        labels: Labels of the cell.
        seed: The run's ``seed_everything``.
        seconds: Seconds from the run's last start to its end.
        validations: Metrics of each validation by name, times 100, in order, each with its ``step``.
        error: Reason why the run failed; empty if it didn't.
        scores: Scores of the best weights on tasks of suites, by the names that reports use.
    """

    labels: tuple[str, ...]
    seed: int
    seconds: float = 0.0
    validations: list[dict[str, float]] = field(default_factory=list)
    error: str = ""
    scores: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, cell: Cell, seed: int, folder: Path) -> SweepRun | None:
        """Reads the scores of a measured run from its folder; None if the run isn't measured yet.

        Raises:
            ValueError: The record is damaged, or there is no ``metrics.csv``.
        """
        file = folder / RECORD
        if not file.is_file():
            return None
        record = Record.read(file, "delete it to measure the run again")
        scores = record.record("scores")
        values = {
            name: math.nan if value is None else scores.number(name) for name, value in scores.values.items()
        }
        return cls(cell.labels, seed, record.number("seconds"), read_validations(folder), scores=values)

    def write(self, folder: Path) -> None:
        """Writes the scores of the run to its folder, which marks the run as measured."""
        write_json(folder / RECORD, {"seconds": self.seconds, "scores": without_nan(self.scores)})


def read_validations(folder: Path) -> list[dict[str, float]]:
    """Reads the metrics of a run's validations, in order, from the ``metrics.csv`` in its folder.

    Raises:
        ValueError: There is no ``metrics.csv``.
    """
    file = folder / "metrics.csv"
    if not file.is_file():
        raise InvalidValueError(
            f"sweep: expected metrics.csv in {folder}, got no such file; delete the folder to train the run again"
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
    """Score that a sweep's table reports: a validation metric, or a mean of scores of the best weights.

    Args:
        name: Title of the column: ``val/spearman``, ``sts:mean``, ``diagnose:uniformity``.
        mode: Whether a high or a low score is good.
        parts: Names of the scores whose mean is reported; empty for a validation metric.
        over: Description of the scores in the mean.

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
        """Title of the report: its name and, for a mean, the averaged scores."""
        return f"{self.name} of {self.over}" if self.over else self.name

    def figure(self, validation: Mapping[str, float], scores: Mapping[str, float]) -> float | None:
        """Returns the reported score of a run; None if the run doesn't have it.

        Args:
            validation: Metrics of the selected validation.
            scores: Scores of the best weights.
        """
        if not self.parts:
            return validation.get(self.name)
        values = [scores[part] for part in self.parts if part in scores]
        return math.fsum(values) / len(values) if len(values) == len(self.parts) else None


class Spread(NamedTuple):
    """Mean and standard deviation (n - 1) of a cell's scores over the seeds; NaN if undefined."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a sweep's table: one reported score of all cells.

    Args:
        report: The reported score.
        scores: Cell -> seed -> score of the finished runs. The first cell is the baseline.

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
        """Returns mean and standard deviation of a cell's scores over the seeds."""
        scores = [*self.scores[cell].values()]
        mean = math.fsum(scores) / len(scores) if scores else math.nan
        return Spread(mean, statistics.stdev(scores) if len(scores) > 1 and not math.isnan(mean) else math.nan)

    def difference(self, cell: Cell) -> SeedDifference | None:
        """Returns the difference of a cell from the first cell; None for the first, or without common seeds."""
        first = next(iter(self.scores))
        return None if cell == first else paired_difference(self.scores[cell], self.scores[first])

    def adjusted(self) -> dict[Cell, float]:
        """Returns the p value of each difference from the first cell, adjusted by Holm's method.

        A cell has no p value with fewer than two seeds, or with an undefined score. The adjustment counts its
        comparison too: unfinished runs don't make the other p values smaller.

        Example:
            >>> scores = {Cell(("a",)): {1: 70.0, 2: 70.5}, Cell(("b",)): {1: 72.0, 2: 72.6}}
            >>> [round(p_value, 3) for p_value in Column(Report("val/spearman"), scores).adjusted().values()]
            [0.016]
        """
        differences = {cell: self.difference(cell) for cell in self.scores}
        p_values = {cell: each.p_value for cell, each in differences.items() if each is not None}
        tested = {cell: p_value for cell, p_value in p_values.items() if not math.isnan(p_value)}
        open_comparisons = len(self.scores) - 1 - len(tested)
        return dict(zip(tested, holm([*tested.values(), *[1.0] * open_comparisons]), strict=False))

    def best(self) -> Cell | None:
        """Returns the cell with the best mean score; of equal means the first cell."""
        means = {cell: self.spread(cell).mean for cell in self.scores}
        scored = [cell for cell, mean in means.items() if not math.isnan(mean)]
        best = max if self.report.mode == "max" else min
        return best(scored, key=means.__getitem__) if scored else None


Take = Literal["best", "last"]
"""Validation of a run whose metrics are reported: the validation with the best score, or the last."""


@dataclass(frozen=True, slots=True)
class SweepTable:
    """Scores of the runs of a sweep, rendered as Markdown, LaTeX, CSV or JSON.

    Args:
        axes: Names of the varied keys.
        cells: Cells of the grid. The first cell is the baseline.
        runs: Results of the runs so far, in any order.
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
        | model.views.positive | val/spearman | seeds | minus the first cell | Holm p | beyond noise |
        | --- | ---: | ---: | ---: | ---: | ---: |
        | none | 70.50 ± 0.71 | 2 | | | |
        | CropTokens | **72.60 ± 0.85** | 2 | +2.10 ± 1.27 | 0.0303 | yes |
        <BLANKLINE>
        The number after ± of a difference is half its 95 % interval, paired by seed (Student's t). ...
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
        """Returns all metrics of the selected validation of a finished run.

        Raises:
            ValueError: No validation of the run has the metric ``select``.
        """
        scored = [metrics for metrics in run.validations if self.select in metrics]
        if not scored:
            names = ", ".join(sorted({name for metrics in run.validations for name in metrics} - {"step"}))
            raise InvalidValueError(f"--select: expected one of {names or 'no metric at all'}, got {self.select}")
        if self.take == "last":
            return scored[-1]
        defined = [metrics for metrics in scored if not math.isnan(metrics[self.select])]
        best = max if self.mode == "max" else min
        return best(defined, key=lambda metrics: metrics[self.select]) if defined else scored[-1]

    def reported(self, run: SweepRun) -> dict[Report, float]:
        """Returns the scores of a run that ``--report`` asks for, by their names; empty if the run failed.

        Raises:
            ValueError: No validation of any run has the metric of a report.
        """
        if run.error:
            return {}
        validation = self.figures(run)
        scores = {report: report.figure(validation, run.scores) for report in self._reports}
        for report, score in scores.items():
            if score is None and not report.parts and not self._is_logged(report.name):
                names = ", ".join(sorted(validation.keys() - {"step"}))
                raise InvalidValueError(f"--report: expected one of {names}, got {report.name}")
        return {report: score for report, score in scores.items() if score is not None}

    def _is_logged(self, metric: str) -> bool:
        """Returns whether a validation of any run has a metric."""
        return any(metric in metrics for run in self.runs for metrics in run.validations)

    @property
    def _reports(self) -> Sequence[Report]:
        return self.reports or (Report(self.select, self.mode),)

    def columns(self) -> list[Column]:
        """Returns a column with the scores of all cells for each report."""
        reported = [(run, self.reported(run)) for run in self._ordered()]
        return [
            Column(
                report,
                {
                    cell: {
                        run.seed: scores[report]
                        for run, scores in reported
                        if run.labels == cell.labels and report in scores
                    }
                    for cell in self.cells
                },
            )
            for report in self._reports
        ]

    def failures(self) -> list[SweepRun]:
        """Returns the runs of the sweep that failed."""
        return [run for run in self._ordered() if run.error]

    def markdown(self) -> str:
        """Renders a sweep as Markdown: tables of all reports, with notes.

        Two axes have a grid in front of the table of cells.
        """
        lines = []
        for column in self.columns():
            lines += [f"# {as_markdown(column.report.title)}: {self._described(column.report)}", ""]
            cells = self._cells(column, as_markdown, lambda score, is_best: f"**{score}**" if is_best else score)
            if len(self.axes) == 2:
                lines += [in_markdown(_as_grid(cells)), ""]
            lines += [in_markdown(cells, names=len(self.axes)), ""]
        failures = [f"- {as_markdown(failure)}" for failure in self._failure_notes()]
        return "\n".join([*lines, *self._notes(), *failures])

    def latex(self) -> str:
        """Renders a sweep in LaTeX for the package booktabs: a table for each report, with notes as comments."""
        lines = []
        for column in self.columns():
            lines += [latex_comment(f"{column.report.title}: {self._described(column.report)}")]
            lines += [in_latex(self._cells(column, as_latex, _in_math), names=len(self.axes)), ""]
        return "\n".join([*lines, *map(latex_comment, [*self._notes(), *self._failure_notes()])])

    def _cells(
        self, column: Column, escape: Callable[[str], str], write: Callable[[str, bool], str]
    ) -> list[list[str]]:
        """Returns the rows of a report's table, the header first.

        Args:
            column: Scores of the report.
            escape: Escapes the special characters of a name.
            write: Formats a number, and whether it is the best score.
        """
        adjusted, best = column.adjusted(), column.best()
        rows = [[*map(escape, [*self.axes, column.report.name]), *_HEADER]]
        for cell in self.cells:
            numbers = [str(len(column.scores[cell])), *_compared(column.difference(cell), adjusted.get(cell))]
            score = write(self._score(column, cell), cell == best)
            rows.append([*map(escape, cell.labels), score, *(write(number, False) for number in numbers)])
        return rows

    def _described(self, report: Report) -> str:
        seeds = ", ".join(map(str, self.seeds))
        by = "" if report.name == self.select or self.take == "last" else f" by {self.select}"
        over = f"mean ± sd over seeds {seeds}" if len(self.seeds) > 1 else f"seed {seeds}"
        return f"{self.take} of a run{by}, {over}"

    def csv(self) -> str:
        """Renders all runs as CSV: a line for each run, with all its scores in full precision."""
        scored = [(run, self._all_figures(run)) for run in self._ordered()]
        names = sorted({name for _, figures in scored for name in figures} - {"step"})
        rows = [
            [*run.labels, run.seed, *(figures.get(name, "") for name in ("step", *names)), run.seconds, run.error]
            for run, figures in scored
        ]
        return as_csv([[*self.axes, "seed", "step", *names, "seconds", "error"], *rows])

    def _all_figures(self, run: SweepRun) -> dict[str, float]:
        """Returns all scores of a run: its selected validation, scores of suites, and reported means."""
        reported = {report.name: figure for report, figure in self.reported(run).items()}
        return {} if run.error else {**self.figures(run), **run.scores, **reported}

    def json(self) -> str:
        """Renders cells, runs and differences as JSON in full precision; ``null`` for an undefined score."""
        cells = []
        columns = [(column, column.adjusted()) for column in self.columns()]
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
            for column, adjusted in columns:
                difference = column.difference(cell)
                holm_p = {"holm_p": adjusted.get(cell, math.nan)}
                against = None if difference is None else {**difference._asdict(), **holm_p}
                reports[column.report.name] = {**column.spread(cell)._asdict(), "minus_first": against}
            labels = dict(zip(self.axes, cell.labels, strict=True))
            cells.append({"labels": labels, "reports": reports, "runs": runs})
        listed = [{"name": report.name, "mode": report.mode, "mean_of": report.parts} for report in self._reports]
        selection = {"select": self.select, "take": self.take, "mode": self.mode, "seeds": self.seeds}
        return as_json({**selection, "reports": listed, "cells": cells})

    def _ordered(self) -> list[SweepRun]:
        numbers = {cell.labels: number for number, cell in enumerate(self.cells)}
        runs = [run for run in self.runs if run.labels in numbers and run.seed in self.seeds]
        return sorted(runs, key=lambda run: (numbers[run.labels], run.seed))

    def _score(self, column: Column, cell: Cell) -> str:
        mean, sd = column.spread(cell)
        runs = [run for run in self._ordered() if run.labels == cell.labels]
        if not column.scores[cell] and (column.report.parts or all(run.error for run in runs)):
            return "failed" if any(run.error for run in runs) else ""
        if math.isnan(mean):
            return "n/a"
        return f"{mean:.2f}" if math.isnan(sd) else f"{mean:.2f} ± {sd:.2f}"

    def _notes(self) -> list[str]:
        count = len(self.cells) - 1
        notes = []
        if len(self.seeds) > 1 and count:
            adjusted = f", adjusted for the {count} comparisons of the table" if count > 1 else ""
            notes.append(
                "The number after ± of a difference is half its 95 % interval, paired by seed (Student's t). "
                f"Holm p is the p value of this test{adjusted}. A difference is beyond noise if Holm p is at "
                f"most {_SIGNIFICANT}."
            )
        elif count:
            notes.append("One seed doesn't show the noise: give --seeds 3 for a spread.")
        return notes

    def _failure_notes(self) -> list[str]:
        return [f"failed: {' | '.join(run.labels)}, seed {run.seed}: {run.error}" for run in self.failures()]


def _compared(difference: SeedDifference | None, adjusted: float | None) -> tuple[str, str, str]:
    if difference is None:
        return "", "", ""
    mean, margin, _ = difference
    if adjusted is None:
        return f"{mean:+.2f}", "", "unknown"
    return f"{mean:+.2f} ± {margin:.2f}", f"{adjusted:.4f}", "yes" if adjusted <= _SIGNIFICANT else "no"


def _in_math(text: str, is_bold: bool) -> str:
    """Writes a number of a table in LaTeX, with its sign and ± in the mode for mathematics."""
    number = text.replace("±", r"\pm")
    if not any(letter.isdigit() for letter in text):
        return text
    return rf"$\mathbf{{{number}}}$" if is_bold else f"${number}$"


def _as_grid(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Converts the table of a sweep over two keys to a grid with the first key as rows, the second as columns."""
    (first, second, *_), *rows = cells
    scores = {(row, column): score for row, column, score, *_ in rows}
    across = list(dict.fromkeys(column for _, column in scores))
    lines = [
        [row, *(scores[row, column] for column in across)] for row in dict.fromkeys(row for row, _ in scores)
    ]
    return [[rf"{first} \ {second}", *across], *lines]
