"""JSON: an object or an array a line, or one array of them in a ``.json``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.data.files.formats import Content, FileForm, Record, listed, reading_error, short
from contrastive_text.data.files.tables import numbered

Values = Callable[[], Iterator[tuple[int, object] | None]]
"""Reads the value of each line, or of each element, with its number; None for a blank line."""
_SET = "set"
"""Key of a set of texts that all belong together, in sentence-transformers' embedding-training-data."""


def read_jsonl(where: str, lines: Iterable[str], bounds: Bounds, form: FileForm | None) -> Content:
    """Returns an object or an array a line."""
    return _content(where, partial(_line_values, where, lines, bounds.depth), form)


def read_json(where: str, lines: Iterable[str], bounds: Bounds, form: FileForm | None) -> Content:
    """Returns an object or an array a line, or the elements of the one array that the file is."""
    first, second = _first_lines(lines)
    try:
        value = json.loads(first or "null")
    except (ValueError, RecursionError):
        value = None
    whole = value is None or (isinstance(value, list) and not second and all(map(_is_row, value)))
    if first is None or not whole:
        return read_jsonl(where, lines, bounds, form)
    content = _content(where, partial(_elements, where, lines, bounds), form)
    return content._replace(notes=(*content.notes, "one JSON array"))


def _first_lines(lines: Iterable[str]) -> tuple[str | None, str | None]:
    """Returns the first two lines that aren't blank."""
    found = [line for line, _ in zip((line for line in lines if line.strip()), range(2), strict=False)]
    return (*found, None, None)[:2]  # type: ignore[return-value]  # mypy knows no length of the sum


def _is_row(value: object) -> bool:
    return isinstance(value, dict | list)


def _elements(where: str, lines: Iterable[str], bounds: Bounds) -> Iterator[tuple[int, object] | None]:
    text = "".join(lines)
    value = _parsed(where, text, bounds.depth, "write one object a line")
    if not isinstance(value, list):
        keys = f" with {listed(map(short, list(value)[:6]))}" if isinstance(value, dict) else ""
        got = f"one object{keys}" if isinstance(value, dict) else short(text.strip())
        raise reading_error(where, "an array of objects, or an object a line", got, "write one object a line")
    yield from enumerate(value, start=1)


def _line_values(where: str, lines: Iterable[str], depth: int) -> Iterator[tuple[int, object] | None]:
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
    known = names or _array_names(_array(where, next(found for found in values() if found)))

    def records() -> Iterator[Record | None]:
        for found in values():
            yield found and (found[0], _array_cells(where, found, known, is_given=names is not None))

    return Content(known, records, notes=(f"arrays: {listed(known)}",))


def _array(where: str, found: tuple[int, object]) -> list[object]:
    number, value = found
    if not isinstance(value, list):
        got = short(json.dumps(value, ensure_ascii=False))
        raise reading_error(f"{where}:{number}", "an array as in the first line", got, "give all lines one form")
    return value


def _array_names(first: Sequence[object]) -> list[str]:
    is_scored = len(first) > 2 and isinstance(first[-1], int | float)
    texts = len(first) - is_scored
    names = ["text"] if texts == 1 else ["anchor", "positive", *(["negative"] if texts > 2 else [])]
    return [*names, *(["target"] if is_scored else [])]


def _array_cells(where: str, found: tuple[int, object], names: list[str], is_given: bool) -> list[object]:
    value = _array(where, found)
    is_scored = names[-1] == "target" and not is_given
    texts = value[:-1] if is_scored else value
    if is_given or len(names) - is_scored < 3:
        cells = list(texts)
    else:  # any number of hard negatives, each by itself or in a list
        rest = [text for each in texts[2:] for text in (each if isinstance(each, list) else [each])]
        cells = [*texts[:2], rest]
    cells += value[-1:] if is_scored else []
    if len(cells) != len(names) or (is_scored and not isinstance(value[-1], int | float)):
        expected = f"{len(names)} values ({listed(names)})"
        got = short(json.dumps(value, ensure_ascii=False))
        raise reading_error(f"{where}:{found[0]}", expected, got, "give all lines one form")
    return cells


def _parsed(where: str, text: str, depth: int, todo: str) -> object:
    """Returns the value of a JSON text whose strings can all be written as UTF-8.

    Raises:
        ValueError: No JSON, a key twice, half a surrogate pair, or too many levels.
    """
    _check_depth(where, text, depth)
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
