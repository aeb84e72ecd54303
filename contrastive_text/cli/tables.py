"""What a command leaves: rows of a ``.tsv`` file, which knows no quotes; texts in the terminal or a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.terminal import say, say_json


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
