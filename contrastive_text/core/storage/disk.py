"""Files and folders that are written atomically, their temporary names, and locks."""

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
"""Pattern of the names of temporary files and folders. A file or folder has such a name until it is complete."""
_TEMPORARY = re.compile(r"\.contrastive-text\.(?P<host>.+)\.(?P<space>\d+)\.(?P<process>\d+)\.[0-9a-f]+\.tmp")
# The target's name is not part of it: SLURM's auto-requeue reads numbers out of every name with "hpc_ckpt_" in
# it.
_ABANDONED_AFTER = 3600.0
"""Seconds without a write after which a temporary file of any machine counts as abandoned."""
_used_names: set[str] = set()
"""Names of temporary files that this process is writing."""
_MOVE_LOCK = "contrastive-text"
"""Name of the lock file inside a folder, held while finished files move into the folder."""
_INNER_LOCK = ".folder.lock"
_NO_LOCK_ERRORS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # not on all systems
_WINDOWS = os.name == "nt"
_RUST_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Writes a file atomically: yields an open temporary file, which replaces ``path`` when the block ends.

    The file is written next to ``path`` under a random temporary name, flushed to the disk, and renamed. Whenever
    the process is killed, either the older or the newer file exists. A link at ``path`` is replaced, not
    followed.

    Args:
        path: Path of the file. Its folder must exist.

    Raises:
        DiskError: The folder can't be written to, or the disk is full. The older file is unchanged.


    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_file(Path(folder, "a.txt")) as file:
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
        flush_folder(path.parent)


