"""Verification of saved files: compares all bytes with the digests that this library has stored."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple, TypeVar

from contrastive_text.core.errors import ContrastiveTextError, DiskError, MissingFileError
from contrastive_text.core.storage.checkpoints import verify_checkpoint
from contrastive_text.core.storage.disk import TEMPORARIES
from contrastive_text.core.storage.manifests import MANIFEST, Manifest
from contrastive_text.core.storage.records import MOST_BYTES
from contrastive_text.evaluation.cached import is_cache_file, is_changed
from contrastive_text.inference.index_files import DATABASE, is_index, recorded_digests
from contrastive_text.inference.vector_files import UNFINISHED, VectorRecord, record_path

_T = TypeVar("_T")
_REMAKE = "make the vectors again"


class FileCheck(NamedTuple):
    """Result of the verification of one file.

    Args:
        path: The file.
        damage: Description of the damage; None if there is none.
        has_digest: Whether a digest of this library exists for the file.
        every_byte: Whether a SHA-256 covers every byte. A checkpoint has the checksums of its archive, but no
            checksum of the archive's directory.
    """

    path: Path
    damage: str | None = None
    has_digest: bool = True
    every_byte: bool = True


def verify(path: Path) -> Iterator[FileCheck]:
    """Reads all bytes of a file, or of all files below a folder, and compares them with their digests.

    Files with a digest are folders with a manifest (saved models, exports to ONNX, saved tokens), checkpoints,
    vectors with their record, the vectors of indexes, unfinished vectors up to their last saved block, and cached
    vectors of evaluations. Links to folders are not followed. Temporary files of a running or killed process are
    skipped. A file that can't be read is damaged.

    Args:
        path: A model, a checkpoint, a run's folder, or any folder that contains some.

    Raises:
        FileNotFoundError: The path doesn't exist.
        OSError: The system can't access the path.
    """
    try:
        there = path.exists()
    except OSError as error:  # a name that no file can have, a folder that may not be entered
        message = f"{path}: expected a file or a folder, got {error.strerror}; check the name"
        raise DiskError(error.errno or errno.EIO, message) from error
    if not there:
        raise MissingFileError(f"{path}: expected a file or a folder, got no such path; check the name")
    done: set[Path] = set()
    pending = [path]
    while pending:  # no recursion, because folders may be deeper than its limit
        current = pending.pop()
        for result in () if current in done else _results(current, pending):
            if result.path not in done:
                done.add(result.path)
                yield result


def _results(path: Path, pending: list[Path]) -> Iterator[FileCheck]:
    """Verifies a file, or the manifest of a folder, and adds the content of a folder to ``pending``."""
    try:
        if (path / MANIFEST).is_file():
            yield from _in_manifest(path)
        elif is_index(path):
            yield from _in_index(path)
        elif path.is_file():
            yield from _in_file(path)
        if not path.is_dir():
            yield FileCheck(path, has_digest=False)  # the caller skips it if a result of this path came before
            return
        pending += [entry for entry in sorted(path.iterdir(), reverse=True) if not _is_skipped(entry)]
    except OSError as error:
        yield FileCheck(path, damage=_unread(error))


def _is_skipped(path: Path) -> bool:
    linked = os.path.islink(path) and os.path.isdir(path)  # Path's own methods raise if it can't be read
    return linked or fnmatch(path.name, TEMPORARIES)


def _read(path: Path, read: Callable[[], _T]) -> tuple[_T | None, str | None]:
    """Reads a file by a function that checks it. Returns its result or None, and the damage as text or None."""
    try:
        return read(), None
    except ContrastiveTextError as error:
        return None, str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return None, _unread(error)


def _unread(error: OSError) -> str:
    return f"can't be read ({error.strerror or error})"


def _in_manifest(folder: Path) -> Iterator[FileCheck]:
    manifest_path = folder / MANIFEST
    manifest, damage = _read(manifest_path, lambda: Manifest.read(folder))
    yield FileCheck(manifest_path, damage)
    for name, digest in manifest.files.items() if manifest else ():
        yield FileCheck(folder / name, digest.damage(folder / name))


def _in_index(folder: Path) -> Iterator[FileCheck]:
    digests, damage = _read(folder / DATABASE, lambda: recorded_digests(folder))
    if damage is not None:  # its own bytes have no digest
        yield FileCheck(folder / DATABASE, damage)
    for file, digest in digests.items() if digests else ():
        yield FileCheck(file, digest.damage(file))


def _in_file(path: Path) -> Iterator[FileCheck]:
    if path.suffix == ".ckpt":
        _, damage = _read(path, lambda: verify_checkpoint(path))
        yield FileCheck(path, damage, every_byte=False)
    if _has_record(path):
        record_file = record_path(path)
        record, damage = _read(record_file, lambda: VectorRecord.read(path, _REMAKE))
        yield FileCheck(record_file, damage)
        for file, digest in record.digests(path).items() if record else ():
            grows = path.suffix == UNFINISHED and file == path
            yield FileCheck(file, digest.damage(file, grows=grows))
    if is_cache_file(path):
        yield FileCheck(path, "changed bytes" if is_changed(path) else None)


def _has_record(path: Path) -> bool:
    """Returns whether a file has a record of vectors next to it, even if one byte of the record is wrong."""
    record_file = record_path(path)
    if not record_file.is_file() or record_file.stat().st_size > MOST_BYTES:
        return False
    try:
        content = record_file.read_bytes()
    except OSError:
        return True
    return b'"made_of"' in content or b'"vectors"' in content
