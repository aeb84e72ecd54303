"""Folder of a run: detects whether a run starts, resumes or has finished, and locks the folder."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.cli import SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger

from contrastive_text.core.errors import (
    ContrastiveTextError,
    DiskError,
    InvalidValueError,
    MissingFileError,
    RunError,
)
from contrastive_text.core.storage.checkpoints import Checkpoint, archive_digest, read_checkpoint
from contrastive_text.core.storage.disk import (
    atomic_file,
    check_writable,
    hold_lock,
    remove_abandoned,
    temporary_in,
)
from contrastive_text.core.terminal import log_message
from contrastive_text.recipes.layers import read_config
from contrastive_text.training.callbacks import ExportModel
from contrastive_text.training.checkpoint_io import local_path
from contrastive_text.training.run_log import LOG_ROWS, RunLogger
from contrastive_text.training.stored_module import find_changes

CONFIG = "config.yaml"
"""Name of the configuration in the folder of a run."""
FINISHED = "finished"
"""Name of the file that marks a finished run in its folder."""
PATIENCE = 60.0
"""Seconds until a network's file system shows a file of one machine on all machines."""
_COPIES = 4
"""Disk space of a run in sizes of its weights: a checkpoint with two moments of AdamW, and the exported model."""
_MAY_DIFFER = (
    *("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.enable_progress_bar"),
    *("trainer.devices", "trainer.num_nodes", "data.num_workers", "resumable", "oversubscribe"),
    *("folder", "trainer.default_root_dir", "ckpt_path", "weights_only", "init_from", "keep_heads"),
)
"""Options that may change when a run is resumed: they change no step, or the checkpoint replaces them."""
_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Environment variable that makes torchrun use a new store of addresses after a restart (pytorch #167288)."""


def check_folder_options(folder: str | None, trainer: Mapping[str, object]) -> None:
    """Checks that a run with a named folder keeps its log and its checkpoints there.

    Raises:
        ValueError: The options disable the log or the checkpoints. Or torchrun may restart a run that has no
            folder, or whose processes wouldn't find each other.
    """
    most = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if most != "0" and folder is None:
        raise InvalidValueError(
            f"folder: expected the folder of a run that torchrun may restart (--max-restarts {most}), got no "
            "folder. A restarted run would begin again; give --folder runs/NAME"
        )
    if most != "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise InvalidValueError(
            f"torchrun: expected {_STORE}=1 in its environment next to --max-restarts {most}, got "
            f"{os.environ.get(_STORE, 'nothing')}. Restarted processes may use addresses of former processes; "
            f"export {_STORE}=1"
        )
    if folder is None:
        return
    required = {"logger": False, "enable_checkpointing": False}
    clashes = [f"trainer.{name} false" for name, value in required.items() if trainer[name] is value]
    clashes += [f"trainer.{name}" for name in ("fast_dev_run", "default_root_dir") if trainer[name]]
    if clashes:
        raise InvalidValueError(
            f"folder: expected a run that keeps its log and checkpoints in {folder}, got {', '.join(clashes)}; "
            f"remove these options"
        )


class RunFolder:
    """State of a run's folder: empty, a run to resume, or a finished run.

    Args:
        folder: The run's folder. It may be missing.
        config: The whole configuration of the run that starts.

    Attributes:
        model: Folder of the model of a finished run; None for an unfinished run.
        checkpoint: The checkpoint to resume from; None to begin.
        log_end: Number of rows of the log when that checkpoint was written, and its step.

    Raises:
        ValueError: The folder has other files, a run with other options, or only damaged checkpoints.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:  # Any: values of YAML
        self.folder = folder
        self.model: Path | None = None
        self.checkpoint: Checkpoint | None = None
        self.log_end = (0, 0)
        self._best: Path | None = None
        self._damaged: list[str] = []
        if not (folder / CONFIG).is_file():
            others = sorted(path.name for path in folder.glob("[!.]*"))
            if others:
                raise InvalidValueError(
                    f"folder: expected the folder of a run, or none yet, got {folder} with {others[0]} and "
                    f"without {CONFIG}; name another"
                )
            return
        saved = read_config(folder / CONFIG)
        if (folder / FINISHED).is_file():
            self.model = _dirpath(saved, "export") or folder / "model"
            best = (_dirpath(saved, "checkpoint") or folder / "checkpoints").glob("*.ckpt")
            self._best = next(iter(sorted(best)), None)
        else:
            self.checkpoint, self._damaged = _latest_checkpoint(folder, saved)
        if self.model is None and self.checkpoint is None:
            return
        if differing := changed_options(saved, config):
            raise InvalidValueError(
                f"folder: expected the options of the run in {folder}, got {', '.join(differing[:6])}; "
                "give the same, or name another folder"
            )
        if self.checkpoint is not None:
            state = torch.load(self.checkpoint.path, weights_only=True, mmap=True)
            self.log_end = int(state.get(LOG_ROWS, 0)), self.checkpoint.step

    def print_state(self) -> None:
        """Prints whether the run begins again, resumes or has finished."""
        for message in self._damaged:
            log_message(f"Left out: {message}")
        if self.model is not None:
            further = f"; to train on, give --ckpt_path {self._best} and the options of a longer run"
            log_message(
                f"Finished before: {self.folder}, whose model is {self.model}{further if self._best else ''}"
            )
        elif self.checkpoint is not None:
            log_message(f"Resuming {self.folder} from {self.checkpoint.summary}")
        elif (self.folder / CONFIG).is_file():
            log_message(f"Beginning again: the run in {self.folder} has no checkpoint yet")


def changed_options(saved: Mapping[str, Any], given: Mapping[str, Any], *free: str) -> list[str]:
    """Compares a saved configuration with a resumed run's. Returns a line for each option that must not change.

    Args:
        saved: Configuration in the run's folder. Any: what YAML can hold.
        given: Configuration of the run that starts.
        free: Further options that may differ.
    """
    return [
        str(change)
        for change in find_changes(saved, given)
        if not any(f"{change.name}.".startswith(f"{name}.") for name in (*_MAY_DIFFER, *free))
    ]


def find_resumable(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder that a stopped run saved to resume from."""
    return sorted(folder.glob("resume-step=*.ckpt"))


