"""JSON records: written atomically, and read field by field with type checks, from files of any origin."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.storage.disk import atomic_file

MOST_BYTES = 1 << 26
"""Largest size of a JSON file in bytes: 64 MiB, about ten times the longest vocabulary in use."""
MOST_LEVELS = 100
"""Largest depth of nested lists and mappings in a JSON file."""
_T = TypeVar("_T")
_REQUIRED: Any = object()  # Any: used as a default of any type


def write_json(path: Path, content: Mapping[str, object] | Sequence[object]) -> None:
    """Writes a record or a list as a JSON file, atomically.

    Raises:
        DiskError: The file can't be written, or the disk is full.
        ValueError: A number that JSON can't store, such as NaN.
    """
    text = json.dumps(content, indent=1, allow_nan=False)
    with atomic_file(path) as file:
        file.write(f"{text}\n".encode())


def read_json(path: Path, todo: str) -> object:
    """Reads a JSON file of bounded size and depth, in which no key occurs twice.

    Args:
        path: A regular file.
        todo: What to do about a damaged file, for the error.

    Raises:
        FileNotFoundError: The path is not a regular file.
        ValueError: The file is not valid JSON, or exceeds a limit.
    """
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "something else" if path.exists() else "none"
        raise MissingFileError(f"{path}: expected a file, got {kind}; {todo}")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InvalidValueError(f"{path}: expected at most {MOST_BYTES:,} bytes of JSON, got {size:,}; {todo}")
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once_each)
    except (ValueError, OSError) as error:  # not UTF-8, not JSON, a repeated key, a number of thousands of digits
        raise InvalidValueError(f"{path}: expected JSON, got {error}; {todo}") from error
    except RecursionError:
        levels = MOST_LEVELS + 1
    else:
        levels = _levels(content)
    if levels > MOST_LEVELS:
        raise InvalidValueError(f"{path}: expected JSON of at most {MOST_LEVELS} levels, got more; {todo}")
    return content


def _once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {}
    for name, value in pairs:
        if name in content:
            raise InvalidValueError(f"the key {name!r} twice")
        content[name] = value
    return content


def _levels(content: object) -> int:
    """Returns the depth of nested lists and mappings, counted up to one more than ``MOST_LEVELS``."""
    level, count = [content], 0
    while count <= MOST_LEVELS:
        containers = [value for value in level if isinstance(value, dict | list)]
        if not containers:
            break
        count += 1
        level = [item for value in containers for item in (value.values() if isinstance(value, dict) else value)]
    return count


def describe_value(value: object) -> str:
    """Describes a value for the "got" of an error.

    Example:
        >>> describe_value(217), describe_value(None), describe_value([1, 2])
        ('the number 217', 'null', 'a list')
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        digits = repr(value) if isinstance(value, float) or abs(value) < 10**20 else "of many digits"
        return f"the number {digits}"
    if isinstance(value, str):
        return f"the text {value[:60]!r}{'...' if len(value) > 60 else ''}"
    return (
        "a mapping" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else repr(value)[:60]
    )


