"""Files that a command reads and writes: the form of its input, and the rows of its output."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.terminal import say, say_json
from contrastive_text.data.files.formats import PYTHON, FileForm, options_of


def form_of(options: object) -> FileForm:
    """Returns how the main file of a command is read; messages name the options that the command has.

    Args:
        options: The record of the command.
    """
    given = vars(options)
    return FileForm(
        header=given.get("header"),
        separator=given.get("separator"),
        pair_labels=given.get("pair_labels"),
        options=options_of(*(name for name in PYTHON if name in given)),
    )


def plain_form(**spelled: str) -> FileForm:
    """Returns how a further file of a command is read: by its content, and by the named options alone.

    Args:
        spelled: Setting -> the option of the command that has it for this file.
    """
    return FileForm(options=spelled)


def table_row(cells: Iterable[object]) -> str:
    r"""Returns a row without its newline; a tab or a newline in a cell becomes a blank.

    Example:
        >>> table_row(["a\nb", 2])
        'a b\t2'
    """
    return "\t".join(re.sub(r"[\t\r\n]", " ", str(cell)) for cell in cells)


def print_or_write(text: str, output: Path | None, what: str, as_json: bool = False) -> None:
    """Prints a text, or writes it to a file and says on the standard error what is there."""
    if output is None:
        (say_json if as_json else say)(text)
        return
    with replacing(output) as file:
        file.write(f"{text}\n".encode())
    say(f"{what} written to {output}", file=sys.stderr)
