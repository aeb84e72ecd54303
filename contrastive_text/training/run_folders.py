"""The folders that a run writes to: its own alone, with room for what it will write, before its first step."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import rank_zero_only

from contrastive_text.core.disk import held
from contrastive_text.core.errors import ContrastiveTextError, DiskError, RunError
from contrastive_text.core.temporaries import remove_abandoned
from contrastive_text.core.terminal import say
from contrastive_text.training.callbacks import ExportModel
from contrastive_text.training.checkpoint_io import local_path

_COPIES = 4
"""Sizes of the weights that a run needs: of a checkpoint with two moments of AdamW, and of the exported model."""


class OwnFolders(Callback):
    """Holds the folders that a run writes to until it ends, after looking whether they can be written to.

    Two runs that write to one folder would replace each other's checkpoints, and each would export what the other
    has kept. A folder that can't be made or has no room is told before the first step.
    """

    def __init__(self) -> None:
        self._held = ExitStack()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks and takes hold, on the first rank for all.

        Raises:
            OSError: A folder that can't be written to, or without room.
            RuntimeError: Another run writes there.
        """
        own = Path(trainer.log_dir or trainer.default_root_dir)  # all ranks ask
        refused: ContrastiveTextError | None = None
        if trainer.is_global_zero:
            try:
                size = sum(p.numel() * p.element_size() for p in pl_module.parameters())
                self._take(_folders(trainer, own), size)
            except ContrastiveTextError as error:
                refused = error
        said = trainer.strategy.broadcast(None if refused is None else str(refused))
        if said is not None:
            self._held.close()
            raise refused or RunError(said)

    def _take(self, folders: Iterable[tuple[Path, str]], size: int) -> None:
        taken: set[Path] = set()
        for folder, where in folders:
            _check_writable(folder, where)
            real = Path(os.path.realpath(folder))  # two names of one folder exclude each other
            if real in taken:
                continue
            taken.add(real)
            free = shutil.disk_usage(real if real.is_dir() else real.parent).free
            if free < _COPIES * size:
                raise DiskError(
                    errno.ENOSPC,
                    f"{where}: expected room for {_COPIES * size / 1e6:,.0f} MB at {folder}, for a checkpoint "
                    f"and the model, got {free / 1e6:,.0f} MB; make room, or name another folder",
                )
            if not self._held.enter_context(held(real)):
                raise RunError(
                    f"{where}: expected a folder that no other run writes to, got {folder}, where one is at "
                    "work; wait for it, or name another folder"
                )

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Lets go: Lightning leaves ``teardown`` out."""
        self._held.close()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Lets go."""
        self._held.close()


def _folders(trainer: pl.Trainer, own: Path) -> Iterator[tuple[Path, str]]:
    """Yields each folder on this machine that a run writes to, and the option that names it."""
    if trainer.loggers:
        yield own.absolute(), "trainer.default_root_dir"
    for callback in vars(trainer)["callbacks"]:  # Lightning sets it, undeclared
        if isinstance(callback, ExportModel):
            yield Path(callback.dirpath or own / "model").absolute(), "export.dirpath"
        elif isinstance(callback, ModelCheckpoint) and callback.dirpath:
            place = local_path(callback.dirpath)
            if place is not None:
                yield place.absolute(), "checkpoint.dirpath"


def _check_writable(folder: Path, where: str) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(folder) and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(folder))
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as error:
        raise DiskError(
            error.errno or errno.EIO,
            f"{where}: expected a folder that can be written to, got {folder}: {error.strerror or error}; name "
            "another, or move away what is there",
        ) from error


class RunLogger(CSVLogger):
    """Logs to a folder ``version_N`` that no other process has got.

    Differs: Lightning looks for the first free number, and two runs that start together find the same.
    """

    def _get_next_version(self) -> int:
        number: int = super()._get_next_version()
        while vars(rank_zero_only)["rank"] == 0:  # set by Lightning, undeclared
            try:
                Path(self.root_dir, f"version_{number}").mkdir(parents=True)
                break
            except FileExistsError:
                _check_writable(Path(self.root_dir), "trainer.default_root_dir")
                number += 1
            except OSError:
                _check_writable(Path(self.root_dir, "version"), "trainer.default_root_dir")
                raise
        return number


def remove_leftovers(trainer: pl.Trainer) -> None:
    """Removes what killed runs beside this one left unfinished, and says so."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, CSVLogger):
            runs = Path(logger.root_dir).glob("*/")
            places = [place for run in runs for place in (run, run / "checkpoints")]
            for path in [path for place in places for path in remove_abandoned(place)]:
                say(f"Removed: {path}, left unfinished by a killed run")
