"""JSON files of a model folder: read and written."""

from __future__ import annotations

import json
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import TODO
from contrastive_text.core.storage.records import Record

ELSEWHERE = "load this model with sentence-transformers"
"""Advice for a setting that has no equal here."""


def read_record(path: Path) -> Record:
    """Reads a JSON file of a model folder, which must be there."""
    if not path.exists():
        raise InvalidValueError(f"{path}: expected a file, got none; the folder is damaged, save it again")
    return Record.read(path, TODO)


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file of a model folder."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
