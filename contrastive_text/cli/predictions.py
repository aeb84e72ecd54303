"""What a task's objective predicts, as a table of texts and answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from contrastive_text.core.disk import replacing
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.types import Row


def write_predictions(path: Path, rows: Sequence[Row], scores: Tensor, target: Target) -> int:
    """Writes a line for each row: its texts as they were read, ``prediction``, and ``probability`` of a class.

    A tab or a newline in a text, which would break the table, becomes a blank.

    Args:
        path: A ``.tsv`` file; its folder is made.
        rows: The rows in file order.
        scores: What the objective predicts of them, (N, classes) or (N,).
        target: Gives predictions their names.

    Returns:
        In how many rows a text was changed for the table.
    """
    words = target.write(scores)
    columns = [*rows[0], "prediction"]
    cells = [[*map(str, row.values()), word] for row, word in zip(rows, words, strict=True)]
    if isinstance(target, Classes):
        columns.append("probability")
        highest = scores.float().softmax(dim=1).amax(dim=1)
        cells = [[*row, f"{float(share):.6f}"] for row, share in zip(cells, highest, strict=True)]
    plain = [[re.sub(r"[\t\r\n]", " ", cell) for cell in row] for row in cells]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(row) for row in [columns, *plain]]
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return sum(before != after for before, after in zip(cells, plain, strict=True))
