"""Rows of what has columns by name: DataFrames of pandas and polars, Arrow tables, data sets of ``datasets``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeGuard

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


def frame_rows(frame: Any) -> Iterator[tuple[object, ...]]:  # Any: a frame
    """Yields the cells of each row; a class of ``datasets`` by its name, a number without one stays."""
    names = frame_columns(frame)
    features = getattr(frame, "features", None) or {}
    reads = [_reader(features.get(name)) for name in names]
    for start in range(0, len(frame), _SLICE):
        part = frame[start : start + _SLICE]
        yield from zip(
            *([read(cell) for cell in _cells(part[name])] for name, read in zip(names, reads, strict=True)),
            strict=True,
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
        is_named = isinstance(place, int) and 0 <= place < len(self.names)
        return self.names[place] if is_named and isinstance(place, int) else place


def _reader(feature: Any) -> Callable[[Any], object]:  # Any: of ``datasets``
    return ClassNames(tuple(feature.names)).cell if hasattr(feature, "int2str") else plain_cell
