"""GLUE benchmark: converts the files of its nine tasks for ``fit``, and collects scores of fine-tuning runs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.text_files import USUAL, decoded_lines
from contrastive_text.core.targets import UNLABELED, parse_number
from contrastive_text.data.files.parsing import hub_content
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.runs.grid import Cell
from contrastive_text.runs.sweep_table import SweepRun, SweepTable

HUB = "hub"
"""Value of ``data``, in place of a folder, for the copy of GLUE on the hub."""
_REPOSITORY = "hub:nyu-mll/glue"
_WHERE = "get it from https://gluebenchmark.com/tasks, or give --data hub"


@dataclass(frozen=True, slots=True)
class GlueTask:
    """Task of the GLUE benchmark (Wang et al. 2019, https://arxiv.org/abs/1804.07461, table 1).

    Args:
        name: Name of the task in papers, and of its folder.
        texts: Columns of the texts in GLUE's own files.
        classes: Classes in the order of the outputs; F1 is of the second class. Empty for scores from 0 to 5.
        numbered: Whether GLUE's own files have the numbers of the classes from 0, instead of their names.
        label: Column of the label in GLUE's own files.
        hub_texts: Columns of the texts on the hub; empty if they have the same names.
        metrics: Names of the metrics whose mean is the task's score.
        dev: Names of the development files.
        header: Header of GLUE's own files if the files have none.
    """

    name: str
    texts: tuple[str, ...]
    classes: tuple[str, ...] = ()
    numbered: bool = True
    label: str = "label"
    hub_texts: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    dev: tuple[str, ...] = ("dev",)
    header: tuple[str, ...] = ()

    @property
    def config(self) -> str:
        """Name of the task on the hub, in ``nyu-mll/glue``, and of its data set in a run.

        Example:
            >>> GLUE["SST-2"].config
            'sst2'
        """
        return self.name.lower().replace("-", "")

    def columns(self, hub: bool) -> dict[str, str]:
        """Returns column of this library -> column of GLUE's own files, or of the copy on the hub."""
        texts = (self.hub_texts if hub else ()) or self.texts
        roles = ("anchor", "positive") if self.pairs else ("text",)
        return {**dict(zip(roles, texts, strict=True)), "target": "label" if hub else self.label}

    @property
    def pairs(self) -> bool:
        """True if a row of the task has two texts."""
        return len(self.texts) > 1

    @property
    def select(self) -> str:
        """Name of the score that selects the best validation of a run: the task's first metric.

        RoBERTa's code selects by accuracy, and by the loss on STS-B; on MNLI by both development files together.
        """
        return f"val/{self.config}/{self.metrics[0]}"

    def options(self, files: Mapping[str, str]) -> list[str]:
        """Returns the options of ``fit`` that set the task's data and objective in the recipe ``glue``.

        Args:
            files: ``train`` and the names of ``dev`` -> path of a file that ``write_task`` has written.
        """
        outputs = len(self.classes) or 1
        head = {"class_path": "FineTuningHead", "init_args": {"out_features": outputs}}
        classes = {"classes": list(self.classes)} if self.classes else {"low": 0.0, "high": 5.0}
        objective = {
            "class_path": "TextClassification" if self.classes else "TextRegression",
            "init_args": {"task": self.config, "head": head, **classes},
        }
        task = {
            "train": files["train"],
            "validation": [files[name] for name in self.dev],
            "pairing": {"class_path": "OneSequence" if self.pairs else "SameText"},
        }
        return [
            f"--model.objectives={json.dumps({self.config: objective})}",
            f"--data.tasks={json.dumps({self.config: task})}",
        ]


_PAIR = ("sentence1", "sentence2")
_NLI = ("entailment", "not_entailment")
_TASKS = (
    GlueTask(
        "MNLI",
        _PAIR,
        ("entailment", "neutral", "contradiction"),
        numbered=False,
        label="gold_label",
        hub_texts=("premise", "hypothesis"),
        dev=("dev_matched", "dev_mismatched"),
    ),
    GlueTask("QNLI", ("question", "sentence"), _NLI, numbered=False),
    GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        label="is_duplicate",
        metrics=("accuracy", "f1"),
    ),
    GlueTask("RTE", _PAIR, _NLI, numbered=False),
    GlueTask("SST-2", ("sentence",), ("negative", "positive")),
    GlueTask(
        "MRPC",
        ("#1 String", "#2 String"),
        ("not_equivalent", "equivalent"),
        label="Quality",
        hub_texts=_PAIR,
        metrics=("accuracy", "f1"),
    ),
    GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        metrics=("matthews",),
        header=("source", "label", "mark", "sentence"),
    ),
    GlueTask("STS-B", _PAIR, label="score", metrics=("pearson", "spearman")),
    GlueTask("WNLI", _PAIR, ("not_entailment", "entailment")),
)
GLUE: Mapping[str, GlueTask] = {task.name: task for task in _TASKS}
"""Name of a GLUE task -> task, in the order of RoBERTa's and CLEAR's tables."""
AVERAGED = tuple(name for name in GLUE if name != "WNLI")
"""Names of the GLUE tasks that the average includes, as in RoBERTa's and CLEAR's tables of development sets."""