def _latest_checkpoint(folder: Path, config: Mapping[str, object]) -> tuple[Checkpoint | None, list[str]]:
    """Returns the undamaged checkpoint of a run with the most steps, and a message for each damaged checkpoint.

    Runs may share ``checkpoint.dirpath``. A checkpoint there counts only if this run has written it.
    """
    best_folder = _dirpath(config, "checkpoint") or folder / "checkpoints"
    resumable, best = find_resumable(folder), sorted(best_folder.glob("*.ckpt"))
    is_shared = not Path(os.path.realpath(best_folder)).is_relative_to(os.path.realpath(folder))
    if is_shared:
        start_time = (folder / CONFIG).stat().st_mtime  # a former run may have had a folder of the same name
        best = [path for path in best if path.stat().st_mtime >= start_time]
    sound: list[Checkpoint] = []
    damaged: list[str] = []
    for path in (*best, *resumable):
        try:
            checkpoint = read_checkpoint(path, to_resume=True)
        except (InvalidValueError, MissingFileError) as error:
            damaged.append(str(error))
            continue
        if not is_shared or path in resumable or checkpoint.best.run == os.path.realpath(folder):
            sound.append(checkpoint)
    if not sound and damaged:
        raise InvalidValueError(
            f"folder: expected a whole checkpoint in {folder}, got {'; '.join(damaged)}; start the run again"
        )
    return max(reversed(sound), key=lambda checkpoint_of_run: checkpoint_of_run.step, default=None), damaged


def _dirpath(config: Mapping[str, object], part: str) -> Path | None:
    inner = config.get(part)
    dirpath = inner.get("dirpath") if isinstance(inner, Mapping) else None
    return Path(dirpath) if isinstance(dirpath, str) and dirpath else None


class SaveConfig(SaveConfigCallback):
    """Callback that saves the configuration of a run atomically, as ``config.yaml`` in its folder.

    Differs: Lightning writes in the encoding of the locale, and follows a symbolic link.
    """

    _folder = Path()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Determines the run's folder on all ranks, and writes the configuration on the first rank."""
        if not self.already_saved:
            self._folder = Path(trainer.log_dir or trainer.default_root_dir)
        super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Writes the run's configuration to its folder, in UTF-8. It replaces an older file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._folder / self.config_filename) as file:
            file.write(self.parser.dump(self.config, skip_none=False, skip_validation=True).encode())


class LockFolders(Callback):
    """Callback that checks and locks the folders that a run writes to, until the run ends.

    Two runs that write to one folder would replace each other's checkpoints. Before the first step the callback
    refuses a folder that can't be made, has no room, is locked by another run, or isn't seen by all machines.

    Attributes:
        resumes: The checkpoint that the run resumes from; None to begin.
        log_end: Number of rows of the log when that checkpoint was written, and its step.
        writes: Whether the run writes anything. Otherwise folders are checked and not locked.
    """

    def __init__(self) -> None:
        self.writes = True
        self.resumes: str | None = None
        self.log_end = (0, 0)
        self._locks = ExitStack()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Checks that all processes resume from the same checkpoint, before they read it."""
        if stage == "fit" and trainer.world_size > 1:
            _check_same_checkpoint(trainer, self.resumes)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Checks and locks the folders, on the first rank for all.

        Raises:
            OSError: A folder can't be written to, or the disk has too little space.
            RuntimeError: Another run writes to a folder.
        """
        run_folder = Path(trainer.log_dir or trainer.default_root_dir)  # collective: all ranks must call log_dir
        failure: ContrastiveTextError | None = None
        if trainer.is_global_zero:
            try:
                size = sum(p.numel() * p.element_size() for p in pl_module.parameters())
                self._lock(_folders(trainer, run_folder), size)
                for logger in trainer.loggers:
                    if isinstance(logger, RunLogger):
                        logger.experiment.truncate(*self.log_end)
            except ContrastiveTextError as error:
                failure = error
        message = trainer.strategy.broadcast(None if failure is None else str(failure))
        if message is not None:
            self._locks.close()
            raise failure or RunError(message)
        if trainer.num_nodes > 1:
            _check_shared(trainer, _folders_of_checkpoints(trainer, run_folder))

    def _lock(self, folders: Iterable[tuple[Path, str]], size: int) -> None:
        locked_folders: set[Path] = set()
        for folder, where in folders:
            existing = check_writable(folder, where)
            real = Path(os.path.realpath(folder))  # two paths of one folder share a lock
            if real in locked_folders:
                continue
            locked_folders.add(real)
            free = shutil.disk_usage(existing).free
            if free < _COPIES * size:
                raise DiskError(
                    errno.ENOSPC,
                    f"{where}: expected room for {_COPIES * size / 1e6:,.0f} MB at {folder}, for a checkpoint "
                    f"and the model, got {free / 1e6:,.0f} MB; make room, or name another folder",
                )
            if self.writes and not self._locks.enter_context(hold_lock(real)):
                raise RunError(
                    f"{where}: expected a folder that no other run writes to, got {folder}, where another run "
                    f"is active; wait for its end, or name another folder"
                )

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Unlocks the folders, because Lightning skips ``teardown`` after an exception."""
        self._locks.close()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Unlocks the run's folders at the end of the run."""
        self._locks.close()


