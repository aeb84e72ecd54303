"""Checkpoint files that are written whole or not at all, and checked before they are read."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from contrastive_text.core.errors import DiskError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.storage.checkpoints import verify_checkpoint
from contrastive_text.core.storage.disk import remove_abandoned, replacing
from contrastive_text.core.storage.weights import check_dense


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes each checkpoint whole or not at all, and compares its checksums before it is read.

    For ``Trainer(plugins=[AtomicCheckpointIO()])``; a ``Run`` uses it by default. A checkpoint is written to a
    temporary file in its folder, flushed to the disk, and renamed. Whenever the process is killed, the older file
    or the newer one is there. Paths in a store, such as ``s3://``, are left to Lightning.

    Differs: Lightning's own writes to the system's temporary folder and moves from there, which isn't atomic
    between file systems, leaves the temporary behind when killed, and holds the whole checkpoint in memory twice.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Writes a checkpoint. It replaces an older file only when it is whole and on the disk.

        Args:
            checkpoint: Content from Lightning.
            path: Path of the file.
            storage_options: Options of Lightning, which has none for files.

        Raises:
            OSError: The disk is full, or the folder can't be written to. The older file is untouched.
        """
        place = local_path(path)
        if place is None or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(place.parent)
        with replacing(place) as file:
            noting = _NotingFile(file)
            try:
                torch.save(checkpoint, cast(IO[bytes], noting))  # torch only writes and flushes
            except Exception as error:
                if noting.failure is None:
                    raise
                raise DiskError(
                    noting.failure.errno or errno.EIO,
                    f"{place}: expected room for a checkpoint, got {noting.failure.strerror or noting.failure}; "
                    "earlier checkpoints are untouched, so free some space and resume",
                ) from error

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = "cpu",
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Reads a checkpoint after checking that it is whole.

        Args:
            path: Path of the file.
            map_location: As in ``torch.load``.
            weights_only: Whether to read only weights and plain data; None for True.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, or holds other objects than ``weights_only`` allows.
        """
        place = local_path(path)
        if place is None:
            remote: dict[str, Any] = super().load_checkpoint(path, map_location, weights_only)
            return remote
        verify_checkpoint(place)
        remove_abandoned(place.parent)
        try:
            loaded: dict[str, Any] = torch.load(
                place, map_location=map_location, weights_only=weights_only is not False
            )
        except Exception as error:  # whatever the unpickler raises
            if not is_failure(error):
                raise
            raise InvalidValueError(
                f"{place}: expected a checkpoint of weights and plain data, got a file that can't be read as one "
                f"({first_line(error)}); where you trust what else it holds, load it with "
                "weights_only=False"
            ) from error
        check_dense(loaded, str(place), "name a checkpoint that fit wrote")
        _check_finite(place, loaded)
        return loaded

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint; of a link the link alone. A missing file is no error."""
        place = local_path(path)
        if place is None or (place.is_dir() and not place.is_symlink()):
            super().remove_checkpoint(path)  # a store, or a sharded checkpoint
        else:
            place.unlink(missing_ok=True)


def _check_finite(place: Path, loaded: object) -> None:
    weights = loaded.get("state_dict") if isinstance(loaded, dict) else None
    for name, weight in weights.items() if isinstance(weights, dict) else ():
        if isinstance(weight, torch.Tensor) and bool(weight.isnan().any()):
            raise InvalidValueError(
                f"{place}: expected weights that are numbers, got NaN in {name}; the run that wrote it has "
                "diverged, so take an earlier checkpoint"
            )


class _NotingFile:
    """A file for ``torch.save`` that keeps the error of a failed write, which torch replaces by its own."""

    def __init__(self, file: BinaryIO) -> None:
        self.failure: OSError | None = None
        self._file = file

    def write(self, data: bytes) -> int:
        """Writes a part."""
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Does nothing: the file is flushed when it is whole."""


def local_path(path: str | Path) -> Path | None:
    """Returns the place of a file on this machine; None for one in a store, such as ``s3://``.

    Example:
        >>> local_path("file:///runs/a.ckpt"), local_path("s3://runs/a.ckpt")
        (PosixPath('/runs/a.ckpt'), None)
    """
    plain = os.fspath(path).removeprefix("file://")
    return None if "://" in plain else Path(plain)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copies a checkpoint. The copy is whole or not there.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The source is damaged.
    """
    verify_checkpoint(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file, source.open("rb") as whole:
        shutil.copyfileobj(whole, file, length=1 << 20)
