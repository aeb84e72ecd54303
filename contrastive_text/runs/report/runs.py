"""What a run has left behind: configuration, figures over its steps, facts, the best checkpoint, the model."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, MissingFileError
from contrastive_text.core.storage.checkpoints import Checkpoint, best_checkpoint, read_checkpoint
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.text_files import decoded_lines, read_text
from contrastive_text.recipes.layers import Config, read_config
from contrastive_text.runs.report.style import SERIES

CONFIG, METRICS, MODEL = "config.yaml", "metrics.csv", "model"
"""Names of what ``fit`` leaves in a run's folder."""
_TODO = "take the file as the run left it"
LOSS = "train/loss"
"""The loss of all objectives among the figures."""


class Series(NamedTuple):
    """A figure over the run.

    Args:
        steps: Optimiser steps taken when it was logged, from 1.
        values: Its values.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished or a running training; or a saved model alone, of which nothing else is known.

    Args:
        number: Its place on the page, from 0, which gives its colour.
        alone: Whether it is the only one on the page.
        name: Short, and another for each run of a page.
        folder: Where it lies.
        config: The configuration, as far as it is known.
        config_text: ``config.yaml`` as it stands; empty if there is none.
        metrics: Name of a logged figure -> its series, as far as it is finite.
        diverged: The first step whose loss was NaN or infinite; None if none was.
        checkpoint: The best one; None if there is none.
        model: The folder of the saved model; None if there is none.
        changed: When its figures were last written, in UTC.
        lacks: What isn't there, and why.
    """

    number: int
    alone: bool
    name: str
    folder: Path
    config: Config
    config_text: str
    metrics: Mapping[str, Series]
    diverged: int | None
    checkpoint: Checkpoint | None
    model: Path | None
    changed: datetime
    lacks: str

    def says(self, words: str) -> str:
        """Returns words that are about this run, with its name before them where there are several."""
        return words if self.alone else f"{self.name}: {words}"

    @property
    def facts(self) -> Mapping[str, str]:
        """What was printed before the first step: all that makes the result."""
        return {} if self.checkpoint is None else self.checkpoint.facts

    @property
    def regression(self) -> str:
        """Sentence that the best score is worse than the one before the first step; empty if it isn't."""
        return "" if self.checkpoint is None else self.checkpoint.best.regression

    @property
    def best(self) -> tuple[str, float, int] | None:
        """Name, value and step of the score that chose the checkpoint; None without validation."""
        if self.checkpoint is None or self.checkpoint.best.monitor is None or self.checkpoint.best.score is None:
            return None
        return self.checkpoint.best.monitor, self.checkpoint.best.score, self.checkpoint.step


def run_folder(path: str | Path) -> Path:
    """Returns the folder of a run: the path itself, or the only run inside it; or that of a saved model.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: No run, or several.
    """
    path = Path(path)
    if not path.is_dir():
        raise MissingFileError(f"report: expected a run's folder, as fit leaves it, found none at {path}")
    if is_model(path):
        return path
    inner = [path, *sorted(path.iterdir())]
    found = [
        place for place in inner if any((place / name).exists() for name in (CONFIG, METRICS, "checkpoints"))
    ]
    if path in found:
        return path
    if len(found) != 1:
        names = ", ".join(place.name for place in found[:6])
        raise InvalidValueError(
            f"report: expected a run's folder, with {CONFIG}, {METRICS} or checkpoints in it, got "
            + (
                f"a folder of {len(found)} runs at {path} ({names}); name one"
                if found
                else f"none of them at {path}"
            )
        )
    return found[0]


def is_model(path: Path) -> bool:
    """Whether a folder is a saved model: of ours, of sentence-transformers or of Transformers."""
    return any((path / name).is_file() for name in (MODULES, "config.json"))


