"""Which checkpoint of a run's folder the run goes on from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.storage.checkpoints import Checkpoint, read_checkpoint
from contrastive_text.core.storage.manifests import MODULES

CONFIG = "config.yaml"
"""Name of the configuration in the folder of a run."""
FINISHED = "finished"
"""Name of the file that says of a named folder that its run came to its end."""


class FinishedRun(NamedTuple):
    """What a run has left.

    Args:
        model: Where its model is; nothing is there of an encoder that can't be saved as a folder.
        best: Its best checkpoint; None where none was kept.
    """

    model: Path
    best: Path | None

    def __str__(self) -> str:
        """Returns where the model is, with what could be done next."""
        further = f"; to train on, give --ckpt_path {self.best} and the options of a longer run"
        return f"{self.model}{'' if self.best is None else further}"


def finished_run(folder: Path, config: Mapping[str, object]) -> FinishedRun | None:
    """Returns what a finished run has left; None for an unfinished one.

    A folder of models elsewhere may hold another run's: then a run counts as finished if its own folder says so.
    """
    model = _place(config, "export") or folder / "model"
    saved = _lies_in(folder, model) and (model / MODULES).is_file() and not resumable_in(folder)
    if not saved and not (folder / FINISHED).is_file():
        return None
    best = sorted((_place(config, "checkpoint") or folder / "checkpoints").glob("*.ckpt"))
    return FinishedRun(model, next(iter(best), None))


def latest_checkpoint(
    folder: Path, config: Mapping[str, object], where: str
) -> tuple[Checkpoint | None, list[str]]:
    """Returns the whole checkpoint of the most steps of a run, and what is wrong with damaged ones.

    Args:
        folder: Of the run.
        config: Its configuration.
        where: Name of the option, for the error.

    Raises:
        ValueError: There are damaged ones alone.
    """
    kept = _place(config, "checkpoint") or folder / "checkpoints"
    resumable, best = resumable_in(folder), sorted(kept.glob("*.ckpt"))
    if not _lies_in(folder, kept):
        begun = (folder / CONFIG).stat().st_mtime  # a former run may have had a folder of the same name
        best = [path for path in best if path.stat().st_mtime >= begun]
    sound, damaged = _read((*best, *resumable))
    if not _lies_in(folder, kept):
        sound = [each for each in sound if each.path in resumable or _wrote(folder, each)]
    started = config.get("ckpt_path")
    if not sound and isinstance(started, str):
        sound, more_damaged = _read([Path(started)])
        damaged += more_damaged
    if not sound and damaged:
        raise InvalidValueError(
            f"{where}: expected a whole checkpoint in {folder}, got {'; '.join(damaged)}; start it anew"
        )
    if not sound:
        return None, damaged
    return max(enumerate(sound), key=lambda numbered: (numbered[1].step, numbered[0]))[1], damaged


def kept_elsewhere(folder: Path, config: Mapping[str, object]) -> Path | None:
    """Returns the folder of a run's best checkpoint, if it isn't inside of the run's own."""
    kept = _place(config, "checkpoint") or folder / "checkpoints"
    return None if _lies_in(folder, kept) else kept


def resumable_in(folder: Path) -> list[Path]:
    """Returns the checkpoints that a run has left to be resumed from."""
    return sorted(folder.glob("resume-step=*.ckpt"))


def _read(paths: Iterable[Path]) -> tuple[list[Checkpoint], list[str]]:
    """Returns the whole ones of some checkpoints, and what is wrong with the others."""
    sound: list[Checkpoint] = []
    damaged: list[str] = []
    for path in paths:
        try:
            sound.append(read_checkpoint(path, to_resume=True))
        except (InvalidValueError, MissingFileError) as error:
            damaged.append(str(error))
    return sound, damaged


def _wrote(folder: Path, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint of a folder that runs may share is of the run in this folder."""
    return checkpoint.best.run == os.path.realpath(folder)


def _lies_in(folder: Path, inner: Path) -> bool:
    return Path(os.path.realpath(inner)).is_relative_to(os.path.realpath(folder))


def _place(config: Mapping[str, object], part: str) -> Path | None:
    inner = config.get(part)
    named = inner.get("dirpath") if isinstance(inner, Mapping) else None
    return Path(named) if isinstance(named, str) and named else None
