"""Results in the folder of a run: configuration, metrics, facts, the best checkpoint and the saved model."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, MissingFileError
from contrastive_text.core.storage.checkpoints import Checkpoint, best_checkpoint, read_checkpoint
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.text_files import decoded_lines, read_text
from contrastive_text.recipes.layers import Config, read_config

CONFIG, METRICS, MODEL, CHECKPOINTS = "config.yaml", "metrics.csv", "model", "checkpoints"
"""Names of the files and folders that ``fit`` writes to a run's folder."""
LOSS = "train/loss"
"""Metric of the weighted sum of all losses."""
MOST_RUNS = 6
"""Runs of a page, each of which has a color of its own."""
_TODO = "take the file as the run left it"


class Series(NamedTuple):
    """A metric over the steps of a run.

    Args:
        steps: Numbers of optimizer steps taken when the metric was logged.
        values: Values of the metric, finite.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Results of a run, finished or not; or a saved model without its run.

    Args:
        number: Place on the page, from 0, which decides the color.
        alone: Whether the page has no other run.
        name: Short name, different for each run of a page.
        folder: Folder of the run or of the saved model.
        changed: Time at which the metrics were last written, in UTC.
        model: Folder of the saved model, or None.
        config: The configuration, as far as it is known.
        config_text: Content of ``config.yaml``, empty without one.
        metrics: Name of a metric -> its series.
        diverged: The first step with a loss that is NaN or infinite, or None.
        checkpoint: The best checkpoint, or None.
        lacks: What is missing, and why; empty if nothing is.
    """

    number: int
    alone: bool
    name: str
    folder: Path
    changed: datetime
    model: Path | None
    config: Config = field(default_factory=dict)
    config_text: str = ""
    metrics: Mapping[str, Series] = field(default_factory=dict)
    diverged: int | None = None
    checkpoint: Checkpoint | None = None
    lacks: str = ""

    def says(self, words: str) -> str:
        """Returns words about this run, after its name if the page has several runs."""
        return words if self.alone else f"{self.name}: {words}"

    @property
    def facts(self) -> Mapping[str, str]:
        """The summary that was printed before the first step."""
        return {} if self.checkpoint is None else self.checkpoint.facts

    @property
    def best(self) -> tuple[str, float, int] | None:
        """Name, value and step of the score that chose the checkpoint; None without validation."""
        if self.checkpoint is None or self.checkpoint.best.monitor is None or self.checkpoint.best.score is None:
            return None
        return self.checkpoint.best.monitor, self.checkpoint.best.score, self.checkpoint.step


