"""Tables without a header: which columns they have, where that is clear from their rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice

from contrastive_text.core.targets import NLI, UNLABELLED, number_of
from contrastive_text.data.files.columns import negative_names
from contrastive_text.data.files.formats import Content

_LOOKED_AT = 1000
"""Rows whose cells say what a column holds."""


def named_content(content: Content, reads: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Content:
    """Returns a table whose first line is a row under names, or unchanged where these aren't clear.

    Clear are one column of texts; and two columns of texts, hard negatives after them, and a label or score last.

    Args:
        content: Of a file.
        reads: Library columns.
        columns: Library column -> columns of the file, as the user gives them: then the first line has names.
    """
    if content.bare is None or not content.is_row or columns:
        return content
    sample = [record[1] for record in islice(content.bare(content.header).records(), _LOOKED_AT) if record]
    width = len(content.header)
    is_label = [all(_is_label(cells[place]) for cells in sample) for place in range(width)]
    names = _names(is_label, reads)
    return content if names is None else content.bare(names)


def _names(is_label: Sequence[bool], reads: Sequence[str]) -> list[str] | None:
    ends = ["target"] if len(is_label) > 1 and is_label[-1] else []
    texts = len(is_label) - len(ends)
    if any(is_label[:texts]) or ("target" in reads and not ends):
        return None
    if "text" in reads:
        return ["text", *ends] if texts == 1 and bool(ends) == ("target" in reads) else None
    return ["anchor", "positive", *negative_names(texts - 2), *ends] if texts >= 2 else None


def _is_label(cell: object) -> bool:
    word = str(cell).strip()
    return not math.isnan(number_of(word)) or word in UNLABELLED or word in NLI
