"""Arrow's own formats: ``.parquet``, and ``.arrow`` as a file or as a stream."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contrastive_text.core.libraries import require
from contrastive_text.data.files.formats import Content, Record, reading_error, short
from contrastive_text.data.files.frames import ClassNames, plain_cell

_SLICE = 10_000
"""Rows that are made Python objects at once."""
_FILE = b"ARROW1"
"""How an ``.arrow`` begins that is no stream."""


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
            for batch in _batches(reader):
                yield from (batch.slice(start, _SLICE) for start in range(0, len(batch), _SLICE))

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
        read = 0
        with _answering(path):
            for batch in batches():
                columns = [
                    map(plain_cell if name not in classes else classes[name].cell, column.to_pylist())
                    for name, column in zip(names, batch.columns, strict=True)
                ]
                yield from enumerate(zip(*columns, strict=True), read + 1)
                read += len(batch)

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
