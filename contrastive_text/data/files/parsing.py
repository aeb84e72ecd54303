"""Parsers of data files by their suffix, and of folders of documents."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from contrastive_text.core.errors import MissingFileError
from contrastive_text.core.storage.text_files import (
    USUAL,
    SizeLimits,
    check_regular_file,
    decoded_lines,
    is_blank,
    naming_read_errors,
    read_text,
)
from contrastive_text.data.files.formats import Content, FileForm, Record, join_names, reading_error, short
from contrastive_text.data.files.frames import read_arrow, read_parquet
from contrastive_text.data.files.tables import Lines, read_csv, read_json, read_jsonl, read_tsv, read_txt

FORMATS: Mapping[str, Callable[[str, Lines, SizeLimits, FileForm | None], Content]] = {
    ".txt": read_txt,
    ".tsv": read_tsv,
    ".csv": read_csv,
    ".jsonl": read_jsonl,
    ".json": read_json,
}
"""Suffix -> reader of a file, given its name, lines, size limits and settings."""
BINARY: Mapping[str, Callable[[Path], Content]] = {".parquet": read_parquet, ".arrow": read_arrow}
"""Formats that aren't text, which have their own compression."""
SUFFIXES = (*FORMATS, *BINARY)


def suffix_of(path: Path) -> str:
    """Returns the suffix that determines the format of an existing file."""
    if is_folder(path):
        content = join_names(sorted(short(p.name) for p in path.iterdir())[:12]) or "none"
        raise reading_error(str(path), "a file", "a folder", f"name its files ({content})")
    if not path.exists():
        names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        matches = join_names(difflib.get_close_matches(path.name, names))
        todo = f"did you mean {matches}?" if matches else f"look into {path.parent.resolve()}"
        raise MissingFileError(f"{path}: expected a file, got nothing there; {todo}")
    check_regular_file(path)
    is_gzip = path.suffix.lower() == ".gz"
    suffix = Path(path.stem if is_gzip else path.name).suffix.lower()
    if suffix not in FORMATS and (is_gzip or suffix not in BINARY):
        expected = (
            f"a name that ends in {join_names(FORMATS)}, in one of these and .gz, or in {join_names(BINARY)}"
        )
        got = repr(f"{suffix}.gz" if suffix in BINARY else suffix)
        raise reading_error(str(path), expected, got, "write it in one of these formats")
    return suffix


def parse(path: Path, bounds: SizeLimits = USUAL, form: FileForm | None = None) -> Content:
    """Reads the header and records of a file in the format of its suffix.

    Args:
        path: The file.
        bounds: Size limits of its lines.
        form: Settings of a user's file, whose separator, quotes and header are recognized. None for a file of a
            known layout, which is read by its suffix alone.
    """
    suffix = suffix_of(path)
    if suffix in BINARY:
        return BINARY[suffix](path)
    return FORMATS[suffix](str(path), partial(decoded_lines, path, bounds), bounds, form)


def documents(folder: Path, bounds: SizeLimits = USUAL) -> Content:
    """Reads each ``.txt`` file in a folder and its subfolders as a text, sorted by name; skips hidden files."""
    paths = _files_below(folder)
    names = [name for name in paths if re.search(r"\.txt(\.gz)?$", name, re.IGNORECASE)]
    names = sorted(name for name in names if not re.search(r"(^|/)\.", name))
    if not names:
        got = join_names(map(short, sorted(paths)[:12])) or "no file"
        todo = "name its files, or write every document as a .txt file"
        raise reading_error(str(folder), "a folder with .txt files, a document each", got, todo)

    def records() -> Iterator[Record | None]:
        for number, name in enumerate(names, start=1):
            text = read_text(paths[name], bounds)
            yield None if is_blank(text) else (number, [text])

    return Content(["text"], records, unread=len(paths) - len(names))


def _files_below(folder: Path) -> dict[str, Path]:
    """Returns relative name -> path of all files below a folder, including hidden folders.

    Raises:
        DiskError: A folder can't be read and isn't hidden: its documents would be missed silently.
    """

    def raise_unless_hidden(error: OSError) -> None:
        place = Path(error.filename)
        if place == folder or not re.search(r"(^|/)\.", place.relative_to(folder).as_posix()):
            with naming_read_errors(place):
                raise error

    paths = [
        Path(place, name) for place, _, names in os.walk(folder, onerror=raise_unless_hidden) for name in names
    ]
    return {path.relative_to(folder).as_posix(): path for path in paths}


def is_folder(path: Path) -> bool:
    """Returns whether a path is a folder. Raises DiskError if the system can't tell."""
    with naming_read_errors(path):
        return path.is_dir()
