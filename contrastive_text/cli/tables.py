"""Rows of a ``.tsv`` file, which knows no quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable


def table_row(cells: Iterable[object]) -> str:
    r"""Returns a row without its newline; a tab or a newline in a cell becomes a blank.

    Example:
        >>> table_row(["a\nb", 2])
        'a b\t2'
    """
    return "\t".join(re.sub(r"[\t\r\n]", " ", str(cell)) for cell in cells)
