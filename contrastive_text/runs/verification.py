"""Check of every byte of the files that the library wrote, against the digests that were written with them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from contrastive_text.core.errors import ContrastiveTextError, DiskError, MissingFileError
from contrastive_text.core.storage.checkpoints import verify_checkpoint
from contrastive_text.core.storage.disk import TEMPORARIES
from contrastive_text.core.storage.manifests import MANIFEST, Manifest
from contrastive_text.core.storage.records import MOST_BYTES
from contrastive_text.evaluation.cached import is_changed, is_kept
from contrastive_text.inference.vector_files import VectorRecord
from contrastive_text.inference.vector_files.files import UNFINISHED, record_of

_ANEW = "have it made anew"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a file.

    Args:
        path: The file.
        damage: What is wrong with it; None where nothing is.
        known: Whether anything was written that vouches for its bytes.
        every_byte: Whether a SHA-256 covers every byte. A checkpoint has the checksums of its archive, but
            none of the directory of the archive.
    """

    path: Path
    damage: str | None = None
    known: bool = True
    every_byte: bool = True


@dataclass(frozen=True, slots=True)
class Kind:
    """Something that the library writes, and how all of its bytes are checked.

    Args:
        is_it: Tells whether a file or a folder is one.
        check: Gives what is known of its files, the file itself or those in the folder; files of a folder that it
            leaves out are looked at on their own.
    """

    is_it: Callable[[Path], bool]
    check: Callable[[Path], Iterator[Found]]


def verify(path: Path) -> Iterator[Found]:
    """Reads all bytes of a file, or of all files below a folder, and gives what is known of each.

    Known are folders with a manifest (saved models, exports to ONNX, kept tokens), checkpoints, vectors and
    indexes with their record, unfinished vectors up to their last saved block and kept vectors of
    evaluations. Links to folders are not followed, and what is being written, or was when
    its process was killed, is left out. What can't be read is damaged.

    Args:
        path: A model, a checkpoint, a run's folder, or any folder that holds some.

    Raises:
        FileNotFoundError: There is nothing.
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
    """Yields what is known of a file, or of those of a folder that are one thing; the others go onto ``left``."""
    try:
        for kind in KINDS:
            if kind.is_it(path):
                yield from kind.check(path)
        if not path.is_dir():
            yield Found(path, known=False)  # unless something is known of it
            return
        left += [each for each in sorted(path.iterdir(), reverse=True) if not _is_left_out(each)]
    except OSError as error:
        yield Found(path, damage=_unread(error))


def _is_left_out(path: Path) -> bool:
    linked = os.path.islink(path) and os.path.isdir(path)  # a Path's own raise for what can't be read
    return linked or fnmatch(path.name, TEMPORARIES)


def _damage_of(path: Path, read: Callable[[], object]) -> str | None:
    """Says what a reader that checks what it reads has against a file; None where nothing."""
    try:
        read()
    except ContrastiveTextError as error:
        return str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return _unread(error)
    return None


def _unread(error: OSError) -> str:
    return f"can't be read ({error.strerror or error})"


def _in_manifest(folder: Path) -> Iterator[Found]:
    place, read = folder / MANIFEST, list[Manifest | None]()
    yield Found(place, damage=_damage_of(place, lambda: read.append(Manifest.read(folder))))
    for name, digest in read[0].files.items() if read and read[0] is not None else ():
        yield Found(folder / name, damage=digest.damage(folder / name))


def _in_checkpoint(path: Path) -> Iterator[Found]:
    yield Found(path, damage=_damage_of(path, lambda: verify_checkpoint(path)), every_byte=False)


def _has_record(path: Path) -> bool:
    """Returns whether the record of vectors is next to a file. One byte of the record may be wrong."""
    if not path.is_file():
        return False
    place = record_of(path)
    if not place.is_file() or place.stat().st_size > MOST_BYTES:
        return False
    try:
        content = place.read_bytes()
    except OSError:
        return True
    return b'"made_of"' in content or b'"vectors"' in content


def _in_vectors(path: Path) -> Iterator[Found]:
    place, read = record_of(path), list[VectorRecord]()
    yield Found(place, damage=_damage_of(place, lambda: read.append(VectorRecord.read(path, _ANEW))))
    for file, digest in read[0].digests(path).items() if read else ():
        grows = path.suffix == UNFINISHED and file == path
        yield Found(file, damage=digest.damage(file, grows=grows))


def _in_cache(path: Path) -> Iterator[Found]:
    yield Found(path, damage="changed bytes" if is_changed(path) else None)


KINDS = (
    Kind(is_it=lambda path: (path / MANIFEST).is_file(), check=_in_manifest),
    Kind(is_it=lambda path: path.suffix == ".ckpt" and path.is_file(), check=_in_checkpoint),
    Kind(is_it=_has_record, check=_in_vectors),
    Kind(is_it=lambda path: is_kept(path) and path.is_file(), check=_in_cache),
)
"""All that can be verified."""
