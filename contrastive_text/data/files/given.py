"""Rows given from Python in place of a file: lists, DataFrames, data sets of ``datasets``."""

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
from contrastive_text.data.files.columns import negative_names
from contrastive_text.data.files.formats import Content, Record, counted, listed, short
from contrastive_text.data.files.frames import PREFIX, Frame, frame_columns, frame_rows, is_frame, plain_cell
from contrastive_text.data.files.parsing import SUFFIXES
from contrastive_text.data.files.tables import ObjectCells

if TYPE_CHECKING:
    Source: TypeAlias = str | Sequence[Any] | Frame  # Any: rows
else:
    # What a configuration can hold: rows come from Python alone. No argument in this module is annotated with it,
    # for there the parser would take what a type checker sees.
    Source = str | list[str]
GIVEN = "given:"
"""Prefix of the record of rows that were given from Python."""
PLACES = ("train", "validation", "test", "predict", "held_out", "files", "corpus")
"""Arguments of ``TextDataModule``, ``TextTask`` and ``Retrieval`` that name files or hold rows."""
_LOOKED_AT = 1000
"""Of a list of strings, to tell names of files from texts."""
_TODO = "give a list of texts, dicts or tuples, a DataFrame, or one split of a data set, such as data['train']"


class GivenRows(str):
    """The record of rows that were given from Python, and with it the rows.

    The record, ``given:KIND:ROWS:FINGERPRINT``, is what checkpoints and configurations keep in the place of a
    file's name; the fingerprint is of the content. Read from there it is a plain string, without rows.

    Attributes:
        kind: Type of what was given: ``list``, ``DataFrame``, ...
        rows: Their number.

    Example:
        >>> given = GivenRows.of(["a bird sings", "it rains"], "data.train")
        >>> str(given)[:13], given.kind, given.rows, given.content(["text"]).header
        ('given:list:2:', 'list', 2, ['text'])
    """

    _data: Any  # Any: whatever is accepted
    kind: str
    rows: int

    @classmethod
    def of(cls, data: Any, where: str) -> Self:  # Any: of any library
        """Takes rows.

        Args:
            data: A sequence of texts, dicts or tuples; a DataFrame, an Arrow table or a ``datasets.Dataset``.
            where: The option, for errors.

        Raises:
            TypeError: An iterator, which can't be read twice, a dict of columns or of splits, or no rows.
            ValueError: No row, rows of differing kinds, or a text that is none.
        """
        kind = type(data).__name__
        _check(data, kind, where)
        digest = blake2b(digest_size=8)
        for number, row in enumerate(_rows(data), 1):
            try:
                digest.update(json.dumps(row, ensure_ascii=False, default=str).encode())
            except (RecursionError, TypeError, ValueError) as error:
                raise InvalidValueError(
                    f"{where}: expected texts that UTF-8 can hold in row {number:,}, got {error}; mend or drop it"
                ) from None
        given = super().__new__(cls, f"{GIVEN}{kind}:{len(data)}:{digest.hexdigest()}")
        given._data, given.kind, given.rows = data, kind, len(data)
        return given

    @property
    def name(self) -> str:
        """Name of the rows in messages, such as ``list of 2 texts``."""
        first = None if is_frame(self._data) else self._data[0]
        noun = "text" if isinstance(first, str) else "dict" if isinstance(first, Mapping) else "tuple"
        return f"{self.kind} of {counted(self.rows, 'row' if first is None else noun)}"

    def content(self, reads: Sequence[str]) -> Content:
        """Returns header and records, as of a file; row n is line n, from 1.

        Args:
            reads: The library columns that are read, which name the places of tuples.

        Raises:
            ValueError: Texts where pairs are read, or tuples of more or fewer values than are read.
        """
        data = self._data
        named = not is_frame(data) and isinstance(data[0], Mapping)
        if is_frame(data):
            header = [str(name) for name in frame_columns(data)]
        elif named:
            header = list(dict.fromkeys(str(key) for row in data for key in row))
        elif isinstance(data[0], str) and set(reads) != {"text"}:
            raise InvalidValueError(
                f"{self.name}: expected {listed(reads)}, got texts alone; give dicts or tuples of these"
            )
        else:
            header = ["text"] if isinstance(data[0], str) else _places(len(data[0]), reads, self.name)

        def records() -> Iterator[Record]:
            for line, row in enumerate(_rows(data), 1):
                yield line, ObjectCells(header, row) if named else row

        return Content(header, records, known=self.rows, identity=str(self))


def is_unread(path: object) -> TypeGuard[str]:
    """Whether a name is the record of rows given from Python, without them."""
    return isinstance(path, str) and path.startswith(GIVEN) and not isinstance(path, GivenRows)


def missing_rows(where: str, record: str) -> ValueError:
    """Returns the error that the rows of a record have to be given again."""
    return InvalidValueError(
        f"{where}: expected the rows that were given from Python, got their record alone ({record}); give them "
        "again, for a file keeps their kind, number and fingerprint, and not the rows"
    )


_IN_MEMORY: ContextVar[Mapping[str, GivenRows] | None] = ContextVar("_IN_MEMORY", default=None)


