"""Text formats of tables: ``.txt``, ``.tsv``, ``.csv``, whose form is recognized, ``.jsonl`` and ``.json``."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, islice

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.data.files.columns import library_name
from contrastive_text.data.files.formats import (
    SEPARATORS,
    Content,
    FileForm,
    Record,
    counted,
    listed,
    reading_error,
    short,
)

_RELEASE = "gold_label\t"
"""First characters of the ``.txt`` files of SNLI and MultiNLI, which are tables."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Ends of sentences, the last three in Chinese and Japanese."""
_WORDS = 4
"""Words from which on a cell is no name of a column."""

Lines = Callable[[], Iterator[str]]
"""Reads the lines of a file, with their newlines."""
Rows = Callable[[], Iterator[tuple[int, list[str]]]]
"""Reads the fields of each line, with its number."""


def read_txt(where: str, lines: Lines, bounds: Bounds, form: FileForm | None) -> Content:  # noqa: ARG001  # as all formats
    """Returns a text a line, or the table of an SNLI or MultiNLI release."""
    if next(lines(), "").startswith(_RELEASE):
        return _release(where, lines)
    return _table(where, lambda: chain([(0, ["text"])], _fields(where, lines, separator=None)))


def read_tsv(where: str, lines: Lines, bounds: Bounds, form: FileForm | None) -> Content:
    r"""Returns a table with tabs, in which ``"`` is a character unless the whole file is quoted."""
    if form is None:
        return _table(where, partial(_fields, where, lines, "\t"))
    separator, notes = _separator(lines, "\t", form)
    rows = partial(_fields, where, lines, separator)
    if _is_quoted(lines, separator, bounds.line):
        rows, notes = partial(_quoted, where, lines, separator), (*notes, "quoted fields unquoted")
    return _named(_table(where, rows, notes), form)


def read_csv(where: str, lines: Lines, bounds: Bounds, form: FileForm | None) -> Content:  # noqa: ARG001  # as all formats
    """Returns a table with commas, or with what the header says in their place."""
    separator, notes = (",", ()) if form is None else _separator(lines, ",", form)
    return _named(_table(where, partial(_quoted, where, lines, separator), notes), form)


def _named(content: Content, form: FileForm | None) -> Content:
    names = None if form is None else form.names
    return content if names is None or content.bare is None else content.bare(names)


def _separator(lines: Lines, usual: str, form: FileForm) -> tuple[str, tuple[str, ...]]:
    """Returns the character between fields: the given one, or another one that the header has between names.

    Args:
        lines: Of the file.
        usual: What the suffix says.
        form: Has the given one.
    """
    found = form.character
    first = next(lines(), "").rstrip("\r\n")
    if found is None and usual not in first:
        others = [each for each in SEPARATORS if each != usual and _are_names(_cells(first, each))]
        found = others[0] if len(others) == 1 else None
    if found in (None, usual):
        return usual, ()
    return str(found), (f"separated by {SEPARATORS.get(str(found), repr(found))}",)


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _are_names(cells: Sequence[str]) -> bool:
    """Whether cells are the header of a table: short, and one of them a usual name at least."""
    is_short = all(0 < len(cell) <= 40 and len(cell.split()) < _WORDS for cell in cells)
    return len(cells) > 1 and is_short and any(map(library_name, cells))


def is_row(cells: Sequence[str]) -> bool:
    """Whether a first line is a row rather than a header: no usual name, and a sentence or a number in it.

    Example:
        >>> is_row(["A man is eating.", "Someone eats.", "4.2"]), is_row(["frage", "antwort"])
        (True, False)
    """
    if any(map(library_name, cells)):
        return False
    return any(
        len(cell.split()) >= _WORDS or cell.strip()[-1:] in _ENDS or _NUMBER.fullmatch(cell.strip())
        for cell in cells
        if cell.strip()
    )


