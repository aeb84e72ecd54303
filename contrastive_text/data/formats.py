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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


def decode(path: Path) -> tuple[str, str]:
    """Gives the text of a file, unpacked, and the suffix that names its format."""
    if path.is_dir():
        inside = listed(sorted(short(p.name) for p in path.iterdir())[:12]) or "none"
        raise reading_error(str(path), "a file", "a folder", f"name its files ({inside})")
    if not path.exists():
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = listed(difflib.get_close_matches(path.name, names))
        todo = f"did you mean {near}?" if near else f"look into {path.parent.resolve()}"
        raise FileNotFoundError(f"{path}: expected a file, got nothing there; {todo}")
    packed = path.suffix.lower() == ".gz"
    suffix = Path(path.stem if packed else path.name).suffix.lower()
    if suffix not in FORMATS:
        expected = f"a name that ends in {listed(FORMATS)}, or in one of these and .gz"
        raise reading_error(str(path), expected, repr(suffix), "write it in one of these formats")
    try:
        data = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise reading_error(str(path), "a whole gzip file", f"a broken one ({error})", "fetch it again") from None
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8"), suffix
    except UnicodeDecodeError as error:
        where = f"{path}:{data.count(10, 0, error.start) + 1}"
        raise reading_error(
            where, "UTF-8", f"the byte 0x{data[error.start]:02x}", "save the file as UTF-8"
        ) from None


class Content(NamedTuple):
    header: list[str]
    records: Sequence[tuple[int, Sequence[object]]]  # the line, and a cell for each name of the header
    blank: int  # blank lines, or empty files of a folder
    unread: int = 0  # other files of a folder


def documents(folder: Path) -> Content:
    """Gives each ``.txt`` file in a folder or below it as one text, by name; hidden ones are not read."""
    inside = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    names = [name for name in inside if re.search(r"\.txt(\.gz)?$", name, re.IGNORECASE)]
    names = sorted(name for name in names if not re.search(r"(^|/)\.", name))
    if not names:
        found = listed(map(short, sorted(inside)[:12])) or "no file"
        todo = "name its files, or write every document as a .txt file"
        raise reading_error(str(folder), "a folder with .txt files, a document each", found, todo)
    texts = [decode(inside[name])[0] for name in names]
    records = [(1, [text]) for text in texts if text.strip()]
    return Content(["text"], records, blank=len(names) - len(records), unread=len(inside) - len(names))


def _lines(text: str) -> list[str]:
    """Splits at newlines alone: U+2028 and the like belong to a text."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]


_RELEASE = "gold_label\t"
"""How the ``.txt`` files of SNLI and MultiNLI begin, which are tables."""


def _txt(where: str, text: str) -> Content:
    if text.startswith(_RELEASE):
        return _release(where, text)
    return _table(where, [(0, ["text"]), *((n, [line]) for n, line in enumerate(_lines(text), start=1))])


def _tsv(where: str, text: str) -> Content:
    return _table(where, ((n, line.split("\t")) for n, line in enumerate(_lines(text), start=1)))


def _release(where: str, text: str) -> Content:
    """Gives a ``.txt`` file of SNLI or MultiNLI; a row may end before the labels of its last annotators."""
    rows = [line.split("\t") for line in _lines(text)]
    names = rows[0]
    needed = sum(re.fullmatch(r"label\d+", name) is None for name in names)
    padded = [row + [""] * (len(names) - len(row)) if len(row) >= needed else row for row in rows]
    return _table(where, enumerate(padded, start=1))


def _csv(where: str, text: str) -> Content:
    # Strict, or a quote that is never closed takes the rest of the file for one text.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    start = 1

    def records() -> Iterator[tuple[int, list[str]]]:
        nonlocal start
        for fields in reader:
            yield start, fields
            start = reader.line_num + 1

    # The module's own limit, 131,072 characters a field, is less than a long document has.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return _table(where, records())
    except csv.Error as error:
        todo = 'write a quote inside a quoted text twice, or use .tsv, where a " is a character'
        raise reading_error(f"{where}:{start}", "CSV", f"a broken record ({error})", todo) from None
    finally:
        csv.field_size_limit(limit)


def _table(where: str, lines: Iterable[tuple[int, list[str]]]) -> Content:
    """Gives the records below a header, each with a field for each name."""
    lines = iter(lines)
    _, header = next(lines, (1, []))
    if twice := [name for name in header if header.count(name) > 1]:
        raise reading_error(
            f"{where}:1", "every name once", f"{short(twice[0])} twice", "rename one of the columns"
        )
    records: list[tuple[int, list[str]]] = []
    blank = 0
    for line, fields in lines:
        if not any(map(str.strip, fields)):
            blank += 1
        elif len(fields) == len(header):
            records.append((line, fields))
        else:
            expected = f"{counted(len(header), 'field')} ({listed(map(short, header))})"
            raise reading_error(
                f"{where}:{line}", expected, str(len(fields)), "look for a separator too many or too few"
            )
    return Content(header, records, blank)


def _jsonl(where: str, text: str) -> Content:
    objects: list[tuple[int, dict[str, object]]] = []
    lines = _lines(text)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if "\\u" in line:
                # Half a surrogate pair is JSON but no text: it would fail later, where texts are hashed.
                json.dumps(value, ensure_ascii=False).encode()
        except ValueError as error:
            todo = "write one object a line"
            raise reading_error(f"{where}:{number}", "a JSON object", f"invalid JSON ({error})", todo) from None
        if not isinstance(value, dict):
            raise reading_error(
                f"{where}:{number}", "a JSON object", short(line), 'write {"text": ...}, one a line'
            )
        objects.append((number, value))
    header = list(dict.fromkeys(key for _, value in objects for key in value))
    records = [(number, [value.get(key) for key in header]) for number, value in objects]
    return Content(header, records, blank=len(lines) - len(objects))


FORMATS: Mapping[str, Callable[[str, str], Content]] = {
    ".txt": _txt,
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
}


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """Gives a name that fits into a message: a file without a header has whole texts as names."""
    return (text if len(text) <= 40 else f"{text[:37]}...") or '""'


def reading_error(where: str, expected: str, got: str, todo: str) -> ValueError:
    return ValueError(f"{where}: expected {expected}, got {got}; {todo}")