def read_runs(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Reads runs, each by its folder or the folder around it.

    Raises:
        FileNotFoundError: A folder that isn't there.
        ValueError: A folder without a run, with several, with a damaged checkpoint or configuration; one run
            given twice; or more runs than there are colours.
    """
    if not 1 <= len(paths) <= SERIES:
        raise InvalidValueError(f"report: expected 1 to {SERIES} runs on a page, got {len(paths)}; name fewer")
    folders = [run_folder(path) for path in paths]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InvalidValueError(
            f"report: expected different runs, got {', '.join(map(str, folders))}; name each once"
        )
    named = enumerate(zip(folders, _names(folders), strict=True))
    return [_read(number, len(folders) == 1, name, folder) for number, (folder, name) in named]


def read_metrics(path: Path) -> tuple[dict[str, Series], int | None]:
    """Reads what Lightning's CSV logger wrote: figures where they are finite, and from which step the loss isn't.

    The loss of a single objective is NaN in steps in which it rests, the whole one in a run that has diverged.

    Lightning counts the step that has just been taken from 0; here it is the number of steps taken.

    Raises:
        ValueError: A file that isn't such a table.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    diverged: int | None = None
    rows = csv.DictReader(decoded_lines(path), strict=True)
    for line in itertools.count(start=2):
        try:
            row = next(rows, None)
            if row is None:
                break
            step = int(row.pop("step")) + 1
            row.pop("epoch", None)
            cells = {name: float(cell) for name, cell in row.items() if cell}
        except (KeyError, TypeError, csv.Error, ValueError) as error:
            if isinstance(error, ContrastiveTextError):
                raise
            got = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidValueError(
                f"{path}:{line}: expected a step and numbers, as Lightning's CSV logger writes them, "
                f"got {got}; {_TODO}"
            ) from error
        for name, value in cells.items():
            if math.isfinite(value):
                found.setdefault(name, []).append((step, value))
            elif name == LOSS:
                diverged = diverged or step
    return {name: Series(*map(tuple, zip(*points, strict=True))) for name, points in found.items()}, diverged


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:  # Any: what YAML can hold
    """Returns a configuration as dotted names and values, without those that are null.

    Example:
        >>> flat({"data": {"train": "a.txt", "columns": None}, "views": [{"class_path": "a.Crop"}]})
        {'data.train': 'a.txt', 'views': 'Crop()'}
    """
    named: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            named |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            named[f"{prefix}{name}"] = _said(value)
    return named


def _said(value: Any) -> str:  # Any: as above
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    if isinstance(value, Mapping) and "class_path" in value:
        arguments = ", ".join(f"{name}={_said(part)}" for name, part in (value.get("init_args") or {}).items())
        return f"{value['class_path'].rpartition('.')[2]}({arguments})"
    return str(value)


def _read(number: int, alone: bool, name: str, folder: Path) -> RunRecord:
    if is_model(folder):
        return _model_alone(number, alone, name, folder)
    config = read_config(folder / CONFIG) if (folder / CONFIG).exists() else {}
    checkpoint, lacks = _checkpoint(config, folder)
    if checkpoint is not None and not config:
        config = {"model": checkpoint.model, "data": checkpoint.data}
    said = Record(config, where=str(folder / CONFIG), todo=_TODO)
    for place in ("model", "data", "trainer"):
        said.record(place, {})
    model = Path(_dirpath(said, "export") or folder / MODEL)
    written = [folder / METRICS, folder / CONFIG, folder]
    metrics, diverged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else ({}, None)
    changed = next(path for path in written if path.exists()).stat().st_mtime
    return RunRecord(
        number=number,
        alone=alone,
        name=name,
        folder=folder,
        config=config,
        config_text=read_text(folder / CONFIG) if (folder / CONFIG).is_file() else "",
        metrics=metrics,
        diverged=diverged,
        checkpoint=checkpoint,
        model=model if model.is_dir() else None,
        changed=datetime.fromtimestamp(changed, tz=UTC),
        lacks=lacks,
    )


def _model_alone(number: int, alone: bool, name: str, folder: Path) -> RunRecord:
    return RunRecord(
        number=number,
        alone=alone,
        name=name,
        folder=folder,
        config={},
        config_text="",
        metrics={},
        diverged=None,
        checkpoint=None,
        model=folder,
        changed=datetime.fromtimestamp(folder.stat().st_mtime, tz=UTC),
        lacks=f"{folder} is a saved model, without its run",
    )


def _checkpoint(config: Config, folder: Path) -> tuple[Checkpoint | None, str]:
    said = Record(config, where=str(folder / CONFIG), todo=_TODO)
    place = Path(_dirpath(said, "checkpoint") or folder / "checkpoints")
    if not any(place.glob("*.ckpt")):
        return None, f"there is no checkpoint in {place}"
    return read_checkpoint(best_checkpoint(place, "report")), ""


def _dirpath(config: Record, callback: str) -> str | None:
    return config.record(callback, {}).text("dirpath", None)


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns each folder's last names, as many as tell them apart, without ``version_0`` where it can."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    above = [part[:-1] if part[-1].startswith("version_") and len(part) > 1 else part for part in parts]
    parts = above if len(set(above)) == len(above) else parts
    lengths = range(1, max(map(len, parts)))
    length = next(
        (n for n in lengths if len({part[-n:] for part in parts}) == len(parts)), len(max(parts, key=len))
    )
    return ["/".join(part[-length:]) for part in parts]
