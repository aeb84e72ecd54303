"""Files and folders that are written whole or not at all, their temporary names, and locks."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from contrastive_text.core.errors import ContrastiveTextError, DiskError, InvalidValueError

TEMPORARIES = ".contrastive-text.*.tmp"
"""Pattern of the names under which a file or folder is written until it is whole."""
_TEMPORARY = re.compile(r"\.contrastive-text\.(?P<host>.+)\.(?P<space>\d+)\.(?P<process>\d+)\.[0-9a-f]+\.tmp")
# The target's name is no part of it: SLURM's auto-requeue reads numbers out of every name with "hpc_ckpt_" in it.
_UNTOUCHED = 3600.0
"""Seconds without a write after which a temporary of any machine counts as abandoned."""
_in_use: set[str] = set()
_MOVES = "contrastive-text"
"""Name in a folder whose lock is held while files move into it; the caller may hold the lock of the folder."""
_INSIDE = ".folder.lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # not on all systems
_WINDOWS = os.name == "nt"
_OF_RUST = re.compile(r"\(os error (\d+)\)")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yields an open file that takes its place, and replaces an older file there, once it is whole and on the
    disk.

    The file is written next to its place under a random temporary name, flushed, and renamed. Whenever the
    process is killed, the older file or the newer one is there. A link at the place is replaced, not followed.

    Args:
        path: The place. Its folder must exist.

    Raises:
        DiskError: The folder can't be written to, or the disk is full. The older file is untouched.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder, "a.txt")) as file:
        ...         _ = file.write(b"whole")
        ...     Path(folder, "a.txt").read_text()
        'whole'
    """
    with _naming_disk_errors(path), temporary_in(path.parent) as temporary:
        with os.fdopen(os.open(temporary, _FLAGS | os.O_EXCL, 0o666), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush_folder(path.parent)


@contextmanager
def replacing_folder(path: Path, first: str, last: str, stale: Iterable[str] = ()) -> Iterator[Path]:
    """Yields a folder to write to, whose files take their places one by one when all are whole and on the disk.

    The manifest ``first`` takes its place before anything else changes. The key file ``last``, without which no
    program takes the folder for a whole one, is removed before any other file moves, and comes last. Other files
    of an older folder stay, except those that ``stale`` names. All files get the permissions of a new file.

    Until then the new files are inside the older folder, which may be a mounted disk or the only place that can
    be written to. Without an older folder they are next to the place. If two processes write one folder, the
    second moves its files after the first has moved all of its own.

    Args:
        path: The place of the folder. A link to a folder is followed.
        first: Name of the manifest.
        last: Name of the key file.
        stale: Names or patterns, relative to the folder, of older files to remove unless new files replace them.
            They are read when all files are written.

    Raises:
        DiskError: The place can't be written to, or the disk is full.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     with replacing_folder(Path(root, "model"), first="manifest", last="key") as folder:
        ...         _ = [(folder / name).write_text(name) for name in ("manifest", "weights", "key")]
        ...     sorted(file.name for file in Path(root, "model").iterdir())
        ['key', 'manifest', 'weights']
    """
    path = path.resolve() if path.is_dir() else path
    remove_abandoned(path)
    with _naming_disk_errors(path), temporary_in(path if path.is_dir() else path.parent) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)
        yield temporary
        _flush_all(temporary)
        path.mkdir(exist_ok=True)
        with held(path / _MOVES, wait=True):
            _move_all(temporary, path, first, last, list(stale))


def _flush_all(folder: Path) -> None:
    """Flushes every file below a folder to the disk, with the permissions of a new file."""
    probe = folder / secrets.token_hex(8)
    os.close(os.open(probe, _FLAGS | os.O_EXCL, 0o666))
    permissions = probe.stat().st_mode & 0o777
    probe.unlink()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            file.chmod(permissions)
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())


def _move_all(source: Path, target: Path, first: str, last: str, stale: list[str]) -> None:
    inside = sorted(path.relative_to(source) for path in source.rglob("*"))
    folders = [path for path in inside if (source / path).is_dir()]
    files = [path for path in inside if path not in folders]
    for name in files:
        if (target / name).is_dir() and not (target / name).is_symlink():
            raise DiskError(
                errno.EISDIR, f"{target / name}: expected a file or nothing, got a folder; move it away"
            )
    os.replace(source / first, target / first)
    _flush_folder(target)
    if os.path.lexists(target / last):
        (target / last).unlink()
        _flush_folder(target)
    _remove_stale(target, stale, new=files)
    for name in folders:
        if (target / name).is_symlink() or (target / name).is_file():
            (target / name).unlink()  # no file is written through a link
        (target / name).mkdir(exist_ok=True)
    for name in files:
        if str(name) not in (first, last):
            os.replace(source / name, target / name)
    for name in (*folders, Path()):
        _flush_folder(target / name)
    os.replace(source / last, target / last)
    _flush_folder(target)