def numbered(where: str, lines: Lines) -> Iterator[tuple[int, str]]:
    """Yields lines without their ends, which are newlines alone: U+2028 and the like belong to a text."""
    for number, line in enumerate(lines(), start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        if "\r" in text:  # texts of several lines would be taken for one
            todo = "let lines end in newlines, or write .csv, whose quoted fields may hold it"
            expected = "lines that end in newlines"
            raise reading_error(f"{where}:{number}", expected, "a carriage return alone", todo)
        yield number, text


def _fields(where: str, lines: Lines, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    for number, text in numbered(where, lines):
        yield number, [text] if separator is None else text.split(separator)


def _release(where: str, lines: Lines) -> Content:
    """Returns a ``.txt`` file of SNLI or MultiNLI; a row may end before the labels of its last annotators."""

    def padded() -> Iterator[tuple[int, list[str]]]:
        rows = _fields(where, lines, separator="\t")
        first, names = next(rows)
        yield first, names
        needed = sum(re.fullmatch(r"label\d+", name) is None for name in names)
        for line, row in rows:
            yield line, row + [""] * (len(names) - len(row)) if len(row) >= needed else row

    return _table(where, padded)


def _quoted(where: str, lines: Lines, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each record, which may have several lines, with the first line's number."""
    # A carriage return alone ends a record too, and here only.
    pieces = (piece for line in lines() for piece in io.StringIO(line, newline=""))
    # Strict, or a quote that is never closed takes the rest of the file for one text.
    reader = csv.reader(pieces, delimiter=separator, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            fields = _next_record(reader)
        except csv.Error as error:
            todo = 'write a quote inside a quoted text twice, or use .tsv, where a " is a character'
            raise reading_error(f"{where}:{start}", "CSV", f"a broken record ({error})", todo) from None
        if fields is None:
            return
        yield start, fields


def _next_record(reader: Iterator[list[str]]) -> list[str] | None:
    # The module's own limit, 131,072 characters a field, is less than a long document has.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _is_quoted(lines: Lines, separator: str, bound: int) -> bool:
    """Whether a table is quoted: every record is, to the letter, what a CSV writer makes of its fields.

    A text that is quoted as a whole, such as ``"Yes."``, is none: a writer would quote it once more.

    Args:
        lines: Of the file, read until a record that no writer makes.
        separator: Between fields.
        bound: Characters of a record, at most.
    """
    taken: list[str] = []

    def pieces() -> Iterator[str]:
        for line in lines():
            taken.append(line)
            if sum(map(len, taken)) > bound:
                return
            yield line

    writers = [_minimal, _all_quoted, _texts_quoted]
    reader = csv.reader(pieces(), delimiter=separator, strict=True)
    has_quotes = False
    try:
        while writers and (fields := _next_record(reader)) is not None:
            record = "".join(taken).removesuffix("\n").removesuffix("\r")
            taken.clear()
            if '"' in record:
                has_quotes = True
                writers = [write for write in writers if write(fields, separator) == record]
            elif fields:
                writers = [
                    write
                    for write in writers
                    if write is _minimal or (write is _texts_quoted and all(map(_NUMBER.fullmatch, fields)))
                ]
    except csv.Error:
        return False
    return has_quotes and bool(writers) and not taken


def _minimal(fields: Sequence[str], separator: str) -> str:
    special = (separator, '"', "\n", "\r")
    return separator.join(_quote(each) if any(map(each.__contains__, special)) else each for each in fields)


def _all_quoted(fields: Sequence[str], separator: str) -> str:
    return separator.join(map(_quote, fields))


def _texts_quoted(fields: Sequence[str], separator: str) -> str:
    return separator.join(each if _NUMBER.fullmatch(each) else _quote(each) for each in fields)


def _quote(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'


def _table(where: str, lines: Rows, notes: tuple[str, ...] = ()) -> Content:
    """Returns the records below a header, each with a field for each name."""
    _, header = next(lines(), (1, []))
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice and not is_row(header):
        raise reading_error(
            f"{where}:1", "every name once", f"{short(twice[0])} twice", "rename one of the columns"
        )

    def bare(names: Sequence[str]) -> Content:
        said = f"no header: {listed(names)}"
        return Content(list(names), partial(_records, where, lines, list(names), 0), notes=(*notes, said))

    return Content(
        header, partial(_records, where, lines, header, 1), notes=notes, bare=bare, is_row=is_row(header)
    )


def _records(where: str, lines: Rows, header: Sequence[str], skipped: int) -> Iterator[Record | None]:
    for line, fields in islice(lines(), skipped, None):
        if not any(map(str.strip, fields)):
            yield None
        elif len(fields) == len(header):
            yield line, fields
        else:
            expected = f"{counted(len(header), 'field')} ({listed(map(short, header))})"
            todo = "look for a separator too many or too few"
            raise reading_error(f"{where}:{line}", expected, str(len(fields)), todo)


Values = Callable[[], Iterator[tuple[int, object] | None]]
"""Reads the value of each line, or of each element, with its number; None for a blank line."""
_SET = "set"
"""Key of a set of texts that all belong together, in sentence-transformers' embedding-training-data."""


def read_jsonl(where: str, lines: Lines, bounds: Bounds, form: FileForm | None) -> Content:
    """Returns an object or an array a line."""
    return _content(where, partial(_line_values, where, lines, bounds.depth), form)


def read_json(where: str, lines: Lines, bounds: Bounds, form: FileForm | None) -> Content:
    """Returns an object or an array a line, or the elements of the one array that the file is."""
    first, second = [*islice((line for line in lines() if line.strip()), 2), "", ""][:2]
    try:
        value = json.loads(first or "{}")
    except (ValueError, RecursionError):
        value = None
    is_whole = isinstance(value, list) and not second and all(isinstance(each, dict | list) for each in value)
    if value is not None and not is_whole:
        return read_jsonl(where, lines, bounds, form)

    def elements() -> Iterator[tuple[int, object]]:
        text, todo = "".join(lines()), "write one object a line"
        found = _parsed(where, text, bounds.depth, todo)
        if not isinstance(found, list):
            keys = f" with {listed(map(short, list(found)[:6]))}" if isinstance(found, dict) else ""
            got = f"one object{keys}" if isinstance(found, dict) else short(text.strip())
            raise reading_error(where, "an array of objects, or an object a line", got, todo)
        yield from enumerate(found, start=1)

    content = _content(where, elements, form)
    return content._replace(notes=(*content.notes, "one JSON array"))


def _line_values(where: str, lines: Lines, depth: int) -> Iterator[tuple[int, object] | None]:
    for number, line in numbered(where, lines):
        if not line.strip():
            yield None
        else:
            yield number, _parsed(f"{where}:{number}", line, depth, "write one object a line")


def _content(where: str, values: Values, form: FileForm | None) -> Content:
    """Returns the content of objects, whose names are those of all of them, or of arrays."""
    first = next((found[1] for found in values() if found), None)
    if isinstance(first, list):
        return _arrays(where, values, None if form is None else form.names)
    names = list(dict.fromkeys(key for found in _objects(where, values) if found for key in found[1]))
    if names == [_SET]:
        return _sets(where, values)

    def records() -> Iterator[Record | None]:
        for found in _objects(where, values):
            yield found and (found[0], ObjectCells(names, found[1]))

    return Content(names, records)


@dataclass(frozen=True, slots=True)
class ObjectCells:
    """The cells of an object, None for keys of others: a list of them would grow with the keys of all objects."""

    names: Sequence[str]
    values: Mapping[str, object]

    def __getitem__(self, place: int, /) -> object:
        return self.values.get(self.names[place])


def _objects(where: str, values: Values) -> Iterator[tuple[int, dict[str, object]] | None]:
    for found in values():
        if found is None:
            yield None
            continue
        number, value = found
        if not isinstance(value, dict):
            todo = 'write {"text": ...}, one a line'
            got = short(json.dumps(value, ensure_ascii=False))
            raise reading_error(f"{where}:{number}", "a JSON object", got, todo)
        yield number, value


def _sets(where: str, values: Values) -> Content:
    """Returns the pairs of each set: its first text with each other one."""

    def records() -> Iterator[Record | None]:
        for found in _objects(where, values):
            if found is None:
                yield None
                continue
            number, value = found
            texts = value[_SET]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                got = short(json.dumps(texts, ensure_ascii=False))
                raise reading_error(f"{where}:{number}", "a list of texts in set", got, "write JSON strings")
            yield number, [texts[0] if texts else "", texts[1:]]

    return Content(["anchor", "positive"], records, notes=("sets: the first text with each other one",))


def _arrays(where: str, values: Values, names: list[str] | None) -> Content:
    """Returns arrays as rows: given names, or anchor, positive, hard negatives and a number as the score.

    Raises:
        ValueError: Something else than an array, or arrays of differing forms.
    """

    def arrays() -> Iterator[tuple[int, list[object]] | None]:
        for found in values():
            if found is not None and not isinstance(found[1], list):
                got, todo = short(json.dumps(found[1], ensure_ascii=False)), "give all lines one form"
                raise reading_error(f"{where}:{found[0]}", "an array as in the first line", got, todo)
            yield found  # type: ignore[misc]  # a list by now

    first = next(found[1] for found in arrays() if found)
    is_scored = names is None and len(first) > 2 and isinstance(first[-1], int | float)
    texts = len(first) - is_scored
    roles = ["text"] if texts == 1 else ["anchor", "positive", "negative"][: min(texts, 3)]
    known = names or [*roles, *(["target"] if is_scored else [])]

    def records() -> Iterator[Record | None]:
        for found in arrays():
            if found is None:
                yield None
                continue
            line, value = found
            cells = value[:-1] if is_scored else list(value)
            if names is None and texts > 2:  # any number of hard negatives, each by itself or in a list
                rest = [text for each in cells[2:] for text in (each if isinstance(each, list) else [each])]
                cells = [*cells[:2], rest]
            cells += value[-1:] if is_scored else []
            if len(cells) != len(known) or (is_scored and not isinstance(value[-1], int | float)):
                expected = f"{len(known)} values ({listed(known)})"
                got = short(json.dumps(value, ensure_ascii=False))
                raise reading_error(f"{where}:{line}", expected, got, "give all lines one form")
            yield line, cells

    return Content(known, records, notes=(f"arrays: {listed(known)}",))


def _parsed(where: str, text: str, depth: int, todo: str) -> object:
    """Returns the value of a JSON text whose strings can all be written as UTF-8.

    Raises:
        ValueError: No JSON, a key twice, half a surrogate pair, or too many levels.
    """
    if text.count("[") + text.count("{") > depth:
        steps = ({"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0) for match in _BRACKETS.finditer(text))
        deepest = max(accumulate(steps), default=0)
        if deepest > depth:
            expected = f"at most {depth:,} lists and objects within each other"
            raise reading_error(where, expected, f"{deepest:,}", "flatten them, or raise the bound `depth`")
    try:
        value: object = json.loads(text, object_pairs_hook=_once_each)
        if "\\u" in text:
            # Half a surrogate pair is JSON but no text: it would fail later, where texts are hashed.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise reading_error(where, "a JSON object", f"invalid JSON ({error})", todo) from None
    return value


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Returns an object; the parser alone keeps the last of equal keys, and says nothing of it."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidValueError(f"the key {short(twice)} twice")
    return found


_BRACKETS = re.compile(r'[][{}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?$)', re.DOTALL)
"""A bracket, or a string, whose brackets are text.

One that is never closed goes to the end: looked for from each of its quotes anew, it would take squared time."""
