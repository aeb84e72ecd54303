"""Scores of tasks, and tables of scores as text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import as_markdown, html_table

AVERAGE = "Avg."
"""Header of the column of means in a table of scores, as in the papers."""
_COLUMNS = ("model", "task", "part", "metric", "score", "size", "missing")


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Score of a model on an evaluation task.

    Args:
        task: Name of the task as in the papers, such as ``STS12`` or ``MR``.
        metric: Name of the metric, such as ``spearman`` or ``accuracy``.
        score: Score times 100; NaN without data.
        size: Number of scored rows.
        parts: Further figures of the task, times 100: scores of subsets, or another metric or split.
        missing: Reason why there is no score, with the missing files and their source. Empty if there is a score.

    Example:
        >>> TaskScore("MR", "accuracy", 81.0).score
        81.0
    """

    task: str
    metric: str
    score: float
    size: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    missing: str = ""

    @classmethod
    def absent(cls, task: str, metric: str, missing: str) -> TaskScore:
        """Returns the NaN score of a task without data, with the reason."""
        return cls(task, metric, math.nan, missing=missing)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Table of scores with a row for each model, a column for each task, and a column of means.

    If a task of a row has no score, the mean is ``n/a``. The notes under the table name the missing data and
    their source.

    Args:
        title: Metric and protocol, such as ``Spearman x 100, setting all``.
        rows: Scores of each model, by its name. All rows have the same tasks in the same order.
        averaged: Tasks of the mean; None for all. If empty, the table has no column of means.

    Raises:
        ValueError: Rows have different tasks.

    Example:
        >>> scores = [TaskScore("MR", "accuracy", 81.0), TaskScore("CR", "accuracy", 86.5)]
        >>> print(ScoreTable("accuracy", {"mine": scores}).markdown())
        | accuracy | MR | CR | Avg. |
        | --- | ---: | ---: | ---: |
        | mine | 81.00 | 86.50 | 83.75 |
    """

    title: str
    rows: Mapping[str, Sequence[TaskScore]]
    averaged: Sequence[str] | None = None

    def __post_init__(self) -> None:
        tasks_of = {name: [score.task for score in scores] for name, scores in self.rows.items()}
        first = next(iter(tasks_of.values()), [])
        for name, tasks in tasks_of.items():
            if tasks != first:
                raise InvalidValueError(
                    f"ScoreTable.rows: expected the tasks {', '.join(first)} in every row, got "
                    f"{', '.join(tasks)} for {name}; make a table of each"
                )

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, which are the columns of the table."""
        return [score.task for score in next(iter(self.rows.values()), [])]

    def average(self, name: str) -> float:
        """Returns the mean of a model's scores in the table; NaN if a score is missing."""
        tasks = self.tasks if self.averaged is None else self.averaged
        scores = {score.task: score.score for score in self.rows[name]}
        return sum(scores.get(task, math.nan) for task in tasks) / len(tasks) if tasks else math.nan

    def notes(self) -> list[str]:
        """Returns a line for each task without a score, with the missing data and their source."""
        lines = [
            f"{score.task}: {score.missing}" for scores in self.rows.values() for score in scores if score.missing
        ]
        return list(dict.fromkeys(lines))

    def text(self) -> str:
        """Returns the table of scores with aligned columns for a terminal."""
        return "\n".join([in_columns(self._cells()), *self.notes()])

    def markdown(self) -> str:
        """Returns the table of scores in the Markdown of GitHub."""
        notes = [f"- {as_markdown(note)}" for note in self.notes()]
        cells = [[as_markdown(cell) for cell in row] for row in self._cells()]
        return "\n".join([in_markdown(cells), *(["", *notes] if notes else [])])

    def latex(self) -> str:
        r"""Returns the table of scores in LaTeX for the package booktabs (``\usepackage{booktabs}``)."""
        cells = [[as_latex(cell) for cell in row] for row in self._cells()]
        return "\n".join([in_latex(cells), *map(latex_comment, self.notes())])

    def _repr_html_(self) -> str:
        """Returns the table of scores as HTML for a notebook."""
        (_, *tasks), *rows = self._cells()
        return html_table(self.title, [["model", *tasks], *rows], self.notes())

    def csv(self) -> str:
        """Returns the scores as CSV: a line for each score and part in full precision, empty if missing."""
        return as_csv([_COLUMNS, *self._lines()])

    def json(self) -> str:
        """Returns the table of scores with all parts as JSON in full precision; ``null`` for a missing score."""
        return as_json(self.to_dict())

    def subsets(self) -> dict[str, ScoreTable]:
        """Returns for each task with parts a table of the parts' scores, by the title of the table."""
        rows_of: dict[str, dict[str, list[TaskScore]]] = {}
        for name, scores in self.rows.items():
            for score in scores:
                if score.parts:
                    parts = [TaskScore(part, score.metric, figure) for part, figure in score.parts.items()]
                    rows_of.setdefault(f"{score.task}, subsets", {})[name] = parts
        return {title: ScoreTable(title, rows) for title, rows in rows_of.items()}

    def by_part(self) -> dict[str, ScoreTable]:
        """Returns a table for each part that all tasks with a score have, such as a metric, by its name."""
        present = [score for scores in self.rows.values() for score in scores if not score.missing]
        shared = [
            part
            for part in (present[0].parts if present else ())
            if all(part in score.parts for score in present)
        ]
        tables = {}
        for part in shared:
            rows = {
                name: [
                    TaskScore(score.task, part, score.parts.get(part, math.nan), size=score.size)
                    for score in scores
                ]
                for name, scores in self.rows.items()
            }
            tables[part] = ScoreTable(f"{part} x 100", rows, averaged=self.averaged)
        return tables

    def of_one_task(self) -> ScoreTable:
        """Returns a table of all scores of the only task, with a column for each part.

        Example:
            >>> scores = [TaskScore("held.tsv", "ndcg@10", 35.8, parts={"mrr@10": 31.2, "recall@1": 24.1})]
            >>> print(ScoreTable("ndcg@10 x 100", {"mine": scores}).of_one_task().markdown())
            | held.tsv, x 100 | ndcg@10 | mrr@10 | recall@1 |
            | --- | ---: | ---: | ---: |
            | mine | 35.80 | 31.20 | 24.10 |
        """
        (task,) = self.tasks
        rows = {
            name: [
                replace(score, task=score.metric),
                *(TaskScore(part, part, figure) for part, figure in score.parts.items()),
            ]
            for name, (score,) in self.rows.items()
        }
        return ScoreTable(f"{task}, x 100", rows, averaged=())

    def _lines(self) -> Iterator[list[object]]:
        for name, scores in self.rows.items():
            for score in scores:
                yield [name, score.task, "", score.metric, _number(score.score), score.size, score.missing]
                for part, figure in score.parts.items():
                    yield [name, score.task, part, score.metric, _number(figure), "", ""]
            yield [name, AVERAGE, "", "", _number(self.average(name)), "", ""]

    def to_dict(self) -> dict[str, object]:
        """Returns all scores and means of the table as a dict for JSON."""
        rows = {
            name: {"tasks": [asdict(score) for score in scores], "average": self.average(name)}
            for name, scores in self.rows.items()
        }
        return {"title": self.title, "models": rows}

    def _cells(self) -> list[list[str]]:
        means = self.averaged is None or len(self.averaged) > 0
        cells = [[self.title, *self.tasks, *([AVERAGE] if means else [])]]
        for name, scores in self.rows.items():
            figures = [*(score.score for score in scores), *([self.average(name)] if means else [])]
            cells.append([name, *map(figure_cell, figures)])
        return cells


