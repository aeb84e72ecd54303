"""What fine-tuning runs score: GLUE's means of metrics, and medians over seeds of the best cell of a grid."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.runs.glue.tasks import GLUE, GlueTask
from contrastive_text.runs.sweeps import Cell, SweepRun, SweepTable

AVERAGED = tuple(name for name in GLUE if name != "WNLI")
"""Tasks of the average: those of the tables of RoBERTa's and CLEAR's development sets."""


@dataclass(frozen=True, slots=True)
class Finetuned:
    """The runs of a task: a grid of rates and batch sizes, each under several seeds.

    Liu et al. 2019, RoBERTa (https://arxiv.org/abs/1907.11692, section 5.1): the median over five seeds, of the
    best rate and batch size on the development set.

    Args:
        task: The task.
        rows: Rows that are scored.
        cells: The grid.
        runs: What came of its runs.

    Example:
        >>> cells = [Cell(("1e-5",)), Cell(("2e-5",))]
        >>> runs = [SweepRun(cell.labels, seed, validations=[{"val/rte/accuracy": score}])
        ...         for cell, scores in zip(cells, ([60, 70, 62], [64, 66, 50]))
        ...         for seed, score in enumerate(scores)]
        >>> rte = Finetuned(GLUE["RTE"], 277, cells, runs)
        >>> rte.best().labels, rte.score().score
        (('2e-5',), 64.0)
    """

    task: GlueTask
    rows: int
    cells: Sequence[Cell]
    runs: Sequence[SweepRun]

    def best(self) -> Cell:
        """Returns the cell of the highest median, the first of equals."""
        return max(self.cells, key=lambda cell: statistics.median(map(self._score, self._of(cell))))

    def score(self) -> TaskScore:
        """Returns the median over the seeds of the best cell; parts are the medians of each figure."""
        runs = self._of(self.best())
        each = [self.figures(run) for run in runs]
        parts = {name: statistics.median([figures[name] for figures in each]) for name in each[0]}
        metric = " and ".join(self.task.metrics)
        median = statistics.median(map(self._score, runs))
        return TaskScore(self.task.name, metric, median, self.rows, parts if len(parts) > 1 else {})

    def figures(self, run: SweepRun) -> dict[str, float]:
        """Returns what the score is the mean of, at the validation that counts: by metric, of MNLI by file."""
        table = SweepTable([], self.cells, self.runs, [], select=self.task.select)
        chosen = table.figures(run)
        files = self.task.dev if len(self.task.dev) > 1 else ("",)
        names = [f"{metric}/{file}".rstrip("/") for metric in self.task.metrics for file in files]
        return {name: chosen[f"val/{self.task.key}/{name}"] for name in names}

    def _score(self, run: SweepRun) -> float:
        return statistics.fmean(self.figures(run).values())

    def _of(self, cell: Cell) -> list[SweepRun]:
        return [run for run in self.runs if run.labels == cell.labels and not run.error]

    def describe(self) -> str:
        """Returns the score, its figures and the best cell in a line."""
        score, cell = self.score(), self.best()
        parts = ", ".join(f"{name} {figure:.2f}" for name, figure in score.parts.items())
        seeds = len(self._of(cell))
        over = f"median over {seeds} seeds" if seeds > 1 else "one seed"
        return f"{self.task.name}: {score.score:.2f}{f' ({parts})' if parts else ''}, {over} of {cell.name}"


def glue_table(model: str, found: Mapping[str, Finetuned | str]) -> ScoreTable:
    """Returns a row of all tasks; with an average where all of ``AVERAGED`` are there.

    Args:
        model: Its name.
        found: Task -> its runs, or what it lacks.
    """
    scores = [
        TaskScore.absent(name, " and ".join(GLUE[name].metrics), runs) if isinstance(runs, str) else runs.score()
        for name, runs in found.items()
    ]
    return ScoreTable("GLUE, development sets x 100", {model: scores}, averaged=AVERAGED)
