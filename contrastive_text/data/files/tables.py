"""Readers of tables in text files: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl`` and ``.json``."""

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
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.data.files.formats import (
    SEPARATORS,
    Content,
    FileForm,
    Record,
    count_noun,
    join_names,
    library_name,
    reading_error,
    short,
)

_RELEASE_START = "gold_label\t"
"""First characters of the ``.txt`` files of SNLI and MultiNLI, which are tables."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SENTENCE_ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
"""Characters that end a sentence; the last three are Chinese and Japanese."""
_SENTENCE_WORDS = 4
"""Smallest number of words in a cell that is a sentence rather than a column name."""

Lines = Callable[[], Iterator[str]]
"""Function that reads the lines of a file, with their newlines."""
Rows = Callable[[], Iterator[tuple[int, list[str]]]]
"""Function that reads the fields of each line, with its line number."""


def read_txt(where: str, lines: Lines, bounds: SizeLimits, form: FileForm | None) -> Content:  # noqa: ARG001  # as all formats
    """Reads a text on each line, or the table of an SNLI or MultiNLI release."""
    if next(lines(), "").startswith(_RELEASE_START):
        return _release_table(where, lines)
    return _table(where, lambda: chain([(0, ["text"])], _fields(where, lines, separator=None)))


def read_tsv(where: str, lines: Lines, bounds: SizeLimits, form: FileForm | None) -> Content:
    r"""Reads a table separated by tabs. ``"`` is an ordinary character unless the whole file is quoted."""
    if form is None:
        return _table(where, partial(_fields, where, lines, "\t"))
    separator, notes = _separator(lines, "\t", form)
    rows = partial(_fields, where, lines, separator)
    if _is_quoted(lines, separator, bounds.line):
        rows, notes = partial(_quoted_fields, where, lines, separator), (*notes, "quoted fields unquoted")
    return _with_names(_table(where, rows, notes), form)


def read_csv(where: str, lines: Lines, bounds: SizeLimits, form: FileForm | None) -> Content:  # noqa: ARG001  # as all formats
    """Reads a table separated by commas, or by another separator that its header shows."""
    separator, notes = (",", ()) if form is None else _separator(lines, ",", form)
    return _with_names(_table(where, partial(_quoted_fields, where, lines, separator), notes), form)


def _with_names(content: Content, form: FileForm | None) -> Content:
    names = None if form is None else form.names
    return content if names is None or content.with_names is None else content.with_names(names)


def _separator(lines: Lines, usual: str, form: FileForm) -> tuple[str, tuple[str, ...]]:
    """Returns the character between fields: the user's choice, or a separator between the names of the header.

    Args:
        lines: Lines of the file.
        usual: Separator that belongs to the suffix.
        form: Settings, with the user's choice.
    """
    separator = form.character
    first_line = next(lines(), "").rstrip("\r\n")
    if separator is None and usual not in first_line:
        candidates = [mark for mark in SEPARATORS if mark != usual and _are_names(_cells(first_line, mark))]
        separator = candidates[0] if len(candidates) == 1 else None
    if separator in (None, usual):
        return usual, ()
    return str(separator), (f"separated by {SEPARATORS.get(str(separator), repr(separator))}",)


def _cells(line: str, separator: str) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(separator)]


def _are_names(cells: Sequence[str]) -> bool:
    """Returns whether cells are the header of a table: all short, and at least one a usual column name."""
    is_short = all(0 < len(cell) <= 40 and len(cell.split()) < _SENTENCE_WORDS for cell in cells)
    return len(cells) > 1 and is_short and any(map(library_name, cells))


def is_row(cells: Sequence[str]) -> bool:
    """Returns whether a first line is a row, not a header: it has no usual name, but a sentence or a number.

    Example:
        >>> is_row(["A man is eating.", "Someone eats.", "4.2"]), is_row(["frage", "antwort"])
        (True, False)
    """
    if any(map(library_name, cells)):
        return False
    return any(
        len(cell.split()) >= _SENTENCE_WORDS
        or cell.strip()[-1:] in _SENTENCE_ENDS
        or _NUMBER.fullmatch(cell.strip())
        for cell in cells
        if cell.strip()
    )


