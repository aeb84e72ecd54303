"""Rows that exceed the memory: written once to an Arrow file, which all processes map, and sampled for counts."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from rich.progress import track

from contrastive_text.core.errors import DiskError
from contrastive_text.core.libraries import require
from contrastive_text.core.random import generator
from contrastive_text.core.types import Row
from contrastive_text.data.files.columns import negative_names
from contrastive_text.data.files.formats import reading_error
from contrastive_text.data.files.rows import FileRows

MAPPED_ROWS = 1_000_000
"""Records of a table above which its rows are mapped and not in memory."""
ROWS, SIZES, KNOWN = "rows.arrow", "sizes", "table.json"
_FORMAT = 2
"""Raised when the files mean something else than before."""
_BATCH = 8192
_CHUNK = 1 << 22


class ArrowRows(Sequence[Row]):
    """Rows by number, read from a mapped file when they are asked for; pickled it is the file's name.

    A row takes some 5 µs. Processes of a machine share the pages of the file, which are no memory of their own.

    Args:
        path: An ``.arrow`` file with batches of equal size, the last one smaller.
        names: The columns of a row; those of negatives are read from one list.
        places: Those of the rows; None for all.
        seen: Size and time of change of the file when it was first opened; None for now.

    Raises:
        OSError: The file changed since, or it is gone.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str],
        places: range | None = None,
        seen: tuple[int, int] | None = None,
    ) -> None:
        arrow = require("pyarrow", str(path))
        self.path = path
        self.names = tuple(names)
        self.seen = seen or _state(path)
        self._check()
        reader = arrow.ipc.open_file(arrow.memory_map(str(path)))
        self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        negatives = {name: number for number, name in enumerate(negative_names(len(names)))}
        self._columns = [
            ("negative" if name in negatives else name, negatives.get(name, -1)) for name in self.names
        ]
        self.places = range(sum(map(len, self._batches))) if places is None else places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> ArrowRows: ...

    def __getitem__(self, index: int | slice) -> Row | ArrowRows:
        if isinstance(index, slice):
            return ArrowRows(self.path, self.names, self.places[index], self.seen)
        self._check()
        batch, place = divmod(self.places[index], _BATCH)
        columns = {column for column, _ in self._columns}
        cells = {column: self._batches[batch].column(column)[place].as_py() for column in columns}
        return {
            name: cells[column] if number < 0 else _negative(cells[column], number)
            for name, (column, number) in zip(self.names, self._columns, strict=True)
        }

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), _BATCH):
            block = [self._block(column, start) for column, _ in self._columns]
            numbers = [number for _, number in self._columns]
            for cells in zip(*block, strict=True):
                yield {
                    name: cell if number < 0 else _negative(cell, number)
                    for name, cell, number in zip(self.names, cells, numbers, strict=True)
                }

    def column(self, name: str) -> Iterator[Any]:  # Any: a text or a number
        """Yields the cells of a column that isn't a negative, in a quarter of the time of all rows."""
        for start in range(0, len(self), _BATCH):
            yield from self._block(name, start)

    def _block(self, column: str, start: int) -> list[Any]:  # Any: as ``column``
        """Returns the cells of a batch of rows from here on."""
        self._check()
        places = self.places[start : start + _BATCH]
        if places.step != 1:
            return [self._batches[place // _BATCH].column(column)[place % _BATCH].as_py() for place in places]
        cells: list[Any] = []
        while len(cells) < len(places):
            batch, first = divmod(places.start + len(cells), _BATCH)
            cells += self._batches[batch].column(column).slice(first, len(places) - len(cells)).to_pylist()
        return cells

    def __reduce__(self) -> tuple[type[ArrowRows], tuple[object, ...]]:
        return ArrowRows, (self.path, self.names, self.places, self.seen)

    def _check(self) -> None:
        if _state(self.path) != self.seen:
            raise DiskError(
                f"{self.path}: expected mapped rows as they were when the run began, got a changed file; start "
                "or resume the run: it is made anew"
            )


def _negative(texts: Sequence[str] | None, number: int) -> str:
    """Returns a hard negative of a row, an empty text where the row has fewer."""
    return texts[number] if texts is not None and number < len(texts) else ""


def _state(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise DiskError(
            f"{path}: expected mapped rows, found none ({error.strerror}); start the run again"
        ) from None
    return found.st_size, found.st_mtime_ns


def records_of(rows: FileRows) -> int:
    """Returns how many records or lines a source has; 0 for a folder, and for a file that is small or missing."""
    content = rows.known_content()
    if content is not None:
        return content.known or 0
    path = rows.path
    assert isinstance(path, Path)
    if not path.is_file() or path.stat().st_size <= MAPPED_ROWS:
        return 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK), b""))


