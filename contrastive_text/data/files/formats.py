"""The file formats: from bytes on disk to a header and records, each with its line for messages."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.text_files import (
    USUAL,
    Bounds,
    is_blank,
    naming_file,
    read_text,
)


class Cells(Protocol):
    """A cell for each name of a header, by the name's place."""

    def __getitem__(self, place: int, /) -> object: ...


Record: TypeAlias = tuple[int, Cells]
"""The line, and its cells."""


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, as far as the system lets one look."""
    with naming_file(path):
        return path.is_dir()


class Content(NamedTuple):
    """What a file holds, read record by record.

    Args:
        header: A name for each cell of a record.
        records: Begins anew with each call; None is a blank line, or an empty file of a folder.
        unread: Other files of a folder.
        known: Number of records, where it is known without reading them.
        identity: What tells them from others, where no file's bytes do.
    """

    header: list[str]
    records: Callable[[], Iterable[Record | None]]
    unread: int = 0
    known: int | None = None
    identity: str = ""


def documents(folder: Path, bounds: Bounds = USUAL) -> Content:
    """Returns each ``.txt`` file in a folder or below it as one text, by name; hidden ones are not read."""
    inside = _files_below(folder)
    names = [name for name in inside if re.search(r"\.txt(\.gz)?$", name, re.IGNORECASE)]
    names = sorted(name for name in names if not re.search(r"(^|/)\.", name))
    if not names:
        found = listed(map(short, sorted(inside)[:12])) or "no file"
        todo = "name its files, or write every document as a .txt file"
        raise reading_error(str(folder), "a folder with .txt files, a document each", found, todo)

    def records() -> Iterator[Record | None]:
        for number, name in enumerate(names, start=1):
            text = read_text(inside[name], bounds)
            yield None if is_blank(text) else (number, [text])

    return Content(["text"], records, unread=len(inside) - len(names))


def _files_below(folder: Path) -> dict[str, Path]:
    """Returns what is no folder below a folder by its name from there; what lies in hidden ones too.

    Raises:
        DiskError: A folder that can't be read and isn't hidden: nobody would miss its documents.
    """

    def unreadable(error: OSError) -> None:
        place = Path(error.filename)
        if place == folder or not re.search(r"(^|/)\.", place.relative_to(folder).as_posix()):
            with naming_file(place):
                raise error

    below = [Path(place, name) for place, _, names in os.walk(folder, onerror=unreadable) for name in names]
    return {path.relative_to(folder).as_posix(): path for path in below}


def _numbered(where: str, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yields lines without their ends, which are newlines alone: U+2028 and the like belong to a text."""
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        if "\r" in text:  # texts of several lines would be taken for one
            todo = "let lines end in newlines, or write .csv, whose quoted fields may hold it"
            expected = "lines that end in newlines"
            raise reading_error(f"{where}:{number}", expected, "a carriage return alone", todo)
        yield number, text


def _fields(where: str, lines: Iterable[str], separator: str | None) -> Iterator[tuple[int, list[str]]]:
    for number, text in _numbered(where, lines):
        yield number, [text] if separator is None else text.split(separator)


_RELEASE = "gold_label\t"
"""How the ``.txt`` files of SNLI and MultiNLI begin, which are tables."""


def read_txt(where: str, lines: Iterable[str], bounds: Bounds) -> Content:  # noqa: ARG001  # as all formats
    if next(iter(lines), "").startswith(_RELEASE):
        return _release(where, lines)
    return _table(where, lambda: chain([(0, ["text"])], _fields(where, lines, separator=None)))


def read_tsv(where: str, lines: Iterable[str], bounds: Bounds) -> Content:  # noqa: ARG001  # as all formats
    return _table(where, lambda: _fields(where, lines, separator="\t"))


def _release(where: str, lines: Iterable[str]) -> Content:
    """Returns a ``.txt`` file of SNLI or MultiNLI; a row may end before the labels of its last annotators."""

    def padded() -> Iterator[tuple[int, list[str]]]:
        rows = _fields(where, lines, separator="\t")
        first, names = next(rows)
        yield first, names
        needed = sum(re.fullmatch(r"label\d+", name) is None for name in names)
        for line, row in rows:
            yield line, row + [""] * (len(names) - len(row)) if len(row) >= needed else row

    return _table(where, padded)


