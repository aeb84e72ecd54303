"""Every text of a data set as it is written, and the line that one stands on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from contrastive_text.core.types import Row
from contrastive_text.data.files.forms import FileForm
from contrastive_text.data.files.given import GIVEN, GivenRows
from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.rows import FileRows
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.tasks import SPLITS, option_place

_BLOCK = 8192


def text_blocks(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yields all texts of rows, those of some thousand rows at a time, mapped or not.

    Example:
        >>> list(text_blocks([{"anchor": "a", "positive": "b", "subset": "news", "target": 1.0}]))
        [['a', 'b']]
    """
    left = iter(rows)
    while block := list(islice(left, _BLOCK)):
        yield [cell for row in block for name, cell in row.items() if isinstance(cell, str) and name != "subset"]


def line_of(text: str, data: TrainingData) -> str:
    """Returns the file of a data set, and the line, on which a text stands first, as trained on; reads it again.

    Where it is on none, as where a pairing makes texts of its own, the name of the data set.
    """
    task = data.task
    clean = task.clean or str
    reads = [column for column in data.pairing.reads if column != "target"]
    columns = {name: [of] if isinstance(of, str) else list(of) for name, of in (task.columns or {}).items()}
    columns = {name: of for name, of in columns.items() if name != "target"}
    files = [(part, file) for part in ("train", "held_out") for file in task.files(part)]
    for part, file in files:
        if not isinstance(file, GivenRows) and file.startswith(GIVEN):
            continue  # the record of rows that aren't here
        source = file if isinstance(file, GivenRows) else Path(file)
        form = FileForm(task.header, task.separator, "all")
        for line, row in FileRows(source, reads, columns, Labels(None), SPLITS[part], form=form):
            if any(isinstance(cell, str) and clean(cell) == text for cell in row.values()):
                return f"{source.name if isinstance(source, GivenRows) else file}:{line}"
    return option_place(data.name)
