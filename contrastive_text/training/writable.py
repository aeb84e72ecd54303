"""Whether a folder can be written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from contrastive_text.core.errors import DiskError


def check_writable(folder: Path, where: str) -> None:
    """Checks that a folder can be written to, or made; those around it are made.

    Args:
        folder: The folder.
        where: The option that names it.

    Raises:
        DiskError: It can't.
    """
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
