"""The log of a run, ``metrics.csv``: whole up to every checkpoint, and taken up where a checkpoint stands."""

from __future__ import annotations

import csv
import io
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
from contrastive_text.core.storage.disk import check_writable, replacing

LOG_ROWS = "log_rows"
"""Where a checkpoint keeps how many rows the log of its run had."""


class LogRows(ExperimentWriter):
    """Writes a log that a kill leaves whole, after the rows that are there.

    Differs: Lightning's deletes an older log, and writes all of it anew in place when a figure comes first.
    """

    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        self._place = Path(self.metrics_file_path)
        self.metrics_keys, rows = self._read()
        self.count = len(rows)
        self._at_once = False

    def _check_log_dir_exists(self) -> None:
        """Deletes nothing."""

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        if not self._place.is_file():
            return [], []
        with self._place.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return list(reader.fieldnames or ()), list(reader)

    def _write(self, names: list[str], rows: Sequence[Mapping[str, object]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        with replacing(self._place) as file:
            file.write(text.getvalue().encode())

    def save(self) -> None:
        """Appends the rows that were logged since, in UTF-8; a link at the log's place is replaced.

        Differs: Lightning writes in the encoding of the locale, and through a link.
        """
        if not self.metrics:
            return
        self.count += len(self.metrics)
        begun = self._place.is_file() and not self._place.is_symlink()
        if self._record_new_keys() or not begun:
            self._write(self.metrics_keys, [*self._read()[1], *self.metrics])
        else:
            with self._place.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.metrics_keys).writerows(self.metrics)
        self.metrics = []

    def log_hparams(self, params: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Writes the arguments of the module; a link at the file's place is replaced."""
        if (place := self._place.with_name(self.NAME_HPARAMS_FILE)).is_symlink():
            place.unlink()
        super().log_hparams(params)

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """Takes in a row; the first after a checkpoint, which may be of its step, is written at once."""
        super().log_metrics(metrics_dict, step)
        if self._at_once:
            self.save()
            self._at_once = False

    def save_for_checkpoint(self) -> int:
        """Appends what was logged since, and returns how many rows there are."""
        self.save()
        self._at_once = True
        return self.count

    def keep(self, count: int, step: int) -> None:
        """Drops what a run logged after a checkpoint.

        Args:
            count: Rows when it was written.
            step: Its step; Lightning logs the figures of that step after it, under the number before.
        """
        names, rows = self._read()
        late = takewhile(lambda row: None not in row.values() and int(row["step"]) < step, rows[count:])
        kept = [*rows[:count], *late]  # a kill may have left half a row
        if len(rows) > len(kept):
            self._write(names, kept)
        self.count = len(kept)


class RunLogger(CSVLogger):
    """Logs to a folder ``version_N`` that no other process has got, or to a named one.

    Differs: Lightning looks for the first free number, and two runs that start together find the same.
    """

    @property
    @rank_zero_experiment
    def experiment(self) -> LogRows:
        """What writes the log, under Lightning's name for it; other ranks than the first have a stand-in."""
        if not isinstance(self._experiment, LogRows):
            self._experiment = LogRows(self.log_dir)
        return self._experiment

    def _get_next_version(self) -> int:
        number: int = super()._get_next_version()
        while vars(rank_zero_only)["rank"] == 0:  # set by Lightning, undeclared
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
    """Has the loggers beside the run's own begin, before the data are read.

    Raises:
        ValueError: One that can't, such as a tracker whose server isn't there.
    """
    for logger in loggers:
        if isinstance(logger, RunLogger):
            continue
        try:
            _ = logger.experiment  # type: ignore[attr-defined]  # of all of them, but not declared
        except Exception as error:
            name, said = type(logger).__name__, " ".join(str(error).split())[:300]
            raise InvalidValueError(
                f"trainer.logger: expected a {name} that can log, got {type(error).__name__}: {said}; change its "
                "options, or leave it out"
            ) from error


def give_back_folders(loggers: Iterable[object]) -> None:
    """Removes the folders of a run that has ended before anything was written into them."""
    for logger in loggers:
        if isinstance(logger, RunLogger) and vars(rank_zero_only)["rank"] == 0:
            with suppress(OSError):  # it isn't there, or not empty
                Path(logger.log_dir).rmdir()


class LogInCheckpoints(Callback):
    """Has the log on the disk before a checkpoint is, and notes in the checkpoint how many rows it has."""

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: what Lightning puts into it
    ) -> None:
        """Writes what was logged, on the first rank, which writes the checkpoint too."""
        for logger in trainer.loggers:
            if isinstance(logger, RunLogger) and trainer.is_global_zero:
                checkpoint[LOG_ROWS] = logger.experiment.save_for_checkpoint()