def _remove_stale(folder: Path, patterns: list[str], new: list[Path]) -> None:
    """Removes the files that match patterns and that no new file replaces, and folders that are then empty."""
    matches = {path.relative_to(folder) for pattern in patterns for path in folder.glob(pattern)} - set(new)
    for name in sorted(matches):
        linked = any((folder / above).is_symlink() for above in name.parents if above != Path())
        if linked or ((folder / name).is_dir() and not (folder / name).is_symlink()):
            continue  # files behind a link belong to somebody else
        (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            if name.parent != Path():
                (folder / name.parent).rmdir()


def _flush_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk, on file systems that can."""
    if _WINDOWS:
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(opened)
    finally:
        os.close(opened)


def check_writable(folder: Path, where: str) -> Path:
    """Checks that a folder can be written to, or made. Writes nothing.

    Args:
        folder: The folder.
        where: The option that names it.

    Returns:
        The folder, or the nearest folder around it that exists.

    Raises:
        DiskError: The folder can't be written to.
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


@contextmanager
def held(path: Path, wait: bool = False) -> Iterator[bool]:
    """Holds the lock of a path, which one process holds at a time, and yields whether it is held.

    The lock is a file next to the path. If the path is a folder and nothing can be written next to it, the lock
    is a file in the folder. The lock ends with the block or with its process, however that ends.

    Args:
        path: The path, which need not exist. Its parent folders are made.
        wait: Whether to wait until another process releases the lock.

    Yields:
        Whether the lock is held. Without ``wait`` it is False while another process holds the lock. It is always
        True on a file system without locks.

    Raises:
        DiskError: The file of the lock can't be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder, "a")) as mine:
        ...     with held(Path(folder, "a")) as again:
        ...         print(mine, again)
        True False
    """
    with _naming_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = not path.is_dir() or os.access(path.parent, os.W_OK | os.X_OK)
        place = path.with_name(f".{path.name}.lock") if beside else path / _INSIDE
        lock = FileLock(place, thread_local=False)
        try:
            lock.acquire(timeout=-1 if wait else 0, poll_interval=0.02)
            is_mine = True
        except Timeout:
            is_mine = False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            is_mine = True
    try:
        yield is_mine
    finally:
        if is_mine and not _WINDOWS:
            place.unlink(missing_ok=True)  # before the release: then no other process holds it
        lock.release()


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Keeps other processes from writing an output during the block.

    Args:
        path: A file or a folder. Its parent folders are made.

    Raises:
        OSError: The folder around it can't be written to.
        ValueError: Another process is writing it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, alone_with(Path(folder, "v.npy")):
        ...     Path(folder, "v.npy").write_text("one writer")
        10
    """
    with held(Path(os.path.realpath(path))) as mine:
        if not mine:
            raise InvalidValueError(
                f"{path}: expected to be alone with it, got another process that is writing it; let that one "
                "end, or name another"
            )
        yield


@contextmanager
def temporary_in(folder: Path) -> Iterator[Path]:
    """Yields a new name in a folder, with this machine and process in it, and removes its file at the end."""
    name = f".contrastive-text.{platform.node()}.{_process_space()}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
    _in_use.add(name)
    try:
        yield folder / name
    finally:
        if os.path.lexists(folder / name):
            _remove(folder / name)
        _in_use.discard(name)


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes the temporaries that killed processes left in a folder, and nothing else. Returns their paths.

    Args:
        folder: A folder that ``replacing`` or ``replacing_folder`` wrote to. It may be missing.
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


def _process_space() -> int:
    """Returns the number of the namespace in which processes are numbered; 0 if the system has only one.

    Containers of one machine may share its name and a folder, but don't see each other's processes.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_abandoned(path: Path) -> bool:
    named = _TEMPORARY.fullmatch(path.name)
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
    """Returns whether another process of this machine runs; this process only counts the names in use."""
    if process == os.getpid():
        return False
    if os.name == "nt":
        return True  # there signal 0 would end it
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@contextmanager
def _naming_disk_errors(path: Path) -> Iterator[None]:
    """Turns errors of the disk, and of places near a path, into errors that name the path; others pass."""
    try:
        yield
    except ContrastiveTextError:
        raise
    except Exception as error:
        number = _number(error)
        if number in _OF_THE_DISK:
            full = number not in (errno.EROFS, errno.EIO)
            expected, todo = ("room for it", "make room") if full else ("a disk that takes it", "put that right")
            todo += ", and do the same again; what was there is untouched"
        elif isinstance(error, OSError) and error.filename is not None and _is_near(error.filename, path):
            expected, todo = "a place that can be written to", "name another, or allow writing there"
        else:
            raise
        reason = getattr(error, "strerror", None) or error
        raise DiskError(number or errno.EIO, f"{path}: expected {expected}, got {reason}; {todo}") from error


def _number(error: Exception) -> int | None:
    """Returns the system's number of an error; libraries in Rust put it into the text of their own errors."""
    if isinstance(error, OSError):
        return error.errno
    named = _OF_RUST.search(str(error))
    return None if named is None else int(named[1])


def _is_near(filename: str | bytes, path: Path) -> bool:
    """Returns whether a file is at a path, next to it, above it, or a temporary."""
    place = Path(os.fsdecode(filename))
    near = place.parent == path.parent or path.is_relative_to(place)
    return near or _TEMPORARY.fullmatch(place.name) is not None