def can_map() -> bool:
    """Whether there is the library that maps rows."""
    return find_spec("pyarrow") is not None


def key_of(files: Sequence[FileRows], asked: object) -> str:
    """Returns what stands for the content of files and for all that is asked of it."""
    digest = blake2b(repr((_FORMAT, asked)).encode(), digest_size=16)
    for rows in files:
        content = rows.known_content()
        # The name alone, which messages have: the same file in another folder is found again.
        digest.update(f"\0{rows.path.name}\0{content.identity if content else ''}\0".encode())
        if isinstance(rows.path, Path) and not (content and content.identity):
            with rows.path.open("rb") as file:
                for chunk in iter(lambda: file.read(_CHUNK), b""):
                    digest.update(chunk)
    return digest.hexdigest()


class Written(NamedTuple):
    """What is known of a file whose rows have been written.

    Args:
        names: The columns of its rows.
        understood: How it was understood.
        sizes: Rows of each of its documents.
    """

    names: list[str]
    understood: str
    sizes: list[int]


class RowWriter:
    """Writes rows into an ``.arrow`` file as they come; memory holds a batch of them.

    Args:
        path: The file.
        total: Rows that are expected, for the progress bar.
    """

    def __init__(self, path: Path, total: int) -> None:
        self._path = path
        self._total = total
        self._block: dict[str, list[Any]] = {}  # Any: texts, lists of them, or numbers
        self._writer: Any = None  # Any: pyarrow's
        self._schema: Any = None
        self._digest = blake2b(digest_size=16)

    def file(self, rows: FileRows) -> Written:
        """Writes the rows of a file after those that are there.

        Raises:
            ValueError: What ``read_rows`` refuses, or a file that changed meanwhile.
        """
        path = rows.path if isinstance(rows.path, Path) and rows.path.is_file() else None
        before = None if path is None else _state(path)
        sizes: list[int] = []
        names, document = [""], None
        for _, row in track(rows, description="Mapping rows", total=self._total, transient=True):
            if document != rows.document:
                document = rows.document
                names = names if sizes else list(row)
                sizes.append(0)
            sizes[-1] += 1
            self._add(row)
        if path is not None and _state(path) != before:
            got = "one that changed while it was read"
            raise reading_error(str(path), "a file that stays", got, "read it again")
        return Written(names, rows.understood(sum(sizes)), sizes)

    def end(self) -> str:
        """Writes what is left, and returns a digest of all rows."""
        self._flush()
        self._writer.close()
        return self._digest.hexdigest()

    def _add(self, row: Mapping[str, str | float]) -> None:
        negatives = [text for name, text in row.items() if name.startswith("negative")]
        cells: dict[str, Any] = {name: cell for name, cell in row.items() if not name.startswith("negative")}
        if negatives:
            cells["negative"] = negatives
        self._digest.update(repr(cells).encode())
        if "anchor" in cells:  # later rows may have negatives
            cells["negative"] = negatives
        if not self._block:
            self._block = {name: [] for name in cells}
        for name, column in self._block.items():
            column.append(cells.get(name))
        if len(column) == _BATCH:
            self._flush()

    def _flush(self) -> None:
        arrow = require("pyarrow", str(self._path))
        if self._writer is None:
            kinds = {"target": arrow.float64(), "negative": arrow.list_(arrow.large_string())}
            self._schema = arrow.schema([(name, kinds.get(name, arrow.large_string())) for name in self._block])
            self._writer = arrow.ipc.new_file(str(self._path), self._schema)
        if any(self._block.values()):
            columns = list(self._block.values())
            self._writer.write_batch(arrow.record_batch(columns, schema=self._schema))
        for column in self._block.values():
            column.clear()


SAMPLE = 100_000
"""Rows that stand for more of them than ``MAPPED_ROWS``."""


def sampled(rows: Sequence[Row], seed: int) -> Sequence[Row]:
    """Returns rows, or of more than ``MAPPED_ROWS`` a sample in their order, one of each part of equal size.

    Example:
        >>> sampled([{"text": "a"}], seed=0)
        [{'text': 'a'}]
    """
    if len(rows) <= MAPPED_ROWS:
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
    if len(rows) <= MAPPED_ROWS:
        return len(rows) - len({row[column] for row in rows})
    ids = np.fromiter(map(hash, _cells(rows, column)), np.int64, count=len(rows))
    ids.sort()
    return int(np.count_nonzero(ids[1:] == ids[:-1]))


def _cells(rows: Sequence[Row], column: str) -> Iterator[object]:
    return rows.column(column) if isinstance(rows, ArrowRows) else (row[column] for row in rows)