def _folders(trainer: pl.Trainer, run_folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields each folder on this machine that a run writes to, and the option that names it."""
    if trainer.loggers:
        yield run_folder.absolute(), "trainer.default_root_dir"
    for callback in vars(trainer)["callbacks"]:  # set by Lightning, but not declared
        if isinstance(callback, ExportModel):
            yield Path(callback.dirpath or run_folder / "model").absolute(), "export.dirpath"
        elif isinstance(callback, ModelCheckpoint) and callback.dirpath:
            place = local_path(callback.dirpath)
            if place is not None:
                yield place.absolute(), "checkpoint.dirpath"


def _folders_of_checkpoints(trainer: pl.Trainer, run_folder: Path) -> list[Path]:
    """Returns the folders that all machines read from: the run folder, and the folder of the best checkpoint."""
    best = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    places = [run_folder, *(local_path(callback.dirpath) for callback in best if callback.dirpath)]
    return [place for place in places if place is not None]


def remove_leftovers(trainer: pl.Trainer) -> None:
    """Deletes unfinished files of killed runs in folders next to this run's folder, and prints their paths."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, CSVLogger):
            runs = Path(logger.root_dir).glob("*/")
            places = [place for run in runs for place in (run, run / "checkpoints")]
            for path in [path for place in places for path in remove_abandoned(place)]:
                log_message(f"Removed: {path}, left unfinished by a killed run")


class _Identity(NamedTuple):
    """Identity of a checkpoint that ranks compare: name, size and checksums."""

    name: str
    size: int
    checksums: bytes

    def __str__(self) -> str:
        return f"{self.name} of {self.size:,} bytes"


def _check_same_checkpoint(trainer: pl.Trainer, path: str | None) -> None:
    """Checks that all ranks resume from one checkpoint, or all begin. All ranks call it.

    Raises:
        RuntimeError: The checkpoints of two ranks differ.
    """
    identity = _identity(path)
    first = trainer.strategy.broadcast(identity)
    expected, got = (value or "no checkpoint" for value in (first, identity))
    _agree(
        trainer, identity == first, f"expected to resume from {expected}, as the first process does, got {got}"
    )


def _identity(path: str | None) -> _Identity | None:
    if path is None or not os.path.isfile(path):
        return None if path is None else _Identity(os.path.basename(path), 0, b"")
    return _Identity(os.path.basename(path), os.path.getsize(path), archive_digest(path))


def _check_shared(trainer: pl.Trainer, folders: Iterable[Path]) -> None:
    """Checks that all machines see files that the first process writes into folders. All ranks call it.

    Raises:
        RuntimeError: A machine doesn't see them.
    """
    with ExitStack() as stack:
        probes: list[Path] = []
        if trainer.is_global_zero:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
                probes.append(stack.enter_context(temporary_in(folder)))
                probes[-1].touch()
        probes = trainer.strategy.broadcast(probes)  # relative paths start at each process's working directory
        unseen = next((probe.parent.absolute() for probe in probes if not _appears(probe)), None)
        _agree(trainer, unseen is None, f"expected to see what the first process writes to {unseen}, got nothing")


def _appears(probe: Path) -> bool:
    """Returns whether a file exists now or within ``PATIENCE`` seconds."""
    until = time.monotonic() + PATIENCE
    while not (is_seen := probe.is_file()) and time.monotonic() < until:
        time.sleep(0.2)
    return is_seen


def _agree(trainer: pl.Trainer, is_fine: bool, message: str) -> None:
    if trainer.strategy.reduce_boolean_decision(is_fine, all=True):
        return
    advice = (
        "several machines need one file system for the folders of a run: name one that all share, by the same "
        "path, and start the command in the same folder on each"
    )
    where = f"process {trainer.global_rank} on {platform.node()}"
    raise RunError(
        f"{where}: {'this machine has no error, but another machine has' if is_fine else message}; {advice}"
    )
