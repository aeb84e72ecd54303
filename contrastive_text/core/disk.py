"""Files and folders that are whole or not there, and locks on names."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from contrastive_text.core.errors import ContrastiveTextError, DiskError, InvalidValueError
from contrastive_text.core.temporaries import is_temporary, remove_abandoned, temporary_in

_MOVES = "contrastive-text"
"""Name in a folder whose lock is held while files move into it; those who write a folder may hold its own."""
_INSIDE = ".folder.lock"
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # not on all systems
_WINDOWS = os.name == "nt"
_OF_RUST = re.compile(r"\(os error (\d+)\)")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yields an open file that takes a place, and that of an older file there, once it is whole and on the disk.

    It is written beside its place under a name that nobody can foretell, flushed, and renamed. Whenever the
    process is killed, there is the older file or the newer one. A link at the place is replaced, not followed.

    Args:
        path: The place; its folder is there.

    Raises:
        DiskError: The folder can't be written to, or the disk is full; what was there is untouched.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder, "a.txt")) as file:
        ...         _ = file.write(b"whole")
        ...     Path(folder, "a.txt").read_text()
        'whole'
    """
    with _told(path), temporary_in(path.parent) as temporary:
        with os.fdopen(os.open(temporary, _FLAGS | os.O_EXCL, 0o666), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush_folder(path.parent)


@contextmanager
def replacing_folder(
    path: Path, last: str, first: str | None = None, stale: Iterable[str] = ()
) -> Iterator[Path]:
    """Yields a folder to write to, whose files take their places one by one when all are whole and on the disk.

    The key file ``last``, without which nobody takes the folder for a whole one, goes before any other file moves
    and comes last. What else lies in an older folder stays there, but for what ``stale`` names. All files get the
    permissions of any new file. Until then they lie inside of a folder that is there already, which may be a disk
    of its own or the one place that may be written to, and else beside it. Of two processes that write one
    folder, the second moves its files when the first has moved all of its own.

    Args:
        path: The folder's place; of a link to a folder, that folder.
        last: Name of the key file.
        first: Name of a manifest of the files. It takes its place before anything else is done, so that every
            state between the older files and the newer ones is known by it.
        stale: Names or patterns, relative to the folder, of older files that go unless new ones replace them;
            read when all is written.

    Raises:
        DiskError: The place can't be written to, or the disk is full.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     with replacing_folder(Path(root, "model"), last="key") as folder:
        ...         _ = (folder / "weights").write_text("1"), (folder / "key").write_text("2")
        ...     sorted(file.name for file in Path(root, "model").iterdir())
        ['key', 'weights']
    """
    path = path.resolve() if path.is_dir() else path
    remove_abandoned(path)
    with _told(path), temporary_in(path if path.is_dir() else path.parent) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)
        yield temporary
        _flush_all(temporary)
        path.mkdir(exist_ok=True)
        with held(path / _MOVES, wait=True):
            _move_all(temporary, path, last, first, list(stale))


def _flush_all(folder: Path) -> None:
    """Puts every file below a folder on the disk, with the permissions that a new file gets."""
    probe = folder / secrets.token_hex(8)
    os.close(os.open(probe, _FLAGS | os.O_EXCL, 0o666))
    permissions = probe.stat().st_mode & 0o777
    probe.unlink()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            file.chmod(permissions)
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())


def _move_all(source: Path, target: Path, last: str, first: str | None, stale: list[str]) -> None:
    inside = sorted(path.relative_to(source) for path in source.rglob("*"))
    folders = [path for path in inside if (source / path).is_dir()]
    files = [path for path in inside if path not in folders]
    for name in files:
        if (target / name).is_dir() and not (target / name).is_symlink():
            raise DiskError(
                errno.EISDIR, f"{target / name}: expected a file or nothing, got a folder; move it away"
            )
    if first is not None:
        os.replace(source / first, target / first)
        _flush_folder(target)
    if os.path.lexists(target / last):
        (target / last).unlink()
        _flush_folder(target)
    _remove_stale(target, stale, new=files)
    for name in folders:
        if (target / name).is_symlink() or (target / name).is_file():
            (target / name).unlink()  # nothing is written through a link, nor in place of what a link leads to
        (target / name).mkdir(exist_ok=True)
    for name in files:
        if str(name) not in (first, last):
            os.replace(source / name, target / name)
    for name in (*folders, Path()):
        _flush_folder(target / name)
    os.replace(source / last, target / last)
    _flush_folder(target)


def _remove_stale(folder: Path, patterns: list[str], new: list[Path]) -> None:
    """Removes the files that patterns name and new ones don't replace, and folders that are then empty."""
    found = {path.relative_to(folder) for pattern in patterns for path in folder.glob(pattern)} - set(new)
    for name in sorted(found):
        linked = any((folder / above).is_symlink() for above in name.parents if above != Path())
        if linked or ((folder / name).is_dir() and not (folder / name).is_symlink()):
            continue  # what a link leads to is another's
        (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            if name.parent != Path():
                (folder / name.parent).rmdir()


@contextmanager
def held(path: Path, wait: bool = False) -> Iterator[bool]:
    """Holds the lock of a name and tells whether it does; of all processes one at a time holds it.

    The lock is a file beside the name, or in the folder of that name where nothing may be written beside it. It
    ends with the block or with its process, however that ends.

    Args:
        path: What it is the lock of; it need not be there, and the folders around it are made.
        wait: Whether to wait until another process lets go, where one holds it.

    Yields:
        Whether the lock is held; without ``wait`` False where another process has it. Where the system, or
        the file system, has no locks, True.

    Raises:
        DiskError: The lock's file can't be made.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder, "a")) as mine:
        ...     with held(Path(folder, "a")) as again:
        ...         print(mine, again)
        True False
    """
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = not path.is_dir() or os.access(path.parent, os.W_OK | os.X_OK)
        place = path.with_name(f".{path.name}.lock") if beside else path / _INSIDE
        descriptor = _take_lock(place, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _let_go(descriptor, place)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Keeps other processes from writing an output meanwhile.

    Args:
        path: A file or a folder; the folders around it are made.

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


def _take_lock(place: Path, wait: bool) -> int | None:
    while True:
        descriptor = os.open(place, _FLAGS, 0o666)
        if not _flock(descriptor, wait):
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(place)):
                return descriptor
        os.close(descriptor)  # its holder has deleted it between the two steps


def _let_go(descriptor: int, place: Path) -> None:
    if _WINDOWS:
        os.close(descriptor)  # a file that anybody has open can't be removed there
        with suppress(PermissionError):
            place.unlink(missing_ok=True)
    else:
        place.unlink(missing_ok=True)  # first, so that nobody takes the lock of a file that then goes
        os.close(descriptor)


def _flock(descriptor: int, wait: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows and some network file systems have no such locks
        return True
    return True


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turns what a disk says into an answer that names the file; errors of other files pass."""
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
    """Returns the number of a system's error; libraries in Rust have it in the text of an error of their own."""
    if isinstance(error, OSError):
        return error.errno
    named = _OF_RUST.search(str(error))
    return None if named is None else int(named[1])


def _is_near(filename: str | bytes, path: Path) -> bool:
    """Whether a name is of a place, of what is around it, or of what is written for it."""
    place = Path(os.fsdecode(filename))
    near = place.parent == path.parent or path.is_relative_to(place)
    return near or is_temporary(place.name)


def _flush_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk too; file systems that can't flush a folder order it themselves."""
    if _WINDOWS:
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(opened)
    finally:
        os.close(opened)