class TaskFiles(NamedTuple):
    """Converted files on which a GLUE task is fine-tuned and scored.

    Args:
        paths: ``train`` and the names of the development files -> file.
        rows: ``train`` and the names of the development files -> number of rows.
        understood: A line for each file: number of rows, and of skipped rows.
    """

    paths: Mapping[str, str]
    rows: Mapping[str, int]
    description: str


def find_tasks(data: str, names: list[str] | None = None) -> dict[str, str]:
    """Returns task of GLUE -> text that names its missing files and their source; empty if none is missing.

    Args:
        data: GLUE's folder, which contains a folder for each task; or ``hub``.
        names: Names of the tasks; None for all.

    Raises:
        ValueError: A task is unknown, or no task has all its files.
    """
    if unknown := [name for name in names or () if name not in GLUE]:
        raise InvalidValueError(f"--tasks: expected some of {', '.join(GLUE)}, got {unknown[0]}")
    missing = {}
    for name in names or GLUE:
        files = [] if data == HUB else [Path(data, name, f"{part}.tsv") for part in ("train", *GLUE[name].dev)]
        missing_files = ", ".join(file.name for file in files if not file.is_file())
        missing[name] = f"expected {missing_files} in {Path(data, name)}; {_WHERE}" if missing_files else ""
    if all(missing.values()):
        raise InvalidValueError(
            f"--data {data}: expected a folder with tasks of GLUE such as {next(iter(missing))}/train.tsv, got "
            f"no complete task of {', '.join(missing)}; {_WHERE}"
        )
    return missing


