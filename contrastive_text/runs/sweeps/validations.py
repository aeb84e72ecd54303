"""What a run logged in its validations: read from its log, and kept in records."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.records import Record, records


def read_validations(folder: Path) -> list[dict[str, float]]:
    """Returns what the only run of a folder logged in its validations, in order.

    Raises:
        ValueError: No ``metrics.csv``.
    """
    file = next(iter(sorted(folder.rglob("metrics.csv"))), None)
    if file is None:
        raise InvalidValueError(
            f"sweep: expected metrics.csv in {folder}, got none; leave trainer.logger to the sweep"
        )
    by_step: dict[int, dict[str, float]] = {}
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            figures = {name: float(value) for name, value in row.items() if name.startswith("val/") and value}
            if figures:
                step = int(row["step"])
                by_step[step] = {"step": step, **by_step.get(step, {}), **figures}
    return [by_step[step] for step in sorted(by_step)]


def read_record(kept: Record) -> list[dict[str, float]]:
    """Returns the validations of a record that ``as_json`` has written.

    Raises:
        ValueError: Something else stands in their place.
    """
    each = records(kept.values.get("validations"), of="validations", where=kept.where, todo=kept.todo)
    return [numbers(validation) for validation in each]


def numbers(kept: Record) -> dict[str, float]:
    """Returns figures by name that ``as_json`` has written.

    Raises:
        ValueError: One that is none.
    """
    try:
        return {name: float(str(value)) for name, value in kept.values.items()}
    except ValueError:
        raise kept.refusal("figures", dict(kept.values)) from None


def as_json(value: Any) -> Any:  # Any: JSON
    """Returns a value in the words of JSON, which has none for what is no finite number: these become texts.

    Example:
        >>> as_json([{"step": 1, "val/spearman": float("nan")}])
        [{'step': 1, 'val/spearman': 'nan'}]
    """
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
