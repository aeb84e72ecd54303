"""What all machines of a run must see alike: the checkpoint that it goes on from, and its folders."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytorch_lightning as pl

from contrastive_text.core.errors import RunError
from contrastive_text.core.storage.disk import temporary_in

PATIENCE = 60.0
"""Seconds until a network's file system shows everywhere what was written on one machine."""
_END = 64


def check_same_checkpoint(trainer: pl.Trainer, path: str | None) -> None:
    """Checks that all ranks go on from one checkpoint, or all of them begin; all ranks call it.

    Args:
        trainer: Whose processes have met.
        path: The checkpoint that this rank goes on from; None to begin.

    Raises:
        RuntimeError: They would go on from different ones.
    """
    own = _identity(path)
    first = trainer.strategy.broadcast(own)
    _agree(
        trainer,
        own == first,
        f"expected to go on from {_named(first)}, as the first process does, got {_named(own)}",
    )


def check_shared(trainer: pl.Trainer, folders: Iterable[Path]) -> None:
    """Checks that all machines see what the first process writes into folders; all ranks call it.

    Raises:
        RuntimeError: One doesn't.
    """
    with ExitStack() as stack:
        probes: list[Path] = []
        if trainer.is_global_zero:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
                probes.append(stack.enter_context(temporary_in(folder)))
                probes[-1].touch()
        probes = trainer.strategy.broadcast(probes)  # relative ones from where each process was started
        unseen = next((probe.parent.absolute() for probe in probes if not _comes(probe)), None)
        _agree(trainer, unseen is None, f"expected to see what the first process writes to {unseen}, got nothing")


def _agree(trainer: pl.Trainer, well: bool, said: str) -> None:
    if trainer.strategy.reduce_boolean_decision(well, all=True):
        return
    todo = (
        "several machines need one file system for the folders of a run: name one that all share, by the same "
        "path, and start the command in the same folder on each"
    )
    where = f"process {trainer.global_rank} on {platform.node()}"
    raise RunError(f"{where}: {'all is well here, but not on another machine' if well else said}; {todo}")


def _identity(path: str | None) -> tuple[str, int, bytes] | None:
    """Returns name, size and last bytes of a checkpoint, which are its checksum; of a folder the name alone."""
    if path is None or not os.path.isfile(path):
        return None if path is None else (os.path.basename(path), 0, b"")
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        return os.path.basename(path), size, file.read()


def _named(identity: tuple[str, int, bytes] | None) -> str:
    return "no checkpoint" if identity is None else f"{identity[0]} of {identity[1]:,} bytes"


def _comes(probe: Path) -> bool:
    """Whether a file is seen, at once or in a while."""
    until = time.monotonic() + PATIENCE
    while not (found := probe.is_file()) and time.monotonic() < until:
        time.sleep(0.2)
    return found
