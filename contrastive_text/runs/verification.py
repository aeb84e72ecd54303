"""Verification of files: compares every byte with the digests that the library wrote."""

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
from contrastive_text.evaluation.cached import is_changed, is_kept
from contrastive_text.inference.vector_files import UNFINISHED, VectorRecord, record_of

_T = TypeVar("_T")
_ANEW = "have it made anew"


class Found(NamedTuple):
    """Result of the check of a file.

    Args:
        path: The file.
        damage: Description of the damage; None if there is none.
        known: Whether a digest of this library covers the file.
        every_byte: Whether a SHA-256 covers every byte. A checkpoint has the checksums of its archive, but no
            checksum of the archive's directory.
    """

    path: Path
    damage: str | None = None
    known: bool = True
    every_byte: bool = True


def verify(path: Path) -> Iterator[Found]:
    """Reads all bytes of a file, or of all files below a folder, and compares them with their digests.

    Files with a digest are folders with a manifest (saved models, exports to ONNX, saved tokens), checkpoints,
    vectors and indexes with their record, unfinished vectors up to their last saved block, and cached vectors of
    evaluations. Links to folders are not followed. Temporary files of a running or killed process are skipped. A
    file that can't be read is damaged.

    Args:
        path: A model, a checkpoint, a run's folder, or any folder that contains some.

    Raises:
        FileNotFoundError: The path doesn't exist.
        OSError: The path can't be looked at.
    """
    try:
        there = path.exists()
    except OSError as error:  # a name that no file can have, a folder that may not be entered
        said = (
            f"{path}: expected a file or a folder, got none that can be read ({error.strerror}); check the name"
        )
        raise DiskError(error.errno or errno.EIO, said) from error
    if not there:
        raise MissingFileError(f"{path}: expected a file or a folder, got none; check the name")
    done: set[Path] = set()
    left = [path]
    while left:  # no calls inside each other: folders may be deeper than those
        place = left.pop()
        for found in () if place in done else _looked_at(place, left):
            if found.path not in done:
                done.add(found.path)
                yield found


def _looked_at(path: Path, left: list[Path]) -> Iterator[Found]:
    """Yields the results for a file or a model's folder; adds the content of a folder to ``left``."""
    try:
        if (path / MANIFEST).is_file():
            yield from _in_manifest(path)
        elif path.is_file():
            yield from _in_file(path)
        if not path.is_dir():
            yield Found(path, known=False)  # unless something is known of it
            return
        left += [each for each in sorted(path.iterdir(), reverse=True) if not _is_left_out(each)]
    except OSError as error:
        yield Found(path, damage=_unread(error))


def _is_left_out(path: Path) -> bool:
    linked = os.path.islink(path) and os.path.isdir(path)  # a Path's own raise for what can't be read
    return linked or fnmatch(path.name, TEMPORARIES)


def _read(path: Path, read: Callable[[], _T]) -> tuple[_T | None, str | None]:
    """Returns the result of a reader that checks its input, or None and a description of the damage."""
    try:
        return read(), None
    except ContrastiveTextError as error:
        return None, str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return None, _unread(error)


def _unread(error: OSError) -> str:
    return f"can't be read ({error.strerror or error})"


def _in_manifest(folder: Path) -> Iterator[Found]:
    place = folder / MANIFEST
    manifest, damage = _read(place, lambda: Manifest.read(folder))
    yield Found(place, damage)
    for name, digest in manifest.files.items() if manifest else ():
        yield Found(folder / name, digest.damage(folder / name))


def _in_file(path: Path) -> Iterator[Found]:
    if path.suffix == ".ckpt":
        _, damage = _read(path, lambda: verify_checkpoint(path))
        yield Found(path, damage, every_byte=False)
    if _has_record(path):
        place = record_of(path)
        record, damage = _read(place, lambda: VectorRecord.read(path, _ANEW))
        yield Found(place, damage)
        for file, digest in record.digests(path).items() if record else ():
            grows = path.suffix == UNFINISHED and file == path
            yield Found(file, digest.damage(file, grows=grows))
    if is_kept(path):
        yield Found(path, "changed bytes" if is_changed(path) else None)


def _has_record(path: Path) -> bool:
    """Returns whether the record of vectors is next to a file. One byte of the record may be wrong."""
    place = record_of(path)
    if not place.is_file() or place.stat().st_size > MOST_BYTES:
        return False
    try:
        content = place.read_bytes()
    except OSError:
        return True
    return b'"made_of"' in content or b'"vectors"' in content
