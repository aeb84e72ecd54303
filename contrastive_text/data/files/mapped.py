"""Rows that exceed the memory: written once to an Arrow file, mapped by all processes, and sampled for counts."""

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
"""Largest number of records of a table that are kept in memory. Rows of larger tables are mapped."""
_FORMAT = 3
"""Version of the format of the mapped files. It is part of their key and changes with their meaning."""
_BATCH_ROWS = 8192
_CHUNK_BYTES = 1 << 22


class ArrowRows(Sequence[Row]):
    """Sequence of rows that are read from a mapped Arrow file on access. It is pickled as the name of its file.

    Reading a row takes about 5 µs. Processes of a machine share the pages of the file.

    Args:
        path: An ``.arrow`` file with batches of equal size, of which the last is smaller.
        names: Columns of a row. Hard negatives are read from one list; a row with fewer has empty texts.
        places: Indices of the rows in the file; None for all rows.
        seen: Size and modification time of the file when it was first opened; None to read them now.

    Raises:
        OSError: The file has changed since, or doesn't exist.
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
        # Columns of the file, without duplicates.
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
        batch, row = divmod(self.places[index], _BATCH_ROWS)
        return self._make_row([self._batches[batch].column(column)[row].as_py() for column in self._columns])

    def __iter__(self) -> Iterator[Row]:
        for cells in zip(*map(self.column, self._columns), strict=True):
            yield self._make_row(cells)

    def column(self, name: str) -> Iterator[Any]:  # Any: a text, a number or a list of negatives
        """Yields the cells of a column of the file, which takes a quarter of the time of reading rows."""
        for start in range(0, len(self), _BATCH_ROWS):
            self._check()
            places, count = self.places[start : start + _BATCH_ROWS], 0
            while count < len(places):
                batch, offset = divmod(places[count], _BATCH_ROWS)
                cells = self._batches[batch].column(name).slice(offset, len(places) - count)
                yield from cells.to_pylist()
                count += len(cells)

    def _make_row(self, cells: Sequence[Any]) -> Row:  # Any: as ``column``
        """Builds a row from the cells of the columns of the file."""
        row: dict[str, Any] = {}
        for column, cell in zip(self._columns, cells, strict=True):
            if column == "negative":
                row.update(zip(self._negatives, chain(cell or (), repeat("")), strict=False))
            else:
                row[column] = tuple(cell) if column == "scores" else cell
        return row

    def __reduce__(self) -> tuple[type[ArrowRows], tuple[object, ...]]:
        return ArrowRows, (self.path, self.names, self.places, self.seen)

    def _check(self) -> None:
        if _state(self.path) != self.seen:
            raise DiskError(
                f"{self.path}: expected unchanged mapped rows, got a file that has changed since the run began; "
                "start "
                "or resume the run: the file is written again"
            )


def _state(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise DiskError(
            f"{path}: expected mapped rows, found none ({error.strerror}); start the run again"
        ) from None
    return status.st_size, status.st_mtime_ns


def records_of(rows: FileRows) -> int:
    """Returns the number of records or lines of a source; 0 for a folder, a missing file or a small file."""
    content = rows.known_content()
    if content is not None:
        return content.record_count or 0
    path = rows.path
    assert isinstance(path, Path)
    if not path.is_file() or path.stat().st_size <= MAPPED_ROWS:
        return 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))


def hash_files(files: Sequence[FileRows], asked: object) -> str:
    """Returns a hash of the content of files and of the settings with which they are read."""
    digest = blake2b(repr((_FORMAT, asked)).encode(), digest_size=16)
    for rows in files:
        content = rows.known_content()
        # Only the file name, which messages have, is hashed, so that a moved file is found again.
        digest.update(f"\0{rows.path.name}\0{content.identity if content else ''}\0".encode())
        if isinstance(rows.path, Path) and not (content and content.identity):
            with rows.path.open("rb") as file:
                for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""):
                    digest.update(chunk)
    return digest.hexdigest()


class ReadFile(NamedTuple):
    """Summary of a file whose rows have been read.

    Args:
        names: Columns of its rows.
        description: Description of how it was read.
        sizes: Number of rows of each of its documents.
    """

    names: list[str]
    description: str
    sizes: list[int]


def write_rows(path: Path, files: Sequence[FileRows], total: int) -> tuple[list[ReadFile], str]:
    """Writes the rows of files to an ``.arrow`` file; memory holds one batch at a time.

    Args:
        path: The file to write.
        files: The files to read.
        total: Expected number of rows, for the progress bar.

    Returns:
        A summary of each file, and a digest of all rows.

    Raises:
        ValueError: A file that ``read_rows`` refuses, or that changed while it was read.
    """
    arrow = require("pyarrow", str(path))
    digest, summaries = blake2b(digest_size=16), list[ReadFile]()

    def cells() -> Iterator[dict[str, Any]]:  # Any: texts, lists of them, or numbers
        for rows in files:
            source = rows.path if isinstance(rows.path, Path) and rows.path.is_file() else None
            state_before = source and _state(source)
            sizes, names, document = list[int](), [""], None
            for _, row in track(rows, description="Mapping rows", total=total, transient=True):
                if document != rows.document:
                    document = rows.document
                    names = names if sizes else list(row)
                    sizes.append(0)
                sizes[-1] += 1
                columns: dict[str, Any] = {n: cell for n, cell in row.items() if not n.startswith("negative")}
                if "anchor" in row:  # later rows may have negatives
                    columns["negative"] = [text for name, text in row.items() if name.startswith("negative")]
                digest.update(repr(columns).encode())
                yield columns
            if source is not None and _state(source) != state_before:
                got = "one that changed while it was read"
                raise reading_error(str(source), "a file that stays", got, "read it again")
            summaries.append(ReadFile(names, rows.describe(sum(sizes)), sizes))

    row_iterator = cells()
    first_row = next(row_iterator)
    types = {
        "target": arrow.float64(),
        "scores": arrow.list_(arrow.float64()),
        "negative": arrow.list_(arrow.large_string()),
    }
    schema = arrow.schema([(name, types.get(name, arrow.large_string())) for name in first_row])
    with arrow.ipc.new_file(str(path), schema) as writer:
        row_iterator = chain([first_row], row_iterator)
        while block := list(islice(row_iterator, _BATCH_ROWS)):
            writer.write_batch(arrow.RecordBatch.from_pylist(block, schema=schema))
    return summaries, digest.hexdigest()


SAMPLE = 100_000
"""Number of rows that are sampled for counts from more rows than ``MAPPED_ROWS``."""


def sample_if_large(rows: Sequence[Row], seed: int) -> Sequence[Row]:
    """Returns all rows or, for more than ``MAPPED_ROWS``, a sample in order: one row of each part of equal size.

    Example:
        >>> sample_if_large([{"text": "a"}], seed=0)
        [{'text': 'a'}]
    """
    if len(rows) <= MAPPED_ROWS:
        return rows
    count = min(SAMPLE, len(rows))
    starts = np.arange(count + 1) * len(rows) // count
    return [rows[number] for number in generator(seed).integers(starts[:-1], starts[1:]).tolist()]


def count_repeats(rows: Sequence[Row], column: str) -> int:
    """Counts rows whose text in a column occurs in an earlier row.

    For many rows it compares 64-bit hashes of the texts, which take 8 bytes a row. Two of ten million texts have
    the same hash with a probability of 3 in a million.

    Example:
        >>> count_repeats([{"text": "a"}, {"text": "b"}, {"text": "a"}], "text")
        1
    """
    if len(rows) <= MAPPED_ROWS:
        return len(rows) - len({row[column] for row in rows})
    ids = np.fromiter(map(hash, _cells(rows, column)), np.int64, count=len(rows))
    ids.sort()
    return int(np.count_nonzero(ids[1:] == ids[:-1]))


def _cells(rows: Sequence[Row], column: str) -> Iterator[object]:
    return rows.column(column) if isinstance(rows, ArrowRows) else (row[column] for row in rows)