FORMATS: Mapping[str, Callable[[ScoreTable], str]] = {
    "text": ScoreTable.text,
    "markdown": ScoreTable.markdown,
    "latex": ScoreTable.latex,
    "csv": ScoreTable.csv,
    "json": ScoreTable.json,
}
"""Name of a format -> method of ``ScoreTable`` that renders a table in it."""


def render_tables(suites: Mapping[str, ScoreTable], form: str) -> str:
    """Renders the tables of suites as one text, one JSON object or one CSV table.

    Args:
        suites: Tables by the names of their suites.
        form: Name of a format in ``FORMATS``.
    """
    if form == "json":
        return as_json({name: table.to_dict() for name, table in suites.items()})
    if form == "csv":
        lines = [[suite, *line] for suite, table in suites.items() for line in table._lines()]
        return as_csv([["suite", *_COLUMNS], *lines])
    return "\n\n".join(FORMATS[form](table) for table in suites.values())


def as_csv(lines: Sequence[Sequence[object]]) -> str:
    """Returns rows of values as CSV, without a line break at the end."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue().rstrip("\n")


def figure_cell(score: float) -> str:
    """Returns a score as text with two digits, or ``n/a`` for NaN."""
    return "n/a" if math.isnan(score) else f"{score:.2f}"


def as_json(content: object) -> str:
    """Converts plain data to JSON, with ``null`` for NaN.

    Example:
        >>> print(as_json({"scores": [1.5, math.nan]}))
        {
          "scores": [
            1.5,
            null
          ]
        }
    """
    return json.dumps(without_nan(content), indent=2, ensure_ascii=False)


def without_nan(value: object) -> object:
    """Returns a copy of plain data with None in place of NaN."""
    if isinstance(value, Mapping):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _number(score: float) -> str:
    return "" if math.isnan(score) else repr(score)


def in_columns(cells: Sequence[Sequence[str]]) -> str:
    """Returns rows of cells as text with aligned columns. The first row is the header.

    The first column is aligned left, all other columns right.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def in_markdown(cells: Sequence[Sequence[str]], names: int = 1) -> str:
    """Returns rows of cells as a Markdown table. The first row is the header.

    Args:
        cells: The rows, with special characters escaped.
        names: Number of first columns that are aligned left. All other columns are aligned right.
    """
    head, *rows = cells
    rule = ["---"] * names + ["---:"] * (len(head) - names)
    lines = ["|".join(f" {cell} " if cell else " " for cell in row) for row in (head, rule, *rows)]
    return "\n".join(f"|{line}|" for line in lines)


def in_latex(cells: Sequence[Sequence[str]], names: int = 1) -> str:
    r"""Returns rows of cells in LaTeX as a table for the package booktabs. The first row is the header.

    Args:
        cells: The rows, with special characters escaped.
        names: Number of first columns that are aligned left. All other columns are aligned right.

    Example:
        >>> print(in_latex([["model", "MR"], ["mine", r"\textbf{81.00}"]]))
        \begin{tabular}{lr}
        \toprule
        model & MR \\
        \midrule
        mine & \textbf{81.00} \\
        \bottomrule
        \end{tabular}
    """
    lines = [" & ".join(row) + r" \\" for row in cells]
    columns = "l" * names + "r" * (len(cells[0]) - names)
    head = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*head, *lines[1:], r"\bottomrule", r"\end{tabular}"])


def latex_comment(text: str) -> str:
    """Returns a text as one line of comment in LaTeX."""
    return f"% {' '.join(text.split())}"


def as_latex(text: str) -> str:
    r"""Escapes the special characters of LaTeX in a text.

    Example:
        >>> print(as_latex("my_views 50 %"))
        my\_views 50 \%
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)
