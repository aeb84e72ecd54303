"""Every byte of what the library wrote, held against the digests that were written with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from contrastive_text.core.errors import ContrastiveTextError, DiskError, MissingFileError
from contrastive_text.core.storage.checkpoints import is_sealed, verify_checkpoint
from contrastive_text.core.storage.disk import TEMPORARIES
from contrastive_text.core.storage.manifests import MANIFEST, FileDigest, Manifest, read_sealed
from contrastive_text.core.storage.records import MOST_BYTES
from contrastive_text.evaluation.cached import is_changed, is_kept
from contrastive_text.inference.vector_files import VectorRecord
from contrastive_text.inference.vector_files.formats import UNFINISHED, record_of

_ANEW = "have it made anew"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a file.

    Args:
        path: The file.
        damage: What is wrong with it; None where nothing is.
        known: Whether anything was written that vouches for its bytes.
        every_byte: Whether that is a digest of every one of them; a checkpoint that Lightning alone wrote has the
            checksums of the archive that it is, which leave out the archive's own directory.
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
    indexes with their record, unfinished vectors and mined rows up to their last saved block, kept vectors of
    evaluations, and what a sweep notes. Links to folders are not followed, and what is being written, or was when
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
    digests = read[0].files if read and read[0] is not None else {}
    for name, digest in digests.items():
        one = Manifest({name: digest}).damage(folder, whole=True)
        yield Found(folder / name, damage=one[0].removeprefix(f"{name}: ") if one else None)


def _in_checkpoint(path: Path) -> Iterator[Found]:
    damage = _damage_of(path, lambda: verify_checkpoint(path))
    yield Found(path, damage=damage, every_byte=damage is not None or is_sealed(path))


def _recorded(path: Path) -> bytes:
    """Returns the record beside a file, such as that of vectors; empty for none, a word if it can't be read."""
    if not path.is_file():
        return b""
    place = record_of(path)
    if not place.is_file() or place.stat().st_size > MOST_BYTES:
        return b""
    try:
        return place.read_bytes()
    except OSError:
        return b'"vectors"'


def _has_record(path: Path) -> bool:
    """Whether a record of vectors lies beside a file; one byte of it may be wrong."""
    content = _recorded(path)
    return not _is_mined(path) and (b'"made_of"' in content or b'"vectors"' in content)


def _is_mined(path: Path) -> bool:
    """Whether a file holds the rows of a mining that isn't finished."""
    return path.suffix == UNFINISHED and b'"report"' in _recorded(path)


def _in_mined(path: Path) -> Iterator[Found]:
    place, kept = record_of(path), list[dict[str, Any]]()
    yield Found(place, damage=_damage_of(place, lambda: kept.append(read_sealed(place, _ANEW))))
    for record in kept:
        try:
            damage = FileDigest.of_json(record["rows"]).damage(path, grows=True)
        except OSError as error:
            damage = _unread(error)
        yield Found(path, damage=damage)


def _in_vectors(path: Path) -> Iterator[Found]:
    place = record_of(path)
    yield (found := Found(place, damage=_damage_of(place, lambda: VectorRecord.read(path, _ANEW))))
    if found.damage:
        return
    for file, digest in VectorRecord.read(path, _ANEW).digests(path).items():
        grows = path.suffix == UNFINISHED and file == path
        try:
            damage = digest.damage(file, grows=grows)
        except OSError as error:
            damage = _unread(error)
        yield Found(file, damage=damage)


def _in_cache(path: Path) -> Iterator[Found]:
    yield Found(path, damage="changed bytes" if is_changed(path) else None)


def _in_record(path: Path) -> Iterator[Found]:
    yield Found(path, damage=_damage_of(path, lambda: read_sealed(path, _ANEW)))


def _is_of_a_sweep(path: Path) -> bool:
    plan = path.name == "plan.json" and (path.parent / "cells").is_dir()
    run, stage = path.parent.name.startswith("seed-"), path.parent.name.startswith("stage-")
    return path.is_file() and (plan or (path.name, True) in (("cell.json", run), ("stage.json", stage)))


KINDS = (
    Kind(is_it=lambda path: (path / MANIFEST).is_file(), check=_in_manifest),
    Kind(is_it=lambda path: path.suffix == ".ckpt" and path.is_file(), check=_in_checkpoint),
    Kind(is_it=_has_record, check=_in_vectors),
    Kind(is_it=_is_mined, check=_in_mined),
    Kind(is_it=lambda path: is_kept(path) and path.is_file(), check=_in_cache),
    Kind(is_it=_is_of_a_sweep, check=_in_record),
)
"""All that can be verified."""
