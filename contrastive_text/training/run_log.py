"""Logger of a run, ``metrics.csv``: saved with every checkpoint, and continued from there by a resumed run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import CSVLogger, Logger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter
from pytorch_lightning.utilities import rank_zero_only

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import atomic_file, check_writable

LOG_ROWS = "log_rows"
"""Checkpoint key of the number of rows in the log."""


class LogRows(ExperimentWriter):
    """CSV writer that appends to an existing log and leaves it readable after a kill.

    Differs: Lightning's writer deletes an older log. It also rewrites the whole file in place when a new metric
    appears.
    """

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self._path = Path(self.metrics_file_path)
        self.metrics_keys, rows = self._read()
        self.count = len(rows)
        self._saves_next_row = False

    def _check_log_dir_exists(self) -> None:
        """Deletes no existing log file, unlike Lightning's writer."""

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        if not self._path.is_file():
            return [], []
        with self._path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return list(reader.fieldnames or ()), list(reader)

    def _write(self, names: list[str], rows: Sequence[Mapping[str, object]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        with atomic_file(self._path) as file:
            file.write(text.getvalue().encode())

    def save(self) -> None:
        """Appends to the log the rows since the last save, in UTF-8. A symbolic link is replaced by a file.

        Differs: Lightning writes in the encoding of the locale, and follows a link.
        """
        if not self.metrics:
            return
        self.count += len(self.metrics)
        is_own_file = self._path.is_file() and not self._path.is_symlink()
        if self._record_new_keys() or not is_own_file:
            self._write(self.metrics_keys, [*self._read()[1], *self.metrics])
        else:
            with self._path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.metrics_keys).writerows(self.metrics)
        self.metrics = []

    def log_hparams(self, params: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Writes the arguments of the module to a file. A symbolic link is replaced by a file."""
        if (path := self._path.with_name(self.NAME_HPARAMS_FILE)).is_symlink():
            path.unlink()
        super().log_hparams(params)

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Logs a row of metrics. Writes the first row after a checkpoint at once, as its step may be the same."""
        super().log_metrics(metrics_dict, step)
        if self._saves_next_row:
            self.save()
            self._saves_next_row = False

    def save_for_checkpoint(self) -> int:
        """Appends to the log the rows since the last save. Returns the number of rows in the file."""
        self.save()
        self._saves_next_row = True
        return self.count

    def truncate(self, count: int, step: int) -> None:
        """Deletes the rows that a run logged after a checkpoint.

        Args:
            count: Number of rows when the checkpoint was written.
            step: Step of the checkpoint. Lightning logs the metrics of that step after the checkpoint, with the
                number ``step - 1``.
        """
        names, rows = self._read()
        late = takewhile(lambda row: None not in row.values() and int(row["step"]) < step, rows[count:])
        rows_to_keep = [*rows[:count], *late]  # a kill may have left half a row
        if len(rows) > len(rows_to_keep):
            self._write(names, rows_to_keep)
        self.count = len(rows_to_keep)


class RunLogger(CSVLogger):
    """CSV logger of a run: logs to a named folder, or to a folder ``version_N`` that no other process uses.

    Differs: Lightning takes the first free number, so two runs that start together use the same folder.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> LogRows:
        """Writer of the log, under Lightning's name. Ranks other than the first have a dummy object."""
        if not isinstance(self._experiment, LogRows):
            self._experiment = LogRows(self.log_dir)
        return self._experiment

    def _get_next_version(self) -> int:
        number: int = super()._get_next_version()
        while vars(rank_zero_only)["rank"] == 0:  # set by Lightning, but not declared
            try:
                Path(self.root_dir, f"version_{number}").mkdir(parents=True)
                break
            except FileExistsError:
                check_writable(Path(self.root_dir), "trainer.default_root_dir")
                number += 1
            except OSError:
                check_writable(Path(self.root_dir, "version"), "trainer.default_root_dir")
                raise
        return number


def check_loggers(loggers: Iterable[Logger]) -> None:
    """Starts all loggers other than ``RunLogger`` before the data are read.

    Raises:
        ValueError: A logger can't start, such as a tracker whose server can't be reached.
    """
    for logger in loggers:
        if isinstance(logger, RunLogger):
            continue
        try:
            _ = logger.experiment  # type: ignore[attr-defined]  # all loggers have it, but it isn't declared
        except Exception as error:
            name, text = type(logger).__name__, " ".join(str(error).split())[:300]
            raise InvalidValueError(
                f"trainer.logger: expected a {name} that starts without errors, got {type(error).__name__}: "
                f"{text}; change "
                f"its options, or remove the logger"
            ) from error


def remove_empty_folders(loggers: Iterable[object]) -> None:
    """Deletes the log folders of a run that ended before it wrote a file."""
    for logger in loggers:
        if isinstance(logger, RunLogger) and vars(rank_zero_only)["rank"] == 0:
            with suppress(OSError):  # the folder doesn't exist, or isn't empty
                Path(logger.log_dir).rmdir()


FEWEST_POINTS = 50
"""Smallest number of logged steps of a run, so that the chart of a short run has a curve."""


class SaveLogWithCheckpoints(Callback):
    """Callback that saves the log before each checkpoint and stores the number of rows in the checkpoint.

    A short run is logged more often than every ``log_every_n_steps``: at least 50 times, or at every step.
    """

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Shortens the interval between logged steps in a short run."""
        options, steps = vars(trainer), trainer.estimated_stepping_batches  # set by Lightning, but not declared
        if steps < math.inf:
            options["log_every_n_steps"] = min(options["log_every_n_steps"], max(1, int(steps) // FEWEST_POINTS))

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: content from Lightning
    ) -> None:
        """Saves the log on the first rank, which also writes the checkpoint."""
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger) and trainer.is_global_zero:
                checkpoint[LOG_ROWS] = logger.experiment.save_for_checkpoint()