def read_runs(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Reads runs, each from its folder or from a folder that contains one run.

    Raises:
        FileNotFoundError: A folder doesn't exist.
        ValueError: A folder contains no run, or several; its checkpoint or configuration is damaged; a run is
            named twice; or there are more runs than colors.
    """
    if not 1 <= len(paths) <= MOST_RUNS:
        raise InvalidValueError(f"report: expected 1 to {MOST_RUNS} runs on a page, got {len(paths)}; name fewer")
    folders = [run_folder(path) for path in paths]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InvalidValueError(
            f"report: expected different runs, got {', '.join(map(str, folders))}; name each once"
        )
    named = enumerate(zip(folders, _names(folders), strict=True))
    return [_read(number, len(folders) == 1, name, folder) for number, (folder, name) in named]


def run_folder(path: str | Path) -> Path:
    """Returns the folder of a run or of a saved model: the path itself, or the only run inside it.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: It contains no run, or several.
    """
    path = Path(path)
    if not path.is_dir():
        raise MissingFileError(f"report: expected a run's folder, as fit leaves it, found none at {path}")
    if _is_model(path):
        return path
    places = [path, *sorted(path.iterdir())]
    found = [place for place in places if any((place / name).exists() for name in (CONFIG, METRICS, CHECKPOINTS))]
    if path in found or len(found) == 1:
        return found[0]
    got = f"none of them at {path}"
    if found:
        names = ", ".join(place.name for place in found[:6])
        got = f"a folder of {len(found)} runs at {path} ({names}); name one"
    raise InvalidValueError(
        f"report: expected a run's folder, with {CONFIG}, {METRICS} or {CHECKPOINTS} in it, got {got}"
    )


def read_metrics(path: Path) -> tuple[dict[str, Series], int | None]:
    """Reads the table of Lightning's CSV logger.

    Lightning counts the step that has just been taken from 0; here a step is the number of steps taken. The loss
    of one objective is NaN in steps that skip it; ``train/loss`` is NaN only in a run that has diverged.

    Returns:
        Name of a metric -> its finite values; and the first step with a loss that isn't finite, or None.

    Raises:
        ValueError: The file isn't such a table.
    """
    found: dict[str, list[tuple[int, float]]] = {}
    diverged: int | None = None
    rows = csv.DictReader(decoded_lines(path), strict=True)
    try:
        for row in rows:
            step = int(row.pop("step")) + 1
            row.pop("epoch", None)
            for name, value in [(name, float(cell)) for name, cell in row.items() if cell]:
                if math.isfinite(value):
                    found.setdefault(name, []).append((step, value))
                elif name == LOSS:
                    diverged = diverged or step
    except (KeyError, TypeError, csv.Error, ValueError) as error:
        if isinstance(error, ContrastiveTextError):
            raise
        got = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidValueError(
            f"{path}:{rows.reader.line_num}: expected a step and numbers, as Lightning's CSV logger writes them, "
            f"got {got}; {_TODO}"
        ) from error
    return {name: Series(*map(tuple, zip(*points, strict=True))) for name, points in found.items()}, diverged


def _is_model(path: Path) -> bool:
    """Returns whether a folder is a saved model of this library, sentence-transformers or Transformers."""
    return any((path / name).is_file() for name in (MODULES, "config.json"))


def _read(number: int, alone: bool, name: str, folder: Path) -> RunRecord:
    written = next(path for path in (folder / METRICS, folder / CONFIG, folder) if path.exists())
    changed = datetime.fromtimestamp(written.stat().st_mtime, tz=UTC)
    if _is_model(folder):
        lacks = f"{folder} is a saved model, without its run"
        return RunRecord(number, alone, name, folder, changed, model=folder, lacks=lacks)
    path = folder / CONFIG
    config = read_config(path) if path.exists() else {}
    fields = Record(config, where=str(path), todo=_TODO)
    checkpoints = _place(fields, "checkpoint", folder / CHECKPOINTS)
    checkpoint, lacks = None, f"there is no checkpoint in {checkpoints}"
    if any(checkpoints.glob("*.ckpt")):
        checkpoint, lacks = read_checkpoint(best_checkpoint(checkpoints, "report")), ""
    for place in ("model", "data", "trainer"):
        fields.record(place, {})
    model = _place(fields, "export", folder / MODEL)
    metrics, diverged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else ({}, None)
    return RunRecord(
        number=number,
        alone=alone,
        name=name,
        folder=folder,
        changed=changed,
        model=model if model.is_dir() else None,
        config=config or ({"model": checkpoint.model, "data": checkpoint.data} if checkpoint else {}),
        config_text=read_text(path) if path.is_file() else "",
        metrics=metrics,
        diverged=diverged,
        checkpoint=checkpoint,
        lacks=lacks,
    )


def _place(fields: Record, callback: str, default: Path) -> Path:
    dirpath: str | None = fields.record(callback, {}).text("dirpath", None)
    return Path(dirpath or default)


def _names(folders: Sequence[Path]) -> list[str]:
    """Returns the shortest ends of paths that tell folders apart, without ``version_0`` if possible."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    above = [part[:-1] if part[-1].startswith("version_") and len(part) > 1 else part for part in parts]
    parts = above if len(set(above)) == len(above) else parts
    lengths = range(1, max(map(len, parts)) + 1)
    length = next(n for n in lengths if len({part[-n:] for part in parts}) == len(parts))
    return ["/".join(part[-length:]) for part in parts]
