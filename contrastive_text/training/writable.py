"""Whether a folder can be written to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from contrastive_text.core.errors import DiskError


def check_writable(folder: Path, where: str) -> Path:
    """Checks that a folder can be written to, or made; returns the one that is there, itself or one around it.

    Nothing is written.

    Args:
        folder: The folder.
        where: The option that names it.

    Raises:
        DiskError: It can't.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(there))
        if not os.access(there, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(there))
        return there
    except OSError as error:
        raise DiskError(
            error.errno or errno.EIO,
            f"{where}: expected a folder that can be written to, got {folder}: {error.strerror or error}; name "
            "another, or move away what is there",
        ) from error
