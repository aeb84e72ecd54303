"""Rows that exceed the memory: written once to an Arrow file, which all processes map, and sampled for counts."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain, islice, repeat
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
_FORMAT = 3
"""Raised when the files mean something else than before."""
_BATCH = 8192
_CHUNK = 1 << 22


class ArrowRows(Sequence[Row]):
    """Rows by number, read from a mapped file when they are used; pickled it is the file's name.

    A row takes some 5 µs. Processes of a machine share the pages of the file, which are no memory of their own.

    Args:
        path: An ``.arrow`` file with batches of equal size, the last one smaller.
        names: The columns of a row. Hard negatives are read from one list; a row with fewer has empty texts.
        places: Places of the rows in the file; None for all.
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
        self._negatives = [name for name in negative_names(len(names)) if name in self.names]
        # The columns of the file, each once.
        self._columns = tuple(dict.fromkeys("negative" if n in self._negatives else n for n in self.names))
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
        return self._row([self._batches[batch].column(column)[place].as_py() for column in self._columns])

    def __iter__(self) -> Iterator[Row]:
        for cells in zip(*map(self.column, self._columns), strict=True):
            yield self._row(cells)

    def column(self, name: str) -> Iterator[Any]:  # Any: a text, a number or a list of negatives
        """Yields the cells of a column of the file, in a quarter of the time of all rows."""
        for start in range(0, len(self), _BATCH):
            self._check()
            places, read = self.places[start : start + _BATCH], 0
            while read < len(places):
                batch, first = divmod(places[read], _BATCH)
                cells = self._batches[batch].column(name).slice(first, len(places) - read)
                yield from cells.to_pylist()
                read += len(cells)

    def _row(self, cells: Sequence[Any]) -> Row:  # Any: as ``column``
        """Returns a row from the cells of the columns of the file."""
        row: dict[str, Any] = {}
        for column, cell in zip(self._columns, cells, strict=True):
            if column == "negative":
                row.update(zip(self._negatives, chain(cell or (), repeat("")), strict=False))
            else:
                row[column] = cell
        return row

    def __reduce__(self) -> tuple[type[ArrowRows], tuple[object, ...]]:
        return ArrowRows, (self.path, self.names, self.places, self.seen)

    def _check(self) -> None:
        if _state(self.path) != self.seen:
            raise DiskError(
                f"{self.path}: expected mapped rows as they were when the run began, got a changed file; start "
                "or resume the run: the file is written again"
            )


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


class ReadFile(NamedTuple):
    """Summary of a file whose rows have been read.

    Args:
        names: The columns of its rows.
        understood: How it was understood.
        sizes: Rows of each of its documents.
    """

    names: list[str]
    understood: str
    sizes: list[int]


def write_rows(path: Path, files: Sequence[FileRows], total: int) -> tuple[list[ReadFile], str]:
    """Writes the rows of files into an ``.arrow`` file; memory holds a batch of them.

    Args:
        path: The file to write.
        files: The files to read.
        total: Expected number of rows, for the progress bar.

    Returns:
        A summary of each file, and a digest of all rows.

    Raises:
        ValueError: A file that ``read_rows`` refuses, or that changed meanwhile.
    """
    arrow = require("pyarrow", str(path))
    digest, read = blake2b(digest_size=16), list[ReadFile]()

    def cells() -> Iterator[dict[str, Any]]:  # Any: texts, lists of them, or numbers
        for rows in files:
            source = rows.path if isinstance(rows.path, Path) and rows.path.is_file() else None
            before = source and _state(source)
            sizes, names, document = list[int](), [""], None
            for _, row in track(rows, description="Mapping rows", total=total, transient=True):
                if document != rows.document:
                    document = rows.document
                    names = names if sizes else list(row)
                    sizes.append(0)
                sizes[-1] += 1
                each: dict[str, Any] = {n: cell for n, cell in row.items() if not n.startswith("negative")}
                if "anchor" in row:  # later rows may have negatives
                    each["negative"] = [text for name, text in row.items() if name.startswith("negative")]
                digest.update(repr(each).encode())
                yield each
            if source is not None and _state(source) != before:
                got = "one that changed while it was read"
                raise reading_error(str(source), "a file that stays", got, "read it again")
            read.append(ReadFile(names, rows.understood(sum(sizes)), sizes))

    left = cells()
    first = next(left)
    kinds = {"target": arrow.float64(), "negative": arrow.list_(arrow.large_string())}
    schema = arrow.schema([(name, kinds.get(name, arrow.large_string())) for name in first])
    with arrow.ipc.new_file(str(path), schema) as writer:
        left = chain([first], left)
        while block := list(islice(left, _BATCH)):
            writer.write_batch(arrow.RecordBatch.from_pylist(block, schema=schema))
    return read, digest.hexdigest()


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
