"""Checkpoint plugin of Lightning: writes files atomically and verifies their checksums before it reads them."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from contrastive_text.core.errors import DiskError, InvalidValueError
from contrastive_text.core.libraries import read_errors_as
from contrastive_text.core.storage.checkpoints import verify_checkpoint
from contrastive_text.core.storage.disk import atomic_file, remove_abandoned
from contrastive_text.core.storage.weights import check_dense


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning plugin that writes checkpoints atomically and verifies their checksums before reading.

    Use ``Trainer(plugins=[AtomicCheckpointIO()])``; a ``Run`` uses it by default. A checkpoint is written to a
    temporary file in its folder, flushed to the disk, and renamed. If the process is killed at any time, either
    the older or the newer file is complete. Lightning handles remote paths, such as ``s3://``.

    Differs: Lightning's ``TorchCheckpointIO`` writes to the system's temporary folder and moves the file. The
    move isn't atomic between file systems. A kill leaves the temporary file, and the whole checkpoint is in
    memory twice.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a checkpoint file atomically.

        It replaces an older file only after it is complete and on the disk.

        Args:
            checkpoint: Content of the checkpoint, from Lightning.
            path: Path of the file.
            storage_options: Storage options of Lightning; local files have none.

        Raises:
            OSError: The disk is full, or the folder can't be written to. The older file is untouched.
        """
        place = local_path(path)
        if place is None or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(place.parent)
        with atomic_file(place) as file:
            writer = _NotingFile(file)
            try:
                torch.save(checkpoint, cast(IO[bytes], writer))  # torch only writes and flushes
            except Exception as error:
                if writer.failure is None:
                    raise
                raise DiskError(
                    writer.failure.errno or errno.EIO,
                    f"{place}: expected room for a checkpoint, got {writer.failure.strerror or writer.failure}; "
                    "earlier checkpoints are untouched, so free some space and resume",
                ) from error

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = "cpu",
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint after verifying its checksums.

        Args:
            path: Path of the file.
            map_location: As in ``torch.load``.
            weights_only: Whether to read only weights and plain data; None for True.

        Raises:
            FileNotFoundError: The file doesn't exist.
            ValueError: The file is damaged, or has objects that ``weights_only`` doesn't allow.
        """
        place = local_path(path)
        if place is None:
            remote_content: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
            return remote_content
        verify_checkpoint(place)
        remove_abandoned(place.parent)
        expected = f"{place}: expected a checkpoint of weights and plain data"
        with read_errors_as(expected, "if you trust the file, load it with weights_only=False"):
            content: dict[str, Any] = torch.load(
                place, map_location=map_location, weights_only=weights_only is not False
            )
        check_dense(content, str(place), "name a checkpoint that fit wrote")
        _check_finite(place, content)
        return content

    def remove_checkpoint(self, path: str | Path) -> None:
        """Deletes a checkpoint; of a symbolic link only the link. A missing file is not an error."""
        place = local_path(path)
        if place is None or (place.is_dir() and not place.is_symlink()):
            super().remove_checkpoint(path)  # a remote path, or the folder of a sharded checkpoint
        else:
            place.unlink(missing_ok=True)


def _check_finite(place: Path, content: object) -> None:
    weights = content.get("state_dict") if isinstance(content, dict) else None
    for name, weight in weights.items() if isinstance(weights, dict) else ():
        if isinstance(weight, torch.Tensor) and bool(weight.isnan().any()):
            raise InvalidValueError(
                f"{place}: expected weights that are numbers, got NaN in {name}; the run that wrote it has "
                "diverged, so use an earlier checkpoint"
            )


class _NotingFile:
    """File for ``torch.save`` that stores the error of a failed write; torch raises a different error."""

    def __init__(self, file: BinaryIO) -> None:
        self.failure: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        """Writes bytes and stores the error if the write fails."""
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Does nothing on ``flush``: the checkpoint file is flushed after it is complete."""


def local_path(path: str | Path) -> Path | None:
    """Returns the local path of a file, or None if the file is remote, such as ``s3://``.

    Example:
        >>> local_path("file:///runs/a.ckpt"), local_path("s3://runs/a.ckpt")
        (PosixPath('/runs/a.ckpt'), None)
    """
    text = os.fspath(path).removeprefix("file://")
    return None if "://" in text else Path(text)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint file atomically, after verifying its checksums.

    Raises:
        FileNotFoundError: The source doesn't exist.
        ValueError: The source is damaged.
    """
    verify_checkpoint(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as file, source.open("rb") as source_file:
        shutil.copyfileobj(source_file, file, length=1 << 20)
