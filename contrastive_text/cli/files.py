"""Input format and output rows of the files that commands read and write."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.terminal import print_json, print_message
from contrastive_text.core.types import Row
from contrastive_text.data.files.formats import PYTHON, FileForm, options_of
from contrastive_text.data.files.readers import Table, TextStream, read_rows


def form_of(options: object) -> FileForm:
    """Returns the form of a command's main file (header, separator, ...) from its options.

    Error messages name these options.

    Args:
        options: The record of the command.
    """
    values = vars(options)
    return FileForm(
        header=values.get("header"),
        separator=values.get("separator"),
        pair_labels=values.get("pair_labels"),
        options=options_of(*(name for name in PYTHON if name in values)),
    )


def plain_form(**spelled: str) -> FileForm:
    """Returns the format options of a further file of a command, whose format is recognized from its content.

    Args:
        spelled: Option of the command for this file, by the name of the setting.
    """
    return FileForm(options=spelled)


def read_table(options: object, reads: Sequence[str], form: FileForm, target: Classes | None = None) -> Table:
    """Reads the rows of a command's main file, and prints how its columns were understood.

    Args:
        options: The record of the command.
        reads: Names of the columns that the command reads.
        form: Form of the file.
        target: Classes of the column ``target``; None for a command without classes.
    """
    values = vars(options)
    table = read_rows(
        values["input"],
        reads,
        values["columns"],
        target=target,
        split=values["split"],
        bounds=SizeLimits.of(values["bounds"]),
        form=form,
    )
    print_message(table.description)
    return table


def text_stream(
    options: object, path: str | Path, distinct: bool = False, columns: Sequence[str] = ()
) -> TextStream:
    """Returns the texts of a command's main file.

    Args:
        options: The record of the command.
        path: The file.
        distinct: Whether to skip texts that equal an earlier text.
        columns: Further columns that are read with each text.
    """
    values = vars(options)
    bounds = SizeLimits.of(values["bounds"])
    return TextStream(path, values["column"], distinct, values["split"], bounds, form_of(options), columns)


def further_texts(options: object, path: str | Path, column: str, distinct: bool = False) -> TextStream:
    """Returns the texts of a further file of a command, whose format is recognized from its content.

    Args:
        options: The record of the command.
        path: The file.
        column: Option that names the column of this file, such as ``query_column``.
        distinct: Whether to skip texts that equal an earlier text.
    """
    values = vars(options)
    form = plain_form(column=f"--{column}", split="--split")
    return TextStream(path, values[column], distinct, values["split"], SizeLimits.of(values["bounds"]), form)


def table_row(cells: Iterable[object]) -> str:
    r"""Joins the cells of a row by tabs. Tabs and newlines inside a cell become spaces.

    Example:
        >>> table_row(["a\nb", 2])
        'a b\t2'
    """
    return "\t".join(re.sub(r"[\t\r\n]", " ", str(cell)) for cell in cells)


def print_or_write(text: str, output: Path | None, what: str, as_json: bool = False) -> None:
    """Prints a text, or writes it to a file and reports the file on standard error.

    Args:
        text: The text.
        output: File to write; None to print.
        what: Name of the text in the report.
        as_json: Whether the text is JSON, which is printed without wrapping.
    """
    if output is None:
        (print_json if as_json else print_message)(text)
        return
    with atomic_file(output) as file:
        file.write(f"{text}\n".encode())
    print_message(f"{what} written to {output}", file=sys.stderr)


def write_predictions(path: Path, rows: Sequence[Row], scores: Tensor, target: Target) -> int:
    """Writes a table of predictions: the texts of each row, ``prediction`` and, for classes, ``probability``.

    Tabs and newlines in a text become spaces.

    Args:
        path: The ``.tsv`` file to write; its folder is created.
        rows: The rows in file order.
        scores: Predictions of the objective, (N, classes) or (N,).
        target: Target of the objective, which names the classes.

    Returns:
        Number of rows with a replaced tab or newline.
    """
    words = target.format(scores)
    columns = [*rows[0], "prediction"]
    cells = [[*map(str, row.values()), word] for row, word in zip(rows, words, strict=True)]
    if isinstance(target, Classes):
        columns.append("probability")
        highest = scores.float().softmax(dim=1).amax(dim=1)
        cells = [[*row, f"{float(share):.6f}"] for row, share in zip(cells, highest, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [table_row(row) for row in (columns, *cells)]
    with atomic_file(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return sum(line != "\t".join(row) for line, row in zip(lines[1:], cells, strict=True))
