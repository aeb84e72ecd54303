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
from pytorch_lightning.cli import SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger

from contrastive_text.core.errors import ContrastiveTextError, DiskError, RunError
from contrastive_text.core.storage.disk import held, remove_abandoned, replacing
from contrastive_text.core.terminal import say
from contrastive_text.training.callbacks import ExportModel
from contrastive_text.training.checkpoint_io import local_path
from contrastive_text.training.run_log import RunLogger
from contrastive_text.training.shared_folders import check_same_checkpoint, check_shared
from contrastive_text.training.writable import check_writable

_COPIES = 4
"""Sizes of the weights that a run needs: of a checkpoint with two moments of AdamW, and of the exported model."""


class SavedConfig(SaveConfigCallback):
    """Saves the configuration of a run as ``config.yaml`` of its folder, whole or not at all.

    Differs: Lightning writes in the encoding of the locale, and through a link at the file's place.
    """

    _folder = Path()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Finds the folder on all ranks, which learn it from the first, and writes there on the first."""
        if not self.already_saved:
            self._folder = Path(trainer.log_dir or trainer.default_root_dir)
        super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Writes the configuration in UTF-8, in place of an older one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._folder / self.config_filename) as file:
            file.write(self.parser.dump(self.config, skip_none=False).encode())


class OwnFolders(Callback):
    """Holds the folders that a run writes to until it ends, after looking whether they can be written to.

    Two runs that write to one folder would replace each other's checkpoints, and each would export what the other
    has kept. A folder that can't be made or has no room is told before the first step, and so is one that not all
    machines see.

    Attributes:
        resumes: The checkpoint that the run goes on from; None to begin.
        log_end: Rows of the log that is there already, and the step, at that checkpoint.
        writes: Whether the run writes anything; otherwise folders are looked at, and left as they are.
    """

    def __init__(self) -> None:
        self.writes = True
        self.resumes: str | None = None
        self.log_end = (0, 0)
        self._held = ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Looks whether all processes go on from the same, before they read it."""
        if stage == "fit" and trainer.world_size > 1:
            check_same_checkpoint(trainer, self.resumes)

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
                for logger in trainer.loggers:
                    if isinstance(logger, RunLogger):
                        logger.experiment.keep(*self.log_end)
            except ContrastiveTextError as error:
                refused = error
        said = trainer.strategy.broadcast(None if refused is None else str(refused))
        if said is not None:
            self._held.close()
            raise refused or RunError(said)
        if trainer.num_nodes > 1:
            check_shared(trainer, _of_checkpoints(trainer, own))

    def _take(self, folders: Iterable[tuple[Path, str]], size: int) -> None:
        taken: set[Path] = set()
        for folder, where in folders:
            there = check_writable(folder, where)
            real = Path(os.path.realpath(folder))  # two names of one folder exclude each other
            if real in taken:
                continue
            taken.add(real)
            free = shutil.disk_usage(there).free
            if free < _COPIES * size:
                raise DiskError(
                    errno.ENOSPC,
                    f"{where}: expected room for {_COPIES * size / 1e6:,.0f} MB at {folder}, for a checkpoint "
                    f"and the model, got {free / 1e6:,.0f} MB; make room, or name another folder",
                )
            if self.writes and not self._held.enter_context(held(real)):
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


def _of_checkpoints(trainer: pl.Trainer, own: Path) -> list[Path]:
    """Returns the folders that all machines read from: the run's, and that of its best checkpoint."""
    best = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    places = [own, *(local_path(callback.dirpath) for callback in best if callback.dirpath)]
    return [place for place in places if place is not None]


def remove_leftovers(trainer: pl.Trainer) -> None:
    """Removes what killed runs beside this one left unfinished, and says so."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, CSVLogger):
            runs = Path(logger.root_dir).glob("*/")
            places = [place for run in runs for place in (run, run / "checkpoints")]
            for path in [path for place in places for path in remove_abandoned(place)]:
                say(f"Removed: {path}, left unfinished by a killed run")
