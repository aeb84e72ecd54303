"""Rows passed from Python in place of a file: lists, DataFrames and data sets of ``datasets``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeGuard

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.data.files.formats import Content, Record, count_noun, join_names, negative_names, short
from contrastive_text.data.files.parsing import (
    PREFIX,
    SUFFIXES,
    ColumnTable,
    frame_columns,
    frame_rows,
    is_frame,
    plain_cell,
)
from contrastive_text.data.files.tables import ObjectCells

if TYPE_CHECKING:
    Source: TypeAlias = str | Sequence[Any] | ColumnTable  # Any: rows
else:
    # Type in configurations, because rows come only from Python. No argument in this module is annotated with it:
    # the parser would use the type above, which is for type checkers.
    Source = str | list[str]
GIVEN = "given:"
"""Prefix of the record of rows that came from Python."""
PLACES = ("train", "validation", "test", "predict", "held_out", "files", "corpus")
"""Arguments of ``TextDataModule``, ``TextTask`` and ``Retrieval`` that take names of files or rows."""
_CHECKED_STRINGS = 1000
"""Number of strings of a list that are checked to tell names of files from texts."""
_TODO = "give a list of texts, dicts or tuples, a DataFrame, or one split of a data set, such as data['train']"


class InMemoryRows(str):
    """Record of rows that came from Python, together with the rows.

    The record ``given:KIND:ROWS:FINGERPRINT`` is stored in checkpoints and configurations in place of a file's
    name. The fingerprint is a hash of the content. A record that is read back is a plain string without rows.

    Attributes:
        kind: Type of the object: ``list``, ``DataFrame``, ...
        rows: Number of rows.

    Example:
        >>> given = InMemoryRows.of(["a bird sings", "it rains"], "data.train")
        >>> str(given)[:13], given.kind, given.rows, given.content(["text"]).header
        ('given:list:2:', 'list', 2, ['text'])
    """

    _data: Any  # Any: any accepted type
    kind: str
    rows: int

    @classmethod
    def of(cls, data: Any, where: str) -> Self:  # Any: of any library
        """Wraps rows that were passed from Python, after checking them.

        Args:
            data: A sequence of texts, dicts or tuples; a DataFrame, an Arrow table or a ``datasets.Dataset``.
            where: Name of the option, for errors.

        Raises:
            TypeError: An iterator, which can't be read twice, a dict of columns or of splits, or an object
                without rows.
            ValueError: No row, rows of different types, or a text that UTF-8 can't encode.
        """
        kind = type(data).__name__
        _check(data, kind, where)
        digest = blake2b(digest_size=8)
        for number, row in enumerate(_rows(data), 1):
            try:
                digest.update(json.dumps(row, ensure_ascii=False, default=str).encode())
            except (RecursionError, TypeError, ValueError) as error:
                raise InvalidValueError(
                    f"{where}: expected texts that UTF-8 can hold in row {number:,}, got {error}; correct or "
                    "remove the row"
                ) from None
        record = super().__new__(cls, f"{GIVEN}{kind}:{len(data)}:{digest.hexdigest()}")
        record._data, record.kind, record.rows = data, kind, len(data)
        return record

    @property
    def name(self) -> str:
        """Name of the rows in messages, such as ``list of 2 texts``."""
        first = None if is_frame(self._data) else self._data[0]
        noun = "text" if isinstance(first, str) else "dict" if isinstance(first, Mapping) else "tuple"
        return f"{self.kind} of {count_noun(self.rows, 'row' if first is None else noun)}"

    def content(self, reads: Sequence[str]) -> Content:
        """Returns header and records of rows from Python, like those of a file; row n is line n, from 1.

        Args:
            reads: Library columns to read, which name the values of tuples.

        Raises:
            ValueError: Texts although pairs are read, or tuples with another number of values.
        """
        data = self._data
        has_names = not is_frame(data) and isinstance(data[0], Mapping)
        if is_frame(data):
            header = [str(name) for name in frame_columns(data)]
        elif has_names:
            header = list(dict.fromkeys(str(key) for row in data for key in row))
        elif isinstance(data[0], str) and set(reads) != {"text"}:
            raise InvalidValueError(
                f"{self.name}: expected {join_names(reads)}, got texts alone; give dicts or tuples of these"
            )
        else:
            header = ["text"] if isinstance(data[0], str) else _places(len(data[0]), reads, self.name)

        def records() -> Iterator[Record]:
            for line, row in enumerate(_rows(data), 1):
                yield line, ObjectCells(header, row) if has_names else row

        return Content(header, records, record_count=self.rows, identity=str(self))


def is_unread(path: object) -> TypeGuard[str]:
    """Returns whether a name is the record of rows from Python, without the rows."""
    return isinstance(path, str) and path.startswith(GIVEN) and not isinstance(path, InMemoryRows)


def missing_rows(where: str, record: str) -> ValueError:
    """Returns an error that asks for the rows of a record again, because a configuration doesn't store them."""
    return InvalidValueError(
        f"{where}: expected the rows that were given from Python, got their record alone ({record}); give them "
        "again, for a file keeps their kind, number and fingerprint, and not the rows"
    )


_IN_MEMORY: ContextVar[Mapping[str, InMemoryRows] | None] = ContextVar("_IN_MEMORY", default=None)


@contextmanager
def in_memory_rows(given: object) -> Iterator[None]:
    """Makes in-memory rows available inside the block, while a configuration that names them is instantiated."""
    token = _IN_MEMORY.set({str(rows): rows for _, rows in _sources("", given) if isinstance(rows, InMemoryRows)})
    try:
        yield
    finally:
        _IN_MEMORY.reset(token)


