"""Contents of data files by their suffix, of folders of documents, data frames and data sets of the hub."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeGuard

from contrastive_text.core.errors import MissingFileError, MissingLibraryError
from contrastive_text.core.libraries import require
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
from contrastive_text.data.files.tables import Lines, read_csv, read_json, read_jsonl, read_tsv, read_txt

_SLICE_ROWS = 10_000
"""Number of rows that are converted to Python objects at once."""


class ColumnTable(Protocol):
    """Protocol of a table with columns by name and slices of rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...  # Any: a name or a slice; the library's own types


def is_frame(data: object) -> TypeGuard[ColumnTable]:
    """Returns whether an object has columns by name and rows by number. Imports no library."""
    is_arrow = hasattr(data, "columns") and hasattr(data, "__arrow_c_stream__")
    return (
        (is_arrow or hasattr(data, "column_names")) and hasattr(data, "__getitem__") and hasattr(data, "__len__")
    )


def frame_columns(frame: Any) -> list[Any]:  # Any: a frame; names may not be strings
    """Returns the names of a table's columns."""
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def frame_rows(frame: Any, classes: Mapping[str, ClassNames] | None = None) -> Iterator[tuple[object, ...]]:
    """Yields the cells of each row of a table. A class number of ``datasets`` becomes its name, if it has one.

    Args:
        frame: Table with columns by name.
        classes: Column -> names of its classes; None to read them from the frame.
    """  # Any: of any library
    names = frame_columns(frame)
    if classes is None:
        features = (getattr(frame, "features", None) or {}).items()
        classes = {
            name: ClassNames(tuple(feature.names)) for name, feature in features if hasattr(feature, "int2str")
        }
    readers = [classes[name].cell if name in classes else plain_cell for name in names]
    for start in range(0, len(frame), _SLICE_ROWS):
        part = frame[start : start + _SLICE_ROWS]
        yield from zip(
            *(map(reader, _cells(part[name])) for name, reader in zip(names, readers, strict=True)), strict=True
        )


def plain_cell(cell: Any) -> object:  # Any: of any library
    """Converts a cell to a value of JSON: numpy's values to Python's, NaN and pandas' NA to None.

    Example:
        >>> plain_cell(float("nan")), plain_cell(("a", "b")), plain_cell("a")
        (None, ['a', 'b'], 'a')
    """
    if isinstance(cell, str) or cell is None:
        return cell
    if hasattr(cell, "tolist"):  # an array or a number of numpy's
        cell = cell.tolist()
    if type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and cell != cell):
        return None
    return [plain_cell(item) for item in cell] if isinstance(cell, list | tuple) else cell


def _cells(column: Any) -> list[object]:  # Any: the column of a frame
    for method in ("to_list", "to_pylist", "tolist"):
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


class ClassNames(NamedTuple):
    """Names of the classes of a column of numbers.

    Example:
        >>> ClassNames(("no", "yes")).cell(1), ClassNames(("no", "yes")).cell(-1)
        ('yes', -1)
    """

    names: tuple[str, ...]

    def cell(self, number: Any) -> object:  # Any: of any library
        """Returns the name of a class; a number without a name is returned unchanged."""
        index = plain_cell(number)
        return self.names[index] if isinstance(index, int) and 0 <= index < len(self.names) else index


_FILE_SIGNATURE = b"ARROW1"
"""First bytes of an ``.arrow`` in Arrow's file format; its stream format lacks them."""


def read_parquet(path: Path) -> Content:
    """Returns the header and records of a ``.parquet`` file; row n is line n, from 1.

    Raises:
        ImportError: ``pyarrow`` is not installed.
        ValueError: The file has another format, or is damaged.
    """
    parquet = require("pyarrow.parquet", str(path))

    def batches() -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_SLICE_ROWS)

    with _naming_errors(path), parquet.ParquetFile(path) as file:
        return _content(path, file.schema_arrow, batches, file.metadata.num_rows)


def read_arrow(path: Path) -> Content:
    """Returns the header and records of an ``.arrow`` file, in Arrow's file or stream format; row n is line n.

    Raises:
        ImportError: ``pyarrow`` is not installed.
        ValueError: The file has another format, or is damaged.
    """
    arrow = require("pyarrow", str(path))

    def batches() -> Iterator[Any]:
        with arrow.memory_map(str(path)) as source, _open_reader(arrow, path, source) as reader:
            yield from _batches(reader)

    with _naming_errors(path), arrow.memory_map(str(path)) as source, _open_reader(arrow, path, source) as reader:
        return _content(path, reader.schema, batches, sum(map(len, _batches(reader))))


