"""A lock on a name: of all processes one at a time holds it, and a killed one holds nothing."""

from __future__ import annotations

import os
from pathlib import Path

from contrastive_text.core.errors import DiskError, InvalidValueError


def take_lock(path: Path) -> int:
    """Makes the file of a lock and holds it; where the system has no locks, nothing is held.

    Returns:
        What ``release_lock`` takes.

    Raises:
        OSError: Its file can't be made.
        ValueError: It is held already.
    """
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise DiskError(
                f"{path}: expected a name that can be written to, got {error.strerror}; name another file"
            ) from error
        try:
            _flock(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InvalidValueError(
                f"{path.with_suffix('')}: expected to be alone with it, got another process that is writing it; "
                "let that one end, or name another file"
            ) from error
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # its holder has deleted it between the two steps


def release_lock(descriptor: int, path: Path) -> None:
    """Deletes the file of a lock, and holds it no more."""
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _flock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:  # some network file systems have no locks
        return