def number_lines(where: str, lines: Lines) -> Iterator[tuple[int, str]]:
    """Yields lines with their numbers, without line ends. Only newlines end a line; U+2028 is part of a text."""
    for number, line in enumerate(lines(), start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        if "\r" in text:  # several lines would be read as one text
            todo = "let lines end in newlines, or write .csv, whose quoted fields may hold it"
            expected = "lines that end in newlines"
            raise reading_error(f"{where}:{number}", expected, "a carriage return alone", todo)
        yield number, text


def _fields(where: str, lines: Lines, separator: str | None) -> Iterator[tuple[int, list[str]]]:
    for number, text in number_lines(where, lines):
        yield number, [text] if separator is None else text.split(separator)


def _release_table(where: str, lines: Lines) -> Content:
    """Reads a ``.txt`` file of SNLI or MultiNLI. The labels of the last annotators may be missing in a row."""

    def padded_rows() -> Iterator[tuple[int, list[str]]]:
        rows = _fields(where, lines, separator="\t")
        first, names = next(rows)
        yield first, names
        required_count = sum(re.fullmatch(r"label\d+", name) is None for name in names)
        for line, row in rows:
            yield line, row + [""] * (len(names) - len(row)) if len(row) >= required_count else row

    return _table(where, padded_rows)


def _quoted_fields(where: str, lines: Lines, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each record with the number of its first line. A record may have several lines."""
    # In CSV, and only there, a carriage return alone also ends a record.
    pieces = (piece for line in lines() for piece in io.StringIO(line, newline=""))
    # Strict: otherwise an unclosed quote makes the rest of the file one text.
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
    # The default limit of the csv module, 131,072 characters in a field, is too small for long documents.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _is_quoted(lines: Lines, separator: str, bound: int) -> bool:
    """Returns whether a table is quoted: each record equals its fields as a CSV writer would write them.

    A text that is quoted as a whole, such as ``"Yes."``, doesn't count, because a writer would quote it again.

    Args:
        lines: Lines of the file, read up to the first record that no writer makes.
        separator: Character between fields.
        bound: Largest number of characters of a record.
    """
    record_lines: list[str] = []

    def pieces() -> Iterator[str]:
        for line in lines():
            record_lines.append(line)
            if sum(map(len, record_lines)) > bound:
                return
            yield line

    writers = [_minimal, _all_quoted, _texts_quoted]
    reader = csv.reader(pieces(), delimiter=separator, strict=True)
    has_quotes = False
    try:
        while writers and (fields := _next_record(reader)) is not None:
            record = "".join(record_lines).removesuffix("\n").removesuffix("\r")
            record_lines.clear()
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
    return has_quotes and bool(writers) and not record_lines


def _minimal(fields: Sequence[str], separator: str) -> str:
    special = (separator, '"', "\n", "\r")
    return separator.join(_quote(field) if any(map(field.__contains__, special)) else field for field in fields)


def _all_quoted(fields: Sequence[str], separator: str) -> str:
    return separator.join(map(_quote, fields))


def _texts_quoted(fields: Sequence[str], separator: str) -> str:
    return separator.join(field if _NUMBER.fullmatch(field) else _quote(field) for field in fields)


def _quote(field: str) -> str:
    return '"' + field.replace('"', '""') + '"'


def _table(where: str, lines: Rows, notes: tuple[str, ...] = ()) -> Content:
    """Returns the records of a table below its header. Each record must have a field for each name."""
    _, header = next(lines(), (1, []))
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice and not is_row(header):
        raise reading_error(
            f"{where}:1", "every name once", f"{short(twice[0])} twice", "rename one of the columns"
        )

    def bare(names: Sequence[str]) -> Content:
        note = f"no header: {join_names(names)}"
        return Content(list(names), partial(_records, where, lines, list(names), 0), notes=(*notes, note))

    return Content(
        header, partial(_records, where, lines, header, 1), notes=notes, with_names=bare, is_row=is_row(header)
    )


def _records(where: str, lines: Rows, header: Sequence[str], skipped: int) -> Iterator[Record | None]:
    for line, fields in islice(lines(), skipped, None):
        if not any(map(str.strip, fields)):
            yield None
        elif len(fields) == len(header):
            yield line, fields
        else:
            expected = f"{count_noun(len(header), 'field')} ({join_names(map(short, header))})"
            todo = "look for a separator too many or too few"
            raise reading_error(f"{where}:{line}", expected, str(len(fields)), todo)


Values = Callable[[], Iterator[tuple[int, object] | None]]
"""Function that reads the JSON value of each line or element, with its number; None for a blank line."""
_SET = "set"
"""Key of a set of texts that all belong together, in the embedding-training-data of sentence-transformers."""


def read_jsonl(where: str, lines: Lines, bounds: SizeLimits, form: FileForm | None) -> Content:
    """Reads a JSON Lines file with an object or an array on each line."""
    return _content(where, partial(_line_values, where, lines, bounds.depth), form)


def read_json(where: str, lines: Lines, bounds: SizeLimits, form: FileForm | None) -> Content:
    """Reads a JSON file with an object or an array on each line, or a single array of them."""
    first, second = [*islice((line for line in lines() if line.strip()), 2), "", ""][:2]
    try:
        first_value = json.loads(first or "{}")
    except (ValueError, RecursionError):
        first_value = None
    is_list = isinstance(first_value, list) and not second
    is_array = is_list and all(isinstance(element, dict | list) for element in first_value)
    if first_value is not None and not is_array:
        return read_jsonl(where, lines, bounds, form)

    def elements() -> Iterator[tuple[int, object]]:
        text, todo = "".join(lines()), "write one object a line"
        value = _parsed(where, text, bounds.depth, todo)
        if not isinstance(value, list):
            keys = f" with {join_names(map(short, list(value)[:6]))}" if isinstance(value, dict) else ""
            got = f"one object{keys}" if isinstance(value, dict) else short(text.strip())
            raise reading_error(where, "an array of objects, or an object a line", got, todo)
        yield from enumerate(value, start=1)

    content = _content(where, elements, form)
    return content._replace(notes=(*content.notes, "one JSON array"))


def _line_values(where: str, lines: Lines, depth: int) -> Iterator[tuple[int, object] | None]:
    for number, line in number_lines(where, lines):
        if not line.strip():
            yield None
        else:
            yield number, _parsed(f"{where}:{number}", line, depth, "write one object a line")


def _content(where: str, values: Values, form: FileForm | None) -> Content:
    """Returns header and records of JSON arrays or objects. The names of objects are the keys of all of them."""
    first = next((item[1] for item in values() if item), None)
    if isinstance(first, list):
        return _arrays(where, values, None if form is None else form.names)
    names = list(dict.fromkeys(key for item in _objects(where, values) if item for key in item[1]))
    if names == [_SET]:
        return _sets(where, values)

    def records() -> Iterator[Record | None]:
        for item in _objects(where, values):
            yield item and (item[0], ObjectCells(names, item[1]))

    return Content(names, records)


@dataclass(frozen=True, slots=True)
class ObjectCells:
    """Cells of a JSON object, None for keys that the object lacks."""

    names: Sequence[str]
    values: Mapping[str, object]

    def __getitem__(self, place: int, /) -> object:
        return self.values.get(self.names[place])


def _objects(where: str, values: Values) -> Iterator[tuple[int, dict[str, object]] | None]:
    for item in values():
        if item is None:
            yield None
            continue
        number, value = item
        if not isinstance(value, dict):
            todo = 'write {"text": ...}, one a line'
            got = short(json.dumps(value, ensure_ascii=False))
            raise reading_error(f"{where}:{number}", "a JSON object", got, todo)
        yield number, value


def _sets(where: str, values: Values) -> Content:
    """Returns the text pairs of each set of texts: its first text with each of the other texts."""

    def records() -> Iterator[Record | None]:
        for item in _objects(where, values):
            if item is None:
                yield None
                continue
            number, value = item
            texts = value[_SET]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                got = short(json.dumps(texts, ensure_ascii=False))
                raise reading_error(f"{where}:{number}", "a list of texts in set", got, "write JSON strings")
            yield number, [texts[0] if texts else "", texts[1:]]

    return Content(["anchor", "positive"], records, notes=("sets: the first text with each other one",))


def _arrays(where: str, values: Values, names: list[str] | None) -> Content:
    """Converts arrays to rows, under the given names, or as anchor, positive, hard negatives and a score.

    Raises:
        ValueError: A line isn't an array, or arrays have different forms.
    """

    def arrays() -> Iterator[tuple[int, list[object]] | None]:
        for item in values():
            if item is not None and not isinstance(item[1], list):
                got, todo = short(json.dumps(item[1], ensure_ascii=False)), "give all lines one form"
                raise reading_error(f"{where}:{item[0]}", "an array as in the first line", got, todo)
            yield item  # type: ignore[misc]  # a list by now

    first = next(item[1] for item in arrays() if item)
    is_scored = names is None and len(first) > 2 and isinstance(first[-1], int | float)
    texts = len(first) - is_scored
    roles = ["text"] if texts == 1 else ["anchor", "positive", "negative"][: min(texts, 3)]
    header = names or [*roles, *(["target"] if is_scored else [])]

    def records() -> Iterator[Record | None]:
        for item in arrays():
            if item is None:
                yield None
                continue
            line, value = item
            cells = value[:-1] if is_scored else list(value)
            if names is None and texts > 2:  # any number of hard negatives, each by itself or in a list
                negatives = [text for cell in cells[2:] for text in (cell if isinstance(cell, list) else [cell])]
                cells = [*cells[:2], negatives]
            cells += value[-1:] if is_scored else []
            if len(cells) != len(header) or (is_scored and not isinstance(value[-1], int | float)):
                expected = f"{len(header)} values ({join_names(header)})"
                got = short(json.dumps(value, ensure_ascii=False))
                raise reading_error(f"{where}:{line}", expected, got, "give all lines one form")
            yield line, cells

    return Content(header, records, notes=(f"arrays: {join_names(header)}",))


def _parsed(where: str, text: str, depth: int, todo: str) -> object:
    """Parses a JSON text whose strings must be valid Unicode.

    Raises:
        ValueError: Invalid JSON, a repeated key, an unpaired surrogate, or too many levels.
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
            # An unpaired surrogate is valid JSON but no valid text: it would fail later, when texts are hashed.
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise reading_error(where, "a JSON object", f"invalid JSON ({error})", todo) from None
    return value


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Builds a mapping from the pairs of a JSON object, and refuses repeated keys.

    The parser by itself would silently keep the last of equal keys.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidValueError(f"the key {short(repeated)} twice")
    return values


_BRACKETS = re.compile(r'[][{}]|"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?$)', re.DOTALL)
"""Expression for a JSON bracket, or for a whole string, whose brackets are ignored.

An unclosed string extends to the end of the text. Otherwise the search from each of its quotes would take
quadratic time."""
