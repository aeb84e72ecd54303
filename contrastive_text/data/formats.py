"""The file formats: from bytes on disk to a header and records, each with its line for messages."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias, cast

from contrastive_text.core.errors import InvalidValueError, MissingFileError


class Cells(Protocol):
    """A cell for each name of a header, by the name's place."""

    def __getitem__(self, place: int, /) -> object: ...


Record: TypeAlias = tuple[int, Cells]
"""The line, and its cells."""


def suffix_of(path: Path) -> str:
    """Gives the suffix that names the format of a file, which is there and not a folder."""
    if path.is_dir():
        inside = listed(sorted(short(p.name) for p in path.iterdir())[:12]) or "none"
        raise reading_error(str(path), "a file", "a folder", f"name its files ({inside})")
    if not path.exists():
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = listed(difflib.get_close_matches(path.name, names))
        todo = f"did you mean {near}?" if near else f"look into {path.parent.resolve()}"
        raise MissingFileError(f"{path}: expected a file, got nothing there; {todo}")
    suffix = Path(path.stem if _packed(path) else path.name).suffix.lower()
    if suffix not in FORMATS:
        expected = f"a name that ends in {listed(FORMATS)}, or in one of these and .gz"
        raise reading_error(str(path), expected, repr(suffix), "write it in one of these formats")
    return suffix


def _packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def decode(path: Path) -> tuple[str, str]:
    """Gives the text of a file, unpacked, and the suffix that names its format."""
    suffix = suffix_of(path)
    return "".join(decoded_lines(path)), suffix


def decoded_lines(path: Path) -> Iterator[str]:
    """Gives the lines of a file, unpacked, each with its newline; memory holds one of them."""
    # gzip's own type is no BinaryIO, but is read like one.
    with cast("BinaryIO", gzip.open(path)) if _packed(path) else path.open("rb") as file:
        number = 0
        try:
            for number, line in enumerate(file, start=1):
                yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode("utf-8")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise reading_error(
                str(path), "a whole gzip file", f"a broken one ({error})", "fetch it again"
            ) from None
        except UnicodeDecodeError as error:
            got = f"the byte 0x{error.object[error.start]:02x}"
            raise reading_error(f"{path}:{number}", "UTF-8", got, "save the file as UTF-8") from None


class Parsed(NamedTuple):
    header: list[str]
    records: Iterator[Record | None]  # read as they are asked for; None is a blank line, or an empty file
    unread: int = 0  # other files of a folder


class Content(NamedTuple):
    header: list[str]
    records: Sequence[Record]
    blank: int  # blank lines, or empty files of a folder
    unread: int = 0  # other files of a folder


def whole(parsed: Parsed) -> Content:
    """Reads to the end, into memory."""
    found = list(parsed.records)
    records = [record for record in found if record is not None]
    return Content(parsed.header, records, blank=len(found) - len(records), unread=parsed.unread)


def documents(folder: Path) -> Parsed:
    """Gives each ``.txt`` file in a folder or below it as one text, by name; hidden ones are not read."""
    inside = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    names = [name for name in inside if re.search(r"\.txt(\.gz)?$", name, re.IGNORECASE)]
    names = sorted(name for name in names if not re.search(r"(^|/)\.", name))
    if not names:
        found = listed(map(short, sorted(inside)[:12])) or "no file"
        todo = "name its files, or write every document as a .txt file"
        raise reading_error(str(folder), "a folder with .txt files, a document each", found, todo)
    texts = (decode(inside[name])[0] for name in names)
    records = ((number, [text]) if text.strip() else None for number, text in enumerate(texts, start=1))
    return Parsed(["text"], records, unread=len(inside) - len(names))


def _fields(lines: Iterable[str], separator: str | None) -> Iterator[tuple[int, list[str]]]:
    """Splits lines, which end at newlines alone: U+2028 and the like belong to a text."""
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        yield number, [text] if separator is None else text.split(separator)


_RELEASE = "gold_label\t"
"""How the ``.txt`` files of SNLI and MultiNLI begin, which are tables."""