@contextmanager
def atomic_folder(path: Path, first: str, last: str, stale: Iterable[str] = ()) -> Iterator[Path]:
    """Writes a folder: yields a temporary folder, whose files move to ``path`` when the block ends.

    Files move one by one, after all are complete and flushed to the disk. The manifest ``first`` moves before
    anything else changes. The key file ``last``, by which programs recognize a complete folder, is removed before
    any other file moves, and is moved last. Other files of an older folder stay, except those that match
    ``stale``. All files get the permissions of a new file.

    The temporary folder is inside the older folder, which may be a mounted disk or the only writable place.
    Without an older folder it is next to ``path``. If two processes write one folder, the second moves its files
    after the first has moved all of its files.

    Args:
        path: Path of the folder. A link to a folder is followed.
        first: Name of the manifest.
        last: Name of the key file.
        stale: Names or patterns, relative to the folder, of older files to remove unless new files replace them.
            They are read when the block ends.

    Raises:
        DiskError: ``path`` can't be written to, or the disk is full.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     with atomic_folder(Path(root, "model"), first="manifest", last="key") as folder:
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
        with hold_lock(path / _MOVE_LOCK, wait=True):
            _move_all(temporary, path, first, last, list(stale))


def _flush_all(folder: Path) -> None:
    """Flushes every file below a folder to the disk, and gives it the permissions of a new file."""
    probe = folder / secrets.token_hex(8)
    os.close(os.open(probe, _FLAGS | os.O_EXCL, 0o666))
    permissions = probe.stat().st_mode & 0o777
    probe.unlink()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            file.chmod(permissions)
            with file.open("rb+") as opened_file:
                os.fsync(opened_file.fileno())


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
    flush_folder(target)
    if os.path.lexists(target / last):
        (target / last).unlink()
        flush_folder(target)
    _remove_stale(target, stale, new=files)
    for name in folders:
        if (target / name).is_symlink() or (target / name).is_file():
            (target / name).unlink()  # files must not be written through a link
        (target / name).mkdir(exist_ok=True)
    for name in files:
        if str(name) not in (first, last):
            os.replace(source / name, target / name)
    for name in (*folders, Path()):
        flush_folder(target / name)
    os.replace(source / last, target / last)
    flush_folder(target)


def _remove_stale(folder: Path, patterns: list[str], new: list[Path]) -> None:
    """Removes files that match patterns and aren't replaced by new files, and folders that are then empty."""
    matches = {path.relative_to(folder) for pattern in patterns for path in folder.glob(pattern)} - set(new)
    for name in sorted(matches):
        is_linked = any((folder / parent).is_symlink() for parent in name.parents if parent != Path())
        if is_linked or ((folder / name).is_dir() and not (folder / name).is_symlink()):
            continue  # files behind a link may belong to someone else
        (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            if name.parent != Path():
                (folder / name.parent).rmdir()


def flush_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk, on file systems that can."""
    if _WINDOWS:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(folder: Path, where: str) -> Path:
    """Checks that a folder can be written to or created. Writes nothing.

    Args:
        folder: The folder.
        where: The option that names it.

    Returns:
        The folder, or the nearest folder around it that exists.

    Raises:
        DiskError: The folder can't be written to.
    """
    try:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(existing))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(existing))
        return existing
    except OSError as error:
        raise DiskError(
            error.errno or errno.EIO,
            f"{where}: expected a folder that can be written to, got {folder}: {error.strerror or error}; name "
            f"another, or move the existing file away",
        ) from error


@contextmanager
def hold_lock(path: Path, wait: bool = False) -> Iterator[bool]:
    """Holds the lock of a path, which one process at a time can hold, and yields whether it is held.

    The lock is a file next to the path. If the path is a folder and nothing can be written next to it, the lock
    is a file in the folder. The lock is released when the block or the process ends, even if it is killed.

    Args:
        path: The path, which need not exist. Its parent folders are created.
        wait: Whether to wait until another process releases the lock.

    Yields:
        Whether the lock is held. Without ``wait`` it is False while another process holds the lock. It is always
        True on a file system without locks.

    Raises:
        DiskError: The lock file can't be created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder, "a")) as mine:
        ...     with hold_lock(Path(folder, "a")) as again:
        ...         print(mine, again)
        True False
    """
    with _naming_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_sibling = not path.is_dir() or os.access(path.parent, os.W_OK | os.X_OK)
        lock_path = path.with_name(f".{path.name}.lock") if is_sibling else path / _INNER_LOCK
        lock = FileLock(lock_path, thread_local=False)
        try:
            lock.acquire(timeout=-1 if wait else 0, poll_interval=0.02)
            is_locked = True
        except Timeout:
            is_locked = False
        except OSError as error:
            if error.errno not in _NO_LOCK_ERRORS:
                raise
            is_locked = True
    try:
        yield is_locked
    finally:
        if is_locked and not _WINDOWS:
            lock_path.unlink(missing_ok=True)  # before the release, while no other process can hold it
        lock.release()


@contextmanager
def lock_output(path: Path) -> Iterator[None]:
    """Holds the lock of an output inside the block, so that no other process writes it.

    Args:
        path: A file or a folder. Its parent folders are created.

    Raises:
        OSError: Its parent folder can't be written to.
        ValueError: Another process is writing the output.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, lock_output(Path(folder, "v.npy")):
        ...     Path(folder, "v.npy").write_text("one writer")
        10
    """
    with hold_lock(Path(os.path.realpath(path))) as is_locked:
        if not is_locked:
            raise InvalidValueError(
                f"{path}: expected no other writer, got a process that writes it; wait until the process ends, "
                "or name another output"
            )
        yield


@contextmanager
def temporary_in(folder: Path) -> Iterator[Path]:
    """Yields a temporary path in a folder, named after machine and process. Removes it when the block ends."""
    name = f".contrastive-text.{platform.node()}.{_process_space()}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
    _used_names.add(name)
    try:
        yield folder / name
    finally:
        if os.path.lexists(folder / name):
            _remove(folder / name)
        _used_names.discard(name)


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes the temporary files that killed processes left in a folder, and nothing else. Returns their paths.

    Args:
        folder: A folder that ``atomic_file`` or ``atomic_folder`` wrote to. It may be missing.
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
    """Returns the number of the namespace of process ids; 0 if the system has only one.

    Containers of a machine may share its name and a folder, but don't see each other's processes.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_abandoned(path: Path) -> bool:
    parts = _TEMPORARY.fullmatch(path.name)
    if parts is None or path.name in _used_names:
        return False
    is_visible = parts["host"] == platform.node() and int(parts["space"]) == _process_space()
    if is_visible and not _is_alive(int(parts["process"])):
        return True
    try:
        return time.time() - path.lstat().st_mtime > _ABANDONED_AFTER
    except FileNotFoundError:
        return False


def _is_alive(process: int) -> bool:
    """Returns whether another process with an id runs on this machine. False for the id of this process."""
    if process == os.getpid():
        return False
    if os.name == "nt":
        return True  # on Windows signal 0 would end the process
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@contextmanager
def _naming_disk_errors(path: Path) -> Iterator[None]:
    """Converts errors of the disk, and errors at or near a path, to errors that name the path."""
    try:
        yield
    except ContrastiveTextError:
        raise
    except Exception as error:
        code = _error_number(error)
        if code in _DISK_ERRORS:
            is_full = code not in (errno.EROFS, errno.EIO)
            expected, todo = ("room for it", "make room") if is_full else ("a writable disk", "repair it")
            todo += ", and run the command again; the older file is unchanged"
        elif isinstance(error, OSError) and error.filename is not None and _is_near(error.filename, path):
            expected, todo = "a place that can be written to", "name another, or allow writing there"
        else:
            raise
        reason = getattr(error, "strerror", None) or error
        raise DiskError(code or errno.EIO, f"{path}: expected {expected}, got {reason}; {todo}") from error


def _error_number(error: Exception) -> int | None:
    """Returns the errno of an error. Rust libraries write the number into the text of their errors."""
    if isinstance(error, OSError):
        return error.errno
    match = _RUST_ERROR.search(str(error))
    return None if match is None else int(match[1])


def _is_near(filename: str | bytes, path: Path) -> bool:
    """Returns whether a file is at a path, next to it, above it, or is a temporary file."""
    place = Path(os.fsdecode(filename))
    is_near = place.parent == path.parent or path.is_relative_to(place)
    return is_near or _TEMPORARY.fullmatch(place.name) is not None
