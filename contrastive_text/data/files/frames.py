"""Tables with named columns: DataFrames, Arrow files and data sets of the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeGuard

from contrastive_text.core.errors import MissingLibraryError
from contrastive_text.core.libraries import require
from contrastive_text.data.files.formats import Content, Record, reading_error, short

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
