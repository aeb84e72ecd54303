"""Records of data files, each with its line for messages, and the words that messages are built from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        notes: What was recognized beyond what the suffix says, for the line about the file.
        bare: Gives the content of a table whose first line is a row, under these names; None where every record
            has its own names.
        is_row: Whether the header is rather a row.
    """

    header: list[str]
    records: Callable[[], Iterable[Record | None]]
    unread: int = 0
    known: int | None = None
    identity: str = ""
    notes: tuple[str, ...] = ()
    bare: Callable[[Sequence[str]], Content] | None = None
    is_row: bool = False


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
