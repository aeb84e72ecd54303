"""GLUE's files, its own or those of the hub, written as rows that a run reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.storage.text_files import USUAL, decoded_lines
from contrastive_text.core.targets import UNLABELLED, number_of
from contrastive_text.data.files.frames import hub_content
from contrastive_text.runs.glue.tasks import GLUE, GlueTask

HUB = "hub"
"""What stands for the copies on the hub, in the place of a folder."""
_REPOSITORY = "hub:nyu-mll/glue"
_WHERE = "get it from https://gluebenchmark.com/tasks, or give --data hub"


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """What a task is fine-tuned and scored on.

    Args:
        paths: ``train`` and the names of the development files -> file.
        rows: The same -> number of rows.
        understood: A line for each file: the rows of each class, and what was left out.
    """

    paths: Mapping[str, str]
    rows: Mapping[str, int]
    understood: str


def find_tasks(data: str, names: list[str] | None = None) -> dict[str, str]:
    """Returns for each task what it lacks, with where to get it; empty where all its files are there.

    Args:
        data: GLUE's folder, in which every task has one of its own; or ``hub``.
        names: The tasks; None for all.

    Raises:
        ValueError: An unknown task, or a folder in which no task is whole.
    """
    if unknown := [name for name in names or () if name not in GLUE]:
        raise InvalidValueError(f"--tasks: expected some of {', '.join(GLUE)}, got {unknown[0]}")
    found = {name: "" if data == HUB else _lacks(GLUE[name], Path(data)) for name in names or GLUE}
    if all(found.values()):
        raise InvalidValueError(
            f"--data {data}: expected a folder with tasks of GLUE such as {next(iter(found))}/train.tsv, got "
            f"none of {', '.join(found)}; {_WHERE}"
        )
    return found


def _lacks(task: GlueTask, folder: Path) -> str:
    files = [folder / task.name / f"{name}.tsv" for name in ("train", *task.dev)]
    lacking = ", ".join(file.name for file in files if not file.is_file())
    return f"expected {lacking} in {folder / task.name}; {_WHERE}" if lacking else ""


def write_task(task: GlueTask, data: str, folder: Path) -> TaskFiles:
    """Writes the labelled rows of a task as ``.jsonl``, texts as they are, labels as the names of classes.

    GLUE's own files are split at tabs and nothing is a quote; CoLA's have no header. Rows with another number of
    fields than the header, which QQP has, or without a label are left out and counted. Test files have no labels
    and are not read.

    Args:
        task: The task.
        data: GLUE's folder, or ``hub``.
        folder: Where to.

    Raises:
        FileNotFoundError: A file isn't there.
        ValueError: A column or a label that isn't GLUE's, or a file without rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths, rows, said = {}, {}, []
    for name in ("train", *task.dev):
        left_out: Counter[str] = Counter()
        where, cells = _read(task, data, name, left_out)
        found = list(_understood(task, where, cells, left_out))
        if not found:
            raise InvalidValueError(f"{where}: expected labelled rows, got none; {_WHERE}")
        paths[name], rows[name] = str(folder / f"{name}.jsonl"), len(found)
        with replacing(Path(paths[name])) as file:
            file.write("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in found).encode())
        reasons = "".join(f"; left out: {reason} {number:,}" for reason, number in left_out.items())
        said.append(f"{where}: {len(found):,} rows{reasons}")
    return TaskFiles(paths, rows, "\n".join(said))


def _read(
    task: GlueTask, data: str, name: str, left_out: Counter[str]
) -> tuple[str, Iterator[tuple[int, dict[str, object]]]]:
    """Returns where a file is, and its rows by library column, each with its line."""
    if data == HUB:
        split = name.replace("dev", "validation")
        where, columns = f"{_REPOSITORY}:{task.config}:{split}", task.hub_columns
        content = hub_content(where)
        header = content.header
        whole = range(len(header))
        found = filter(None, content.records())
        records: Iterator[tuple[int, list[object]]] = ((line, [row[i] for i in whole]) for line, row in found)
    else:
        path = Path(data, task.name, f"{name}.tsv")
        where, columns = str(path), task.columns
        lines = (line.removesuffix("\n").removesuffix("\r").split("\t") for line in decoded_lines(path, USUAL))
        header = list(task.header) or next(lines, [])
        records = ((line, [*cells]) for line, cells in enumerate(lines, start=1 if task.header else 2))
    if lacking := [column for column in columns.values() if column not in header]:
        raise InvalidValueError(
            f"{where}: expected the column {lacking[0]} of GLUE's {task.name}, got {', '.join(header[:12])}; "
            f"{_WHERE}"
        )
    places = {name: header.index(column) for name, column in columns.items()}

    def rows() -> Iterator[tuple[int, dict[str, object]]]:
        for line, cells in records:
            if len(cells) != len(header):
                left_out["rows with another number of fields"] += 1
            else:
                yield line, {column: cells[place] for column, place in places.items()}

    return where, rows()


def _understood(
    task: GlueTask, where: str, rows: Iterator[tuple[int, dict[str, object]]], left_out: Counter[str]
) -> Iterator[dict[str, object]]:
    """Yields rows with the names of their classes, or their scores."""
    known = {**task.labels, **{name: name for name in task.labels.values()}}
    for line, row in rows:
        label = str(row["target"]).strip()
        if label in UNLABELLED or not label:
            left_out["rows without a label"] += 1
        elif not task.labels and 0 <= number_of(label) <= 5:
            yield {**row, "target": number_of(label)}
        elif label in known:
            yield {**row, "target": known[label]}
        else:
            expected = ", ".join(known) or "a score from 0 to 5"
            raise InvalidValueError(f"{where}:{line}: expected {expected}, got {label!r}; {_WHERE}")