def _txt(where: str, lines: Iterable[str]) -> Parsed:
    lines = iter(lines)
    first = [line for line in [next(lines, None)] if line is not None]
    lines = chain(first, lines)
    if first and first[0].startswith(_RELEASE):
        return _release(where, lines)
    return _table(where, chain([(0, ["text"])], _fields(lines, separator=None)))


def _tsv(where: str, lines: Iterable[str]) -> Parsed:
    return _table(where, _fields(lines, separator="\t"))


def _release(where: str, lines: Iterable[str]) -> Parsed:
    """Gives a ``.txt`` file of SNLI or MultiNLI; a row may end before the labels of its last annotators."""
    rows = _fields(lines, separator="\t")
    first, names = next(rows)
    needed = sum(re.fullmatch(r"label\d+", name) is None for name in names)
    padded = ((line, row + [""] * (len(names) - len(row)) if len(row) >= needed else row) for line, row in rows)
    return _table(where, chain([(first, names)], padded))


def _csv(where: str, lines: Iterable[str]) -> Parsed:
    # A carriage return alone ends a record too, and here only.
    pieces = (piece for line in lines for piece in io.StringIO(line, newline=""))
    # Strict, or a quote that is never closed takes the rest of the file for one text.
    reader = csv.reader(pieces, strict=True)

    def records() -> Iterator[tuple[int, list[str]]]:
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

    return _table(where, records())


def _table(where: str, lines: Iterator[tuple[int, list[str]]]) -> Parsed:
    """Gives the records below a header, each with a field for each name."""
    _, header = next(lines, (1, []))
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise reading_error(
            f"{where}:1", "every name once", f"{short(twice[0])} twice", "rename one of the columns"
        )

    def records() -> Iterator[Record | None]:
        for line, fields in lines:
            if not any(map(str.strip, fields)):
                yield None
            elif len(fields) == len(header):
                yield line, fields
            else:
                expected = f"{counted(len(header), 'field')} ({listed(map(short, header))})"
                todo = "look for a separator too many or too few"
                raise reading_error(f"{where}:{line}", expected, str(len(fields)), todo)

    return Parsed(header, records())


def _jsonl(where: str, lines: Iterable[str]) -> Parsed:
    """Gives one object a line; the header, which has the names of all objects, is a first loop over the lines."""
    names = list(dict.fromkeys(key for found in _objects(where, lines) if found for key in found[1]))

    def records() -> Iterator[Record | None]:
        for found in _objects(where, lines):
            yield found and (found[0], _ObjectCells(names, found[1]))

    return Parsed(names, records())


@dataclass(frozen=True, slots=True)
class _ObjectCells:
    """The cells of an object, None for keys of others: a list of them would grow with the keys of all objects."""

    names: Sequence[str]
    values: Mapping[str, object]

    def __getitem__(self, place: int, /) -> object:
        return self.values.get(self.names[place])


def _objects(where: str, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, object]] | None]:
    """Gives the object of each line with its number, None for a blank line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield None
            continue
        line = line.removesuffix("\n").removesuffix("\r")
        try:
            value = json.loads(line)
            if "\\u" in line:
                # Half a surrogate pair is JSON but no text: it would fail later, where texts are hashed.
                json.dumps(value, ensure_ascii=False).encode()
        except ValueError as error:
            todo = "write one object a line"
            raise reading_error(f"{where}:{number}", "a JSON object", f"invalid JSON ({error})", todo) from None
        if not isinstance(value, dict):
            todo = 'write {"text": ...}, one a line'
            raise reading_error(f"{where}:{number}", "a JSON object", short(line), todo)
        yield number, value


FORMATS: Mapping[str, Callable[[str, Iterable[str]], Parsed]] = {
    ".txt": _txt,
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
}
"""From the name of a file, for messages, and its lines, each with its newline, to header and records. What is
given as lines can be looped over twice."""


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """Gives a name that fits into a message: a file without a header has whole texts as names."""
    return (text if len(text) <= 40 else f"{text[:37]}...") or '""'


def reading_error(where: str, expected: str, got: str, todo: str) -> ValueError:
    return InvalidValueError(f"{where}: expected {expected}, got {got}; {todo}")