def read_csv(where: str, lines: Iterable[str], bounds: Bounds) -> Content:  # noqa: ARG001  # as all formats
    def records() -> Iterator[tuple[int, list[str]]]:
        # A carriage return alone ends a record too, and here only.
        pieces = (piece for line in lines for piece in io.StringIO(line, newline=""))
        # Strict, or a quote that is never closed takes the rest of the file for one text.
        reader = csv.reader(pieces, strict=True)
        while True:
            start = reader.line_num + 1
            # The module's own limit, 131,072 characters a field, is less than a long document has.
            limit = csv.field_size_limit(2**31 - 1)
            try:
                fields = next(reader, None)
            except csv.Error as error:
                todo = 'write a quote inside a quoted text twice, or use .tsv, where a " is a character'
                got = f"a broken record ({error})"
                raise reading_error(f"{where}:{start}", "CSV", got, todo) from None
            finally:
                csv.field_size_limit(limit)
            if fields is None:
                return
            yield start, fields

    return _table(where, records)


def _table(where: str, lines: Callable[[], Iterator[tuple[int, list[str]]]]) -> Content:
    """Returns the records below a header, each with a field for each name."""
    _, header = next(lines(), (1, []))
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise reading_error(
            f"{where}:1", "every name once", f"{short(twice[0])} twice", "rename one of the columns"
        )

    def records() -> Iterator[Record | None]:
        for line, fields in islice(lines(), 1, None):
            if not any(map(str.strip, fields)):
                yield None
            elif len(fields) == len(header):
                yield line, fields
            else:
                expected = f"{counted(len(header), 'field')} ({listed(map(short, header))})"
                todo = "look for a separator too many or too few"
                raise reading_error(f"{where}:{line}", expected, str(len(fields)), todo)

    return Content(header, records)


def read_jsonl(where: str, lines: Iterable[str], bounds: Bounds) -> Content:
    """Returns one object a line; the header, with the names of all objects, is a first loop over the lines."""
    names = list(
        dict.fromkeys(key for found in _objects(where, lines, bounds.depth) if found for key in found[1])
    )

    def records() -> Iterator[Record | None]:
        for found in _objects(where, lines, bounds.depth):
            yield found and (found[0], ObjectCells(names, found[1]))

    return Content(names, records)


@dataclass(frozen=True, slots=True)
class ObjectCells:
    """The cells of an object, None for keys of others: a list of them would grow with the keys of all objects."""

    names: Sequence[str]
    values: Mapping[str, object]

    def __getitem__(self, place: int, /) -> object:
        return self.values.get(self.names[place])


def _objects(where: str, lines: Iterable[str], depth: int) -> Iterator[tuple[int, dict[str, object]] | None]:
    """Yields the object of each line with its number, None for a blank line."""
    for number, line in _numbered(where, lines):
        if not line.strip():
            yield None
            continue
        _check_depth(f"{where}:{number}", line, depth)
        try:
            value = json.loads(line, object_pairs_hook=_once_each)
            if "\\u" in line:
                # Half a surrogate pair is JSON but no text: it would fail later, where texts are hashed.
                json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            todo = "write one object a line"
            raise reading_error(f"{where}:{number}", "a JSON object", f"invalid JSON ({error})", todo) from None
        if not isinstance(value, dict):
            todo = 'write {"text": ...}, one a line'
            raise reading_error(f"{where}:{number}", "a JSON object", short(line), todo)
        yield number, value


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns an object; the parser alone keeps the last of equal keys, and says nothing of it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidValueError(f"the key {short(twice)} twice")
    return found


def _check_depth(where: str, line: str, bound: int) -> None:
    if line.count("[") + line.count("{") <= bound:
        return
    depth = deepest = 0
    for match in _BRACKETS.finditer(line):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        deepest = max(deepest, depth)
    if deepest > bound:
        expected = f"at most {bound:,} lists and objects within each other"
        raise reading_error(where, expected, f"{deepest:,}", "flatten them, or raise the bound `depth`")


_BRACKETS = re.compile(r'[][{}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?$)', re.DOTALL)
"""A bracket, or a string, whose brackets are text.

One that is never closed goes to the end: looked for from each of its quotes anew, it would take squared time."""


def listed(names: Iterable[str]) -> str:
    """Returns names as they stand in a message."""
    return ", ".join(names)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, ``1 row`` or ``2 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """Returns a name that fits into a message: a file without a header has whole texts as names."""
    return (text if len(text) <= 40 else f"{text[:37]}...") or '""'


def reading_error(where: str, expected: str, got: str, todo: str) -> ValueError:
    """Returns the error that says where, what was expected, what came and what to do."""
    return InvalidValueError(f"{where}: expected {expected}, got {got}; {todo}")
