"""Names under which something is written until it is whole, and what killed processes leave under them."""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARIES = ".contrastive-text.*.tmp"
"""Their pattern."""
_NAMED = re.compile(r"\.contrastive-text\.(?P<host>.+)\.(?P<space>\d+)\.(?P<process>\d+)\.[0-9a-f]+\.tmp")
# The target's name is no part of it: SLURM's auto-requeue reads numbers out of every name with "hpc_ckpt_" in it.
_UNTOUCHED = 3600.0
"""Seconds after which a temporary that nobody has written to is given up, whoever made it."""
_in_use: set[str] = set()


def is_temporary(name: str) -> bool:
    """Whether a name is one of these."""
    return _NAMED.fullmatch(name) is not None


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes what killed processes left unfinished in a folder, and nothing else; gives what it removed.

    Args:
        folder: Where ``replacing`` or ``replacing_folder`` wrote; it may be missing.
    """
    abandoned = [path for path in folder.glob(TEMPORARIES) if _is_abandoned(path)]
    for path in abandoned:
        _remove(path)
    return abandoned


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)  # another process may remove it too
    else:
        path.unlink(missing_ok=True)


@contextmanager
def temporary_in(folder: Path) -> Iterator[Path]:
    """Yields a new name in a folder that tells who writes it: this program, machine and process."""
    name = f".contrastive-text.{platform.node()}.{_process_space()}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
    _in_use.add(name)
    try:
        yield folder / name
    finally:
        if os.path.lexists(folder / name):
            _remove(folder / name)
        _in_use.discard(name)


def _process_space() -> int:
    """Returns the number of the namespace that processes are numbered in; 0 where the system has one alone.

    Containers of one machine may share its name and a folder, but don't see each other's processes.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_abandoned(path: Path) -> bool:
    named = _NAMED.fullmatch(path.name)
    if named is None or path.name in _in_use:
        return False
    visible = named["host"] == platform.node() and int(named["space"]) == _process_space()
    if visible and not _is_alive(int(named["process"])):
        return True
    try:
        return time.time() - path.lstat().st_mtime > _UNTOUCHED
    except FileNotFoundError:
        return False


def _is_alive(process: int) -> bool:
    """Whether a process of this machine runs; of this very one only what it writes now counts."""
    if process == os.getpid():
        return False
    if os.name == "nt":
        return True  # there signal 0 would end it
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
