"""Reader of a run's folder: configuration, metrics, facts, best checkpoint and saved model."""

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
"""Name of the metric of the weighted sum of all losses."""
MOST_RUNS = 6
"""Largest number of runs on a report page: the number of colors."""
_TODO = "use the file as the run wrote it"


class Series(NamedTuple):
    """Values of a metric over the steps of a run.

    Args:
        steps: Numbers of optimizer steps taken when the metric was logged.
        values: Values of the metric, finite.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Results of a finished or unfinished run, or of a saved model without its run, for the report page.

    Args:
        number: Index of the run on the page, from 0, which selects its color.
        alone: Whether the page has no other run.
        name: Short name, different for each run of a page.
        folder: Folder of the run or of the saved model.
        changed: Time at which the metrics were last written, in UTC.
        model: Folder of the saved model, or None.
        config: The configuration; empty if it is unknown.
        config_text: Content of ``config.yaml``, empty without one.
        metrics: Name of a metric -> its series.
        diverged: The first step with a loss that is NaN or infinite, or None.
        checkpoint: The best checkpoint, or None.
        lacks: Description of missing results, with the reason; empty if there are none.
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
        """Returns a text about this run, with its name in front if the page has several runs."""
        return words if self.alone else f"{self.name}: {words}"

    @property
    def facts(self) -> Mapping[str, str]:
        """Facts of the run: the summary that it printed before the first step, by name."""
        return {} if self.checkpoint is None else self.checkpoint.facts

    @property
    def best(self) -> tuple[str, float, int] | None:
        """Name, value and step of the best checkpoint's score; None without validation."""
        if self.checkpoint is None or self.checkpoint.best.monitor is None or self.checkpoint.best.score is None:
            return None
        return self.checkpoint.best.monitor, self.checkpoint.best.score, self.checkpoint.step


def read_runs(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Reads the runs of a report page, each from its folder or from a folder that contains one run.

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
    numbered = enumerate(zip(folders, _names(folders), strict=True))
    return [_read(number, len(folders) == 1, name, folder) for number, (folder, name) in numbered]


def run_folder(path: str | Path) -> Path:
    """Returns the folder of a run or of a saved model: the path itself, or the only run inside it.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: It contains no run, or several.
    """
    path = Path(path)
    if not path.is_dir():
        raise MissingFileError(
            f"report: expected a run's folder, got {path}, which isn't a folder; check its name"
        )
    if _is_model(path):
        return path
    folders = [path, *sorted(path.iterdir())]
    runs = [
        folder for folder in folders if any((folder / name).exists() for name in (CONFIG, METRICS, CHECKPOINTS))
    ]
    if path in runs or len(runs) == 1:
        return runs[0]
    got = f"{path} without these files"
    if runs:
        names = ", ".join(run.name for run in runs[:6])
        got = f"{path}, a folder of {len(runs)} runs ({names}); name one of them"
    raise InvalidValueError(
        f"report: expected a run's folder, with {CONFIG}, {METRICS} or {CHECKPOINTS} in it, got {got}"
    )


def read_metrics(path: Path) -> tuple[dict[str, Series], int | None]:
    """Reads a run's ``metrics.csv``, the table of Lightning's CSV logger.

    Lightning counts the step that has just been taken from 0; here a step is the number of steps taken. The loss
    of one objective is NaN in steps that skip it; ``train/loss`` is NaN only in a run that has diverged.

    Returns:
        Name of a metric -> its finite values; and the first step with a loss that isn't finite, or None.

    Raises:
        ValueError: The file isn't such a table.
    """
    series: dict[str, list[tuple[int, float]]] = {}
    diverged: int | None = None
    rows = csv.DictReader(decoded_lines(path), strict=True)
    try:
        for row in rows:
            step = int(row.pop("step")) + 1
            row.pop("epoch", None)
            for name, value in [(name, float(cell)) for name, cell in row.items() if cell]:
                if math.isfinite(value):
                    series.setdefault(name, []).append((step, value))
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
    return {name: Series(*map(tuple, zip(*points, strict=True))) for name, points in series.items()}, diverged


def _is_model(path: Path) -> bool:
    """Returns whether a folder is a saved model of this library, sentence-transformers or Transformers."""
    return any((path / name).is_file() for name in (MODULES, "config.json"))


def _read(number: int, alone: bool, name: str, folder: Path) -> RunRecord:
    latest_file = next(path for path in (folder / METRICS, folder / CONFIG, folder) if path.exists())
    changed = datetime.fromtimestamp(latest_file.stat().st_mtime, tz=UTC)
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
    for key in ("model", "data", "trainer"):
        fields.record(key, {})
    model = _place(fields, "export", folder / MODEL)
    metrics, diverged = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else ({}, None)
    start = {} if checkpoint is None else checkpoint.best.start
    metrics |= {
        name: Series((0, *metrics[name].steps), (value, *metrics[name].values))
        for name, value in start.items()
        if name in metrics and math.isfinite(value)
    }
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
    """Shortens the paths of runs to different names: their last parts, without ``version_0`` if possible."""
    parts = [folder.resolve().parts[1:] for folder in folders]
    above = [part[:-1] if part[-1].startswith("version_") and len(part) > 1 else part for part in parts]
    parts = above if len(set(above)) == len(above) else parts
    lengths = range(1, max(map(len, parts)) + 1)
    length = next(n for n in lengths if len({part[-n:] for part in parts}) == len(parts))
    return ["/".join(part[-length:]) for part in parts]