@contextmanager
def in_memory_rows(given: object) -> Iterator[None]:
    """Makes in-memory rows available while a configuration that refers to them is instantiated."""
    token = _IN_MEMORY.set({str(rows): rows for _, rows in _sources("", given) if isinstance(rows, GivenRows)})
    try:
        yield
    finally:
        _IN_MEMORY.reset(token)


def _sources(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields names of files, rows and their records within lists, dicts and data classes, with their places."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _sources(place, each)
    elif isinstance(value, Mapping) or hasattr(value, "__dataclass_fields__"):
        for name, inside in (value if isinstance(value, Mapping) else vars(value)).items():
            yield from _sources(f"{place}.{name}", inside)
    else:
        yield place, value


def source(where: str, given: Any) -> Any:  # Any: names of files stay as they are, rows become GivenRows
    """Returns names of files as they are, and rows given from Python as ``GivenRows``.

    A list of strings has names of files where each looks like one: a known suffix, ``hub:``, or a single word.
    Else they are texts. A list of frames is one of several files.

    Raises:
        TypeError: Something that is neither.
        ValueError: Texts among names of files, or no row.
    """
    if given is None or isinstance(given, str):
        return (_IN_MEMORY.get() or {}).get(given, given) if is_unread(given) else given
    if isinstance(given, Path):
        raise InvalidTypeError(f"{where}: expected a name, got a Path; give str(path)")
    if not isinstance(given, list | tuple):
        return GivenRows.of(given, where)
    if not given or any(is_frame(each) or str(each)[: len(GIVEN)] == GIVEN for each in given[:_LOOKED_AT]):
        return [source(where, each) for each in given]
    names = [each for each in given[:_LOOKED_AT] if isinstance(each, str)]
    texts = [each for each in names if not _looks_like_a_file(each)]
    if len(names) == len(given) and not texts:
        return given
    if there := [name for name in names if _has_suffix(name) and os.path.isfile(name)]:
        text = f"the text {short(texts[0])!r}" if texts else "rows"
        raise InvalidValueError(
            f"{where}: expected names of files, or rows, got {there[0]} and {text}; name files alone, or give "
            'texts as {"text": ...}'
        )
    return GivenRows.of(given, where)


def given_sources(options: Mapping[str, Any]) -> dict[str, Any]:  # Any: arguments of the data
    """Returns arguments of ``TextDataModule`` with rows as ``GivenRows``, wherever files may be named."""
    return {name: source(f"data.{name}", value) if name in PLACES else value for name, value in options.items()}


def check_given(arguments: Mapping[str, Any]) -> None:  # Any: arguments of the data
    """Checks that no argument of the data is a record without its rows.

    Raises:
        ValueError: One is.
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
    """Checks that something has rows, at least one, all of one form."""
    framed = is_frame(data) and not isinstance(data, Mapping)
    if not framed and (
        not isinstance(data, Sequence) or isinstance(data, bytes | bytearray | memoryview | range)
    ):
        raise InvalidTypeError(
            f"{where}: expected names of files, or rows that can be read more than once, got a {kind}; {_TODO}"
        )
    if not len(data):
        raise InvalidValueError(f"{where}: expected at least one row, got an empty {kind}; {_TODO}")
    names = [str(name) for name in frame_columns(data)] if framed else []
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidValueError(
            f"{where}: expected every column once, got {short(twice)} twice; rename one of them"
        )
    for number, row in enumerate(() if framed else data, 1):
        if _form(row) is None or _form(row) != _form(data[0]):
            expected = "a text, a dict or a tuple" if number == 1 else f"{_described(data[0])} as in row 1"
            raise InvalidValueError(
                f"{where}: expected {expected} in row {number:,}, got {_described(row)}; give all rows one form"
            )


def _form(row: object) -> object:
    """Returns what all rows of a sequence share; None for what is no row."""
    if isinstance(row, list | tuple):
        return len(row) or None
    return str if isinstance(row, str) else dict if isinstance(row, Mapping) else None


def _described(row: object) -> str:
    return f"a {type(row).__name__}{f' of {len(row)}' if isinstance(row, list | tuple) else ''}"


def _places(length: int, reads: Sequence[str], where: str) -> list[str]:
    """Returns the library column of each place of a tuple, by what is read."""
    columns = [name for name in ("text", "anchor", "positive") if name in reads]
    ends = ["target"] if "target" in reads else []
    further = length - len(columns) - len(ends)
    if columns == ["text"] and not ends:
        return ["anchor", "positive", *negative_names(length - 2)][:length]
    if further < 0 or (further and "text" in reads):
        raise InvalidValueError(
            f"{where}: expected tuples of {listed([*columns, *ends])}, got {length} values each; give these, or "
            "dicts"
        )
    return [*columns, *negative_names(further), *ends]


def _rows(data: Any) -> Iterator[Any]:  # Any: of any library; cells by place or by name
    """Yields the cells of each row, as JSON has them."""
    if is_frame(data):
        yield from frame_rows(data)
    for row in () if is_frame(data) else data:
        if isinstance(row, Mapping):
            yield {str(name): plain_cell(cell) for name, cell in row.items()}
        else:
            yield (row,) if isinstance(row, str) else [plain_cell(cell) for cell in row]
