"""Data files for tests of what reads them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from contrastive_text.data import Table

TEXT = ("text",)
PAIR = ("anchor", "positive")
SCORED = ("anchor", "positive", "target")
FORMATS = (".tsv", ".csv", ".jsonl")


def write(path: Path, data: str | bytes) -> Path:
    """Writes a file, packed where its name says so."""
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """Writes rows in the format that the name says."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix == ".jsonl":
        return write(path, "".join(json.dumps(row) + "\n" for row in rows))
    if suffix == ".tsv":
        return write(path, "".join("\t".join(line) + "\n" for line in [list(rows[0]), *map(dict.values, rows)]))
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return write(path, file.getvalue())


def texts(table: Table) -> list[object]:
    """Returns the texts of a table."""
    return [row["text"] for row in table]


def refuses(*parts: str) -> AbstractContextManager[object]:
    """Expects a ValueError whose message has the parts in this order."""
    return pytest.raises(ValueError, match="(?s)" + ".*".join(re.escape(part) for part in parts))