class Record:
    """JSON record: a mapping from a file of any origin, read field by field.

    Each field is read with its type; errors name the record and the field.

    A field that is null counts as missing. For a missing field the ``default`` is returned, or an error is
    raised.

    Args:
        values: Name -> value.
        where: First words of errors: a file, or a file and a place in it.
        todo: What to do about a damaged record, for errors.

    Raises:
        ValueError: The values are not a mapping with texts as keys.

    Example:
        >>> record = Record({"path": "1_Pooling", "idx": "one"}, where="modules.json", todo="save it again")
        >>> record.text("path")
        '1_Pooling'
        >>> record.integer("idx")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: modules.json: idx: expected an integer, got the text 'one'; save it again
    """  # noqa: E501  # the error is in one line

    def __init__(self, values: object, where: str, todo: str) -> None:
        self.where = where
        self.todo = todo
        if not isinstance(values, Mapping):
            raise self.refusal("a mapping of names to values", values)
        if not all(isinstance(name, str) for name in values):
            other = next(name for name in values if not isinstance(name, str))
            raise self.refusal("texts as names", other)
        self.values: Mapping[str, object] = values

    @classmethod
    def read(cls, path: Path, todo: str, required: bool = True) -> Record:
        """Reads a JSON file that holds a mapping; see ``read_json``.

        A missing file counts as an empty mapping if ``required`` is false.
        """
        return cls(read_json(path, todo) if required or path.exists() else {}, where=str(path), todo=todo)

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def refusal(
        self, expected: str, got: object, name: str | None = None, todo: str | None = None
    ) -> InvalidValueError:
        """Returns an error that names an invalid field of the record, or the whole record."""
        place = self.where if name is None else f"{self.where}: {name}"
        value_text = "nothing" if name is not None and name not in self.values else describe_value(got)
        return InvalidValueError(f"{place}: expected {expected}, got {value_text}; {todo or self.todo}")

    def text(self, name: str, default: _T = _REQUIRED) -> str | _T:
        """Reads a field of the record that is a text."""
        value: str | _T = self._read_field(name, default, str, "a text")
        return value

    def flag(self, name: str, default: _T = _REQUIRED) -> bool | _T:
        """Reads a field of the record that is true or false."""
        value: bool | _T = self._read_field(name, default, bool, "true or false")
        return value

    def integer(
        self, name: str, default: _T = _REQUIRED, *, least: int | None = None, most: int | None = None
    ) -> int | _T:
        """Reads a field of the record that is an integer, with inclusive bounds."""
        expected = f"an integer{_bounds(least, most)}"
        value: int | _T = self._read_field(name, default, int, expected)
        too_small = least is not None and isinstance(value, int) and value < least
        too_large = most is not None and isinstance(value, int) and value > most
        if name in self and (too_small or too_large):
            raise self.refusal(expected, value, name)
        return value

    def number(self, name: str, default: _T = _REQUIRED) -> float | _T:
        """Reads a field that is a finite number, or an integer."""
        value: float | _T = self._read_field(name, default, int | float, "a finite number")
        if name not in self or not isinstance(value, int | float):
            return value
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.refusal("a finite number", value, name)
        return number

    def texts(self, name: str, default: _T = _REQUIRED) -> list[str] | _T:
        """Reads a field of the record that is a list of texts."""
        value: list[str] | _T = self._read_field(name, default, list, "a list of texts")
        invalid = [item for item in value if not isinstance(item, str)] if isinstance(value, list) else []
        if invalid:
            raise self.refusal("a list of texts", invalid[0], name)
        return value

    def record(self, name: str, default: Mapping[str, object] | None = None) -> Record:
        """Reads a field that is a record, or builds one from the default values."""
        expected = "a mapping of names to values"
        value = self._read_field(name, _REQUIRED if default is None else default, Mapping, expected)
        return Record(value, f"{self.where}: {name}", self.todo)

    def _read_field(self, name: str, default: object, kind: Any, expected: str) -> Any:  # Any: of type ``kind``
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise self.refusal(expected, value, name)
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.refusal(expected, value, name)
        return value


def _bounds(least: int | None, most: int | None) -> str:
    if least is None:
        return "" if most is None else f" of at most {most:,}"
    return f" of {least:,} or more" if most is None else f" from {least:,} to {most:,}"


def records(values: object, of: str, where: str, todo: str, most: int | None = None) -> Sequence[Record]:
    """Converts a list of mappings to records.

    Args:
        values: The list.
        of: Plural noun for the records, for the error: "modules".
        where: First words of errors.
        todo: What to do about a damaged record, for errors.
        most: Largest number of records; None for any number.

    Raises:
        ValueError: The values are not a list of mappings, or the list is too long.

    Example:
        >>> [record.text("path") for record in records([{"path": "a"}], of="modules", where="x", todo="y")]
        ['a']
    """
    if not isinstance(values, list):
        raise InvalidValueError(f"{where}: expected a list of {of}, got {describe_value(values)}; {todo}")
    if most is not None and len(values) > most:
        raise InvalidValueError(f"{where}: expected at most {most:,} {of}, got {len(values):,}; {todo}")
    return [Record(value, f"{where}: {of} {number}", todo) for number, value in enumerate(values)]


def resolve_inside(folder: Path, name: str, where: str) -> Path:
    """Returns the path of a file that a record in a folder names, after checking that it is inside the folder.

    Args:
        folder: The folder, of any origin.
        name: The name in the record; empty for the folder itself.
        where: The record and the place in it, for the error.

    Raises:
        ValueError: The path leads outside of the folder: absolute, with ``..``, or through a link.

    Example:
        >>> resolve_inside(Path("model"), "1_Pooling", "modules.json").as_posix()
        'model/1_Pooling'
        >>> resolve_inside(Path("model"), "../other", "modules.json")
        Traceback (most recent call last):
            ...
        contrastive_text.core.errors.InvalidValueError: modules.json: expected a path inside model, got '../other'
    """
    paths = (PurePosixPath(name), PureWindowsPath(name))  # the folder may be read on either system
    is_outside = any(path.anchor or ".." in path.parts for path in paths) or "\0" in name
    if is_outside or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise InvalidValueError(f"{where}: expected a path inside {folder}, got {name!r}")
    return folder / name