def _sources(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields names of files, rows and records in nested lists, dicts and dataclasses, with their places."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _sources(place, item)
    elif isinstance(value, Mapping) or hasattr(value, "__dataclass_fields__"):
        for name, field in (value if isinstance(value, Mapping) else vars(value)).items():
            yield from _sources(f"{place}.{name}", field)
    else:
        yield place, value


def wrap_rows(where: str, given: Any) -> Any:  # Any: names of files, or rows of any library
    """Converts rows from Python to ``InMemoryRows``, and returns names of files unchanged.

    A list of strings holds names of files if each looks like a name: a known suffix, ``hub:``, or a single word.
    Otherwise they are texts. A list of tables is treated like several files.

    Raises:
        TypeError: A value that is neither.
        ValueError: Texts among names of files, or no row.
    """
    if given is None or isinstance(given, str):
        return (_IN_MEMORY.get() or {}).get(given, given) if is_unread(given) else given
    if isinstance(given, Path):
        raise InvalidTypeError(f"{where}: expected a name, got a Path; give str(path)")
    if not isinstance(given, list | tuple):
        return InMemoryRows.of(given, where)
    if not given or any(is_frame(item) or str(item)[: len(GIVEN)] == GIVEN for item in given[:_CHECKED_STRINGS]):
        return [wrap_rows(where, item) for item in given]
    names = [item for item in given[:_CHECKED_STRINGS] if isinstance(item, str)]
    texts = [item for item in names if not _looks_like_a_file(item)]
    if len(names) == len(given) and not texts:
        return given
    if existing_files := [name for name in names if _has_suffix(name) and os.path.isfile(name)]:
        text = f"the text {short(texts[0])!r}" if texts else "rows"
        raise InvalidValueError(
            f"{where}: expected names of files, or rows, got {existing_files[0]} and {text}; name only "
            'files, or give texts as {"text": ...}'
        )
    return InMemoryRows.of(given, where)


def given_sources(options: Mapping[str, Any]) -> dict[str, Any]:  # Any: arguments of the data
    """Converts rows in arguments of ``TextDataModule`` to ``InMemoryRows``, in all arguments that may name
    files."""
    return {
        name: wrap_rows(f"data.{name}", value) if name in PLACES else value for name, value in options.items()
    }


def check_given(arguments: Mapping[str, Any]) -> None:  # Any: arguments of the data
    """Checks that no argument of the data module is a record without its rows.

    Raises:
        ValueError: An argument is a record without rows.
    """
    for name in (*PLACES, "tasks", "task", "retrieval"):
        for place, value in _sources(f"data.{name}", arguments.get(name)):
            if is_unread(value):
                raise missing_rows(place, value)


def _looks_like_a_file(text: str) -> bool:
    return (
        _has_suffix(text) or text.startswith(PREFIX) or re.fullmatch(r"[\w./\\~:+-]+", text, re.ASCII) is not None
    )


def _has_suffix(text: str) -> bool:
    return len(text) < 4096 and text.lower().removesuffix(".gz").endswith(SUFFIXES)


def _check(data: Any, kind: str, where: str) -> None:  # Any: of any library
    """Checks that an object has at least one row, and that all rows have one form."""
    is_table = is_frame(data) and not isinstance(data, Mapping)
    if not is_table and (
        not isinstance(data, Sequence) or isinstance(data, bytes | bytearray | memoryview | range)
    ):
        raise InvalidTypeError(
            f"{where}: expected names of files, or rows that can be read more than once, got a {kind}; {_TODO}"
        )
    if not len(data):
        raise InvalidValueError(f"{where}: expected at least one row, got an empty {kind}; {_TODO}")
    names = [str(name) for name in frame_columns(data)] if is_table else []
    if len(set(names)) < len(names):
        repeated = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidValueError(
            f"{where}: expected every column once, got {short(repeated)} twice; rename one of them"
        )
    for number, row in enumerate(() if is_table else data, 1):
        if _form(row) is None or _form(row) != _form(data[0]):
            expected = "a text, a dict or a tuple" if number == 1 else f"{_describe(data[0])} as in row 1"
            raise InvalidValueError(
                f"{where}: expected {expected} in row {number:,}, got {_describe(row)}; give all rows one form"
            )


def _form(row: object) -> object:
    """Returns the form that all rows must share: a type, or the length of a tuple; None for an invalid row."""
    if isinstance(row, list | tuple):
        return len(row) or None
    return str if isinstance(row, str) else dict if isinstance(row, Mapping) else None


def _describe(row: object) -> str:
    return f"a {type(row).__name__}{f' of {len(row)}' if isinstance(row, list | tuple) else ''}"


def _places(length: int, reads: Sequence[str], where: str) -> list[str]:
    """Returns the column names (anchor, positive, ...) of the values of a training row that is a tuple."""
    columns = [name for name in ("text", "anchor", "positive") if name in reads]
    target_names = [name for name in ("target", "scores") if name in reads]
    negative_count = length - len(columns) - len(target_names)
    if columns == ["text"] and not target_names:
        return ["anchor", "positive", *negative_names(length - 2)][:length]
    if negative_count < 0 or (negative_count and "text" in reads):
        raise InvalidValueError(
            f"{where}: expected tuples of {join_names([*columns, *target_names])}, got {length} values each; "
            "give these, or dicts"
        )
    return [*columns, *negative_names(negative_count), *target_names]


def _rows(data: Any) -> Iterator[Any]:  # Any: of any library; cells by index or by name
    """Yields the cells of each row, converted to values of JSON."""
    if is_frame(data):
        yield from frame_rows(data)
    for row in () if is_frame(data) else data:
        if isinstance(row, Mapping):
            yield {str(name): plain_cell(cell) for name, cell in row.items()}
        else:
            yield (row,) if isinstance(row, str) else [plain_cell(cell) for cell in row]