def _open_reader(arrow: Any, path: Path, source: Any) -> Any:  # Any: of pyarrow
    with path.open("rb") as file:
        is_file = file.read(len(_FILE_SIGNATURE)) == _FILE_SIGNATURE
    return arrow.ipc.open_file(source) if is_file else arrow.ipc.open_stream(source)


def _batches(reader: Any) -> Iterator[Any]:  # Any: of pyarrow
    has_numbers = hasattr(reader, "num_record_batches")
    yield from map(reader.get_batch, range(reader.num_record_batches)) if has_numbers else reader


def _content(path: Path, schema: Any, batches: Any, count: int) -> Content:  # Any: of pyarrow, and a function
    names = list(schema.names)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise reading_error(str(path), "every name once", f"{short(twice[0])} twice", "rename one of the columns")

    classes = _class_names(schema)

    def records() -> Iterator[Record]:
        with _naming_errors(path):
            yield from enumerate((row for batch in batches() for row in frame_rows(batch, classes)), start=1)

    return Content(names, records, record_count=count)


def _class_names(schema: Any) -> dict[str, ClassNames]:  # Any: of pyarrow
    """Returns the classes of columns written by ``datasets``, from the features in the schema's metadata."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(metadata)["info"]["features"] if metadata else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {
        name: ClassNames(tuple(map(str, feature["names"])))
        for name, feature in (features.items() if isinstance(features, dict) else ())
        if isinstance(feature, dict)
        and feature.get("_type") == "ClassLabel"
        and isinstance(feature.get("names"), list)
    }


@contextmanager
def _naming_errors(path: Path) -> Iterator[None]:
    """Converts errors of pyarrow to errors that name the file."""
    arrow = require("pyarrow", str(path))
    try:
        yield
    except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
        got = f"an invalid or damaged file ({' '.join(str(error).split())[:200]})"
        raise reading_error(str(path), f"a {path.suffix} file", got, "write it again") from None


PREFIX = "hub:"
"""Prefix of a path that names a data set of the Hugging Face hub."""


class HubName(NamedTuple):
    """Name or folder of a data set, its configuration if it has several, and one of its splits."""

    name: str
    config: str | None
    split: str


def hub_name(path: str) -> HubName:
    """Parses ``hub:NAME:SPLIT`` and ``hub:NAME:CONFIG:SPLIT``.

    The name of a folder may contain colons, and a split may be a slice, as in ``train[:1000]``.

    Raises:
        ValueError: No split, or too many parts.

    Example:
        >>> hub_name("hub:sentence-transformers/all-nli:triplet:train[:10%]")
        HubName(name='sentence-transformers/all-nli', config='triplet', split='train[:10%]')
    """
    part = r"[^:+\[\]]+(?:\[[^\[\]]*\])?"
    if match := re.fullmatch(rf"(.+):({part}(?:\+{part})*)", path.removeprefix(PREFIX)):
        place, split = match.groups()
        if Path(place).is_dir() or ":" not in place:
            return HubName(place, None, split)
        name, _, config = place.rpartition(":")
        if name and config and (Path(name).is_dir() or ":" not in name):
            return HubName(name, config, split)
    raise reading_error(
        path, "hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT", "another form", "write hub:stanfordnlp/snli:train"
    )


def hub_content(path: str) -> Content:
    """Reads a split of a data set of the hub as header and records, with class names in place of class numbers.

    A number without a name, such as -1 for no gold label, is unchanged. Line n is row n, from 1. Rows stay in the
    mapped files of ``datasets``, and are read in slices.

    Raises:
        ImportError: ``datasets`` is not installed.
        ValueError: ``datasets`` can't load the data set.
    """
    name, config, split = hub_name(path)
    try:
        datasets = import_module("datasets")  # optional, and it takes a second
    except ImportError:
        raise MissingLibraryError(
            f"{path}: expected the library datasets, got no such library; pip install contrastive-text[datasets]"
        ) from None
    try:
        with _without_bars(datasets):
            table = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        todo = "check the name, the configuration, the split and the connection"
        got = f"{type(error).__name__} ({' '.join(str(error).split())})"
        raise reading_error(path, "a data set that can be loaded", got, todo) from None
    header = [str(column) for column in frame_columns(table)]
    paths = [Path(cache_file["filename"]) for cache_file in table.cache_files]
    identity = repr([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths])
    return Content(
        header, lambda: enumerate(frame_rows(table), start=1), record_count=len(table), identity=identity
    )


@contextmanager
def _without_bars(datasets: ModuleType) -> Iterator[None]:
    """Disables progress bars of ``datasets``, which every process would print."""
    has_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if has_bars:
            datasets.enable_progress_bars()


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