def write_task(task: GlueTask, data: str, folder: Path) -> TaskFiles:
    """Writes the labeled rows of a GLUE task as ``.jsonl``, with unchanged texts and class names as labels.

    GLUE's own files are split at tabs, and quotes are ordinary characters. CoLA's files have no header. Rows
    without a label, or with another number of fields than the header (in QQP), are skipped and counted. Test
    files have no labels and are not read.

    Args:
        task: The task.
        data: GLUE's folder, or ``hub``.
        folder: Folder of the written files.

    Raises:
        FileNotFoundError: A file of the task doesn't exist.
        ValueError: A column or a label isn't GLUE's, or a file has no labeled rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, rows, notes = {}, {}, []
    for name in ("train", *task.dev):
        skips: Counter[str] = Counter()
        where, cells = _read(task, data, name, skips)
        labeled = list(_with_targets(task, where, cells, skips))
        if not labeled:
            raise InvalidValueError(f"{where}: expected labeled rows, got no row with a label; {_WHERE}")
        paths[name], rows[name] = str(folder / f"{name}.jsonl"), len(labeled)
        with atomic_file(Path(paths[name])) as file:
            file.write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in labeled).encode())
        reasons = "".join(f"; left out: {reason} {number:,}" for reason, number in skips.items())
        notes.append(f"{where}: {len(labeled):,} rows{reasons}")
    return TaskFiles(paths, rows, "\n".join(notes))


def _read(
    task: GlueTask, data: str, name: str, skips: Counter[str]
) -> tuple[str, Iterator[tuple[int, dict[str, object]]]]:
    """Reads a file of a GLUE task. Returns its path, and the line number and the cells by column of each row."""
    if data == HUB:
        split = name.replace("dev", "validation")
        where = f"{_REPOSITORY}:{task.config}:{split}"
        content = hub_content(where)
        header = content.header
        whole = range(len(header))
        numbered = filter(None, content.records())
        records: Iterator[tuple[int, list[object]]] = ((line, [row[i] for i in whole]) for line, row in numbered)
    else:
        path = Path(data, task.name, f"{name}.tsv")
        where = str(path)
        lines = (line.removesuffix("\n").removesuffix("\r").split("\t") for line in decoded_lines(path, USUAL))
        header = list(task.header) or next(lines, [])
        records = ((line, [*cells]) for line, cells in enumerate(lines, start=1 if task.header else 2))
    columns = task.columns(hub=data == HUB)
    if missing := [column for column in columns.values() if column not in header]:
        raise InvalidValueError(
            f"{where}: expected the column {missing[0]} of GLUE's {task.name}, got {', '.join(header[:12])}; "
            f"{_WHERE}"
        )
    indices = {name: header.index(column) for name, column in columns.items()}

    def rows() -> Iterator[tuple[int, dict[str, object]]]:
        for line, cells in records:
            if len(cells) != len(header):
                skips["rows with another number of fields"] += 1
            else:
                yield line, {column: cells[index] for column, index in indices.items()}

    return where, rows()


def _with_targets(
    task: GlueTask, where: str, rows: Iterator[tuple[int, dict[str, object]]], skips: Counter[str]
) -> Iterator[dict[str, object]]:
    """Yields the labeled rows of a file, with the name of their class or their score as target."""
    numbers = {str(number): name for number, name in enumerate(task.classes)} if task.numbered else {}
    class_names = {**numbers, **{name: name for name in task.classes}}
    for line, row in rows:
        label = str(row["target"]).strip()
        if label in UNLABELED or not label:
            skips["rows without a label"] += 1
        elif not task.classes and 0 <= parse_number(label) <= 5:
            yield {**row, "target": parse_number(label)}
        elif label in class_names:
            yield {**row, "target": class_names[label]}
        else:
            expected = ", ".join(class_names) or "a score from 0 to 5"
            raise InvalidValueError(f"{where}:{line}: expected {expected}, got {label!r}; {_WHERE}")


@dataclass(frozen=True, slots=True)
class Finetuned:
    """Fine-tuning runs of a GLUE task: a grid of learning rates and batch sizes, with several seeds each.

    Liu et al. 2019, RoBERTa (https://arxiv.org/abs/1907.11692, section 5.1): the median over five seeds, with
    the best learning rate and batch size on the development set.

    Args:
        task: The task.
        rows: Number of rows of the development set.
        table: Scores of the sweep over the grid.

    Example:
        >>> cells = [Cell(("1e-5",)), Cell(("2e-5",))]
        >>> runs = [SweepRun(cell.labels, seed, validations=[{"val/rte/accuracy": score}])
        ...         for cell, scores in zip(cells, ([60, 70, 62], [64, 66, 50]))
        ...         for seed, score in enumerate(scores)]
        >>> rte = Finetuned(GLUE["RTE"], 277, SweepTable(["lr"], cells, runs, [0, 1, 2], "val/rte/accuracy"))
        >>> rte.best().labels, rte.score().score
        (('2e-5',), 64.0)
    """

    task: GlueTask
    rows: int
    table: SweepTable

    def best(self) -> Cell:
        """Returns the grid cell with the highest median score; of equal medians the first cell."""
        return max(self.table.cells, key=lambda cell: statistics.median(map(self._score, self._runs(cell))))

    def score(self) -> TaskScore:
        """Returns the task's score: the median over the seeds of the best cell, and of each metric."""
        runs = self._runs(self.best())
        scores = [self.figures(run) for run in runs]
        parts = {name: statistics.median([score[name] for score in scores]) for name in scores[0]}
        metric = " and ".join(self.task.metrics)
        median = statistics.median(map(self._score, runs))
        return TaskScore(self.task.name, metric, median, self.rows, parts if len(parts) > 1 else {})

    def figures(self, run: SweepRun) -> dict[str, float]:
        """Returns metric and file -> value at the selected validation of a run. Their mean is the run's score."""
        values = self.table.figures(run)
        files = self.task.dev if len(self.task.dev) > 1 else ("",)
        names = [f"{metric}/{file}".rstrip("/") for metric in self.task.metrics for file in files]
        return {name: values[f"val/{self.task.config}/{name}"] for name in names}

    def _score(self, run: SweepRun) -> float:
        return statistics.fmean(self.figures(run).values())

    def _runs(self, cell: Cell) -> list[SweepRun]:
        return [run for run in self.table.runs if run.labels == cell.labels and not run.error]

    def describe(self) -> str:
        """Describes the result of a task in one line: score, metrics and best cell."""
        score, cell = self.score(), self.best()
        parts = ", ".join(f"{name} {figure:.2f}" for name, figure in score.parts.items())
        seeds = len(self._runs(cell))
        over = f"median over {seeds} seeds" if seeds > 1 else "one seed"
        return f"{self.task.name}: {score.score:.2f}{f' ({parts})' if parts else ''}, {over} of {cell.name}"


def glue_table(model: str, found: Mapping[str, Finetuned | str]) -> ScoreTable:
    """Returns a model's table of GLUE scores, with the average if all tasks of ``AVERAGED`` have a score.

    Args:
        model: Name of the model.
        found: Task -> its runs, or a text that names its missing files.
    """
    scores = [
        TaskScore.absent(name, " and ".join(GLUE[name].metrics), runs) if isinstance(runs, str) else runs.score()
        for name, runs in found.items()
    ]
    return ScoreTable("GLUE, development sets x 100", {model: scores}, averaged=AVERAGED)
