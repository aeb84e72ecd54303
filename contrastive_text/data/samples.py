"""What is counted of rows before the first step: of all of them, or of a sample where they are mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from contrastive_text.core.random import generator
from contrastive_text.core.types import Row
from contrastive_text.data.files import mapped

SAMPLE = 100_000
"""Rows that stand for more of them than ``MAPPED_ROWS``."""


def sampled(rows: Sequence[Row], seed: int) -> Sequence[Row]:
    """Returns rows, or of more than ``MAPPED_ROWS`` a sample in their order, one of each part of equal size.

    Example:
        >>> sampled([{"text": "a"}], seed=0)
        [{'text': 'a'}]
    """
    if len(rows) <= mapped.MAPPED_ROWS:
        return rows
    count = min(SAMPLE, len(rows))
    starts = np.arange(count + 1) * len(rows) // count
    return [rows[number] for number in generator(seed).integers(starts[:-1], starts[1:]).tolist()]


def repeats(rows: Sequence[Row], column: str) -> int:
    """Returns how many rows repeat the text that another has in a column.

    Of many rows it compares 64 bits of each text, in 8 bytes a row: two of ten million texts are taken for one
    with a probability of 3 in a million.

    Example:
        >>> repeats([{"text": "a"}, {"text": "b"}, {"text": "a"}], "text")
        1
    """
    if len(rows) <= mapped.MAPPED_ROWS:
        return len(rows) - len({row[column] for row in rows})
    ids = np.fromiter(map(hash, _cells(rows, column)), np.int64, count=len(rows))
    ids.sort()
    return int(np.count_nonzero(ids[1:] == ids[:-1]))


def _cells(rows: Sequence[Row], column: str) -> Iterator[object]:
    return rows.column(column) if isinstance(rows, mapped.ArrowRows) else (row[column] for row in rows)
