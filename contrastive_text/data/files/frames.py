"""Tables with named columns: DataFrames, Arrow files, and data sets of the Hugging Face hub."""

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

_SLICE = 10_000
"""Rows that are made Python objects at once."""


class Frame(Protocol):
    """Columns by name, and slices of rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Any: ...  # Any: a name or a slice; what the library gives


def is_frame(data: object) -> TypeGuard[Frame]:
    """Whether something has columns by name and rows by number; no library is imported to ask."""
    named = hasattr(data, "column_names") or (hasattr(data, "columns") and hasattr(data, "__arrow_c_stream__"))
    return named and hasattr(data, "__getitem__") and hasattr(data, "__len__")


def frame_columns(frame: Any) -> list[Any]:  # Any: a frame; names need not be texts
    """Returns the names of the columns."""
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


def frame_rows(frame: Any, classes: Mapping[str, ClassNames] | None = None) -> Iterator[tuple[object, ...]]:
    """Yields the cells of each row; a class of ``datasets`` by its name, a number without one stays.

    Args:
        frame: Columns by name.
        classes: Column -> names of its classes; None for those that the frame says.
    """  # Any: of any library
    names = frame_columns(frame)
    if classes is None:
        features = (getattr(frame, "features", None) or {}).items()
        classes = {name: ClassNames(tuple(of.names)) for name, of in features if hasattr(of, "int2str")}
    reads = [classes[name].cell if name in classes else plain_cell for name in names]
    for start in range(0, len(frame), _SLICE):
        part = frame[start : start + _SLICE]
        yield from zip(
            *(map(read, _cells(part[name])) for name, read in zip(names, reads, strict=True)), strict=True
        )


def plain_cell(cell: Any) -> object:  # Any: of any library
    """Returns a cell as JSON has it: numpy's values as Python's, and None for NaN and pandas' NA.

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
    return [plain_cell(each) for each in cell] if isinstance(cell, list | tuple) else cell


def _cells(column: Any) -> list[object]:  # Any: what a frame holds under a name
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
        """Returns the name of a class; a number without a name stays."""
        place = plain_cell(number)
        return self.names[place] if isinstance(place, int) and 0 <= place < len(self.names) else place


_FILE = b"ARROW1"
"""First bytes of an ``.arrow`` in the file format, which a stream lacks."""


def read_parquet(path: Path) -> Content:
    """Returns header and records of a ``.parquet``; row n is line n, from 1.

    Raises:
        ImportError: ``pyarrow`` is not installed.
        ValueError: Another file, or a damaged one.
    """
    parquet = require("pyarrow.parquet", str(path))

    def batches() -> Iterator[Any]:
        with parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_SLICE)

    with _answering(path), parquet.ParquetFile(path) as file:
        return _content(path, file.schema_arrow, batches, file.metadata.num_rows)


def read_arrow(path: Path) -> Content:
    """Returns header and records of an ``.arrow``, in either of Arrow's forms; row n is line n, from 1.

    Raises:
        ImportError: ``pyarrow`` is not installed.
        ValueError: Another file, or a damaged one.
    """
    arrow = require("pyarrow", str(path))

    def batches() -> Iterator[Any]:
        with arrow.memory_map(str(path)) as source, _opened(arrow, path, source) as reader:
            yield from _batches(reader)

    with _answering(path), arrow.memory_map(str(path)) as source, _opened(arrow, path, source) as reader:
        return _content(path, reader.schema, batches, sum(map(len, _batches(reader))))


def _opened(arrow: Any, path: Path, source: Any) -> Any:  # Any: pyarrow's
    with path.open("rb") as file:
        whole = file.read(len(_FILE)) == _FILE
    return arrow.ipc.open_file(source) if whole else arrow.ipc.open_stream(source)


def _batches(reader: Any) -> Iterator[Any]:  # Any: pyarrow's
    numbered = hasattr(reader, "num_record_batches")
    yield from map(reader.get_batch, range(reader.num_record_batches)) if numbered else reader


def _content(path: Path, schema: Any, batches: Any, count: int) -> Content:  # Any: pyarrow's; makes an iterator
    names = list(schema.names)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise reading_error(str(path), "every name once", f"{short(twice[0])} twice", "rename one of the columns")

    classes = _class_names(schema)

    def records() -> Iterator[Record]:
        with _answering(path):
            yield from enumerate((row for batch in batches() for row in frame_rows(batch, classes)), start=1)

    return Content(names, records, known=count)


def _class_names(schema: Any) -> dict[str, ClassNames]:  # Any: pyarrow's
    """Returns the classes of columns that ``datasets`` has written, by the features in the schema's metadata."""
    written = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(written)["info"]["features"] if written else {}
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
def _answering(path: Path) -> Iterator[None]:
    """Turns what pyarrow says of a file into an answer that names it."""
    arrow = require("pyarrow", str(path))
    try:
        yield
    except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
        got = f"another or a damaged one ({' '.join(str(error).split())[:200]})"
        raise reading_error(str(path), f"a {path.suffix} file", got, "write it anew") from None


PREFIX = "hub:"
"""Prefix of a path that names a data set of the hub."""


class HubName(NamedTuple):
    """A data set's name or folder, its configuration if it has several, and a split of it."""

    name: str
    config: str | None
    split: str


def hub_name(path: str) -> HubName:
    """Takes ``hub:NAME:SPLIT`` and ``hub:NAME:CONFIG:SPLIT`` apart.

    The name of a folder may hold colons, and a split may be part of one, as in ``train[:1000]``.

    Raises:
        ValueError: No split, or too many parts.

    Example:
        >>> hub_name("hub:sentence-transformers/all-nli:triplet:train[:10%]")
        HubName(name='sentence-transformers/all-nli', config='triplet', split='train[:10%]')
    """
    part = r"[^:+\[\]]+(?:\[[^\[\]]*\])?"
    if found := re.fullmatch(rf"(.+):({part}(?:\+{part})*)", path.removeprefix(PREFIX)):
        place, split = found.groups()
        if Path(place).is_dir() or ":" not in place:
            return HubName(place, None, split)
        name, _, config = place.rpartition(":")
        if name and config and (Path(name).is_dir() or ":" not in name):
            return HubName(name, config, split)
    raise reading_error(
        path, "hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT", "another form", "write hub:stanfordnlp/snli:train"
    )


def hub_content(path: str) -> Content:
    """Returns a split of a data set as header and records, the names of classes in place of their numbers.

    A number without a name, such as -1 for no gold label, stays. Line n is row n, from 1. Rows stay where
    ``datasets`` has them, mapped, and are read in slices.

    Raises:
        ImportError: ``datasets`` is not installed.
        ValueError: It can't load that.
    """
    name, config, split = hub_name(path)
    try:
        datasets = import_module("datasets")  # optional, and it takes a second
    except ImportError:
        raise MissingLibraryError(
            f"{path}: expected the library datasets, got none; pip install contrastive-text[datasets]"
        ) from None
    try:
        with _without_bars(datasets):
            table = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        todo = "check the name, the configuration, the split and the connection"
        got = f"{type(error).__name__} ({' '.join(str(error).split())})"
        raise reading_error(path, "a data set that can be loaded", got, todo) from None
    header = [str(column) for column in frame_columns(table)]
    places = [Path(each["filename"]) for each in table.cache_files]
    identity = repr([(str(place), place.stat().st_size, place.stat().st_mtime_ns) for place in places])
    return Content(header, lambda: enumerate(frame_rows(table), start=1), known=len(table), identity=identity)


@contextmanager
def _without_bars(datasets: ModuleType) -> Iterator[None]:
    """Keeps away progress bars, which every process would show."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
