"""Every byte of what the library wrote, held against the digests that were written with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.errors import ContrastiveTextError, MissingFileError
from contrastive_text.core.manifests import MANIFEST, Manifest
from contrastive_text.training.checkpoints import verify_checkpoint


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a file.

    Args:
        path: The file.
        damage: What is wrong with it; None where nothing is.
        known: Whether anything was written that vouches for its bytes.
    """

    path: Path
    damage: str | None = None
    known: bool = True


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

    Known are folders with a manifest (saved models, exports to ONNX, kept tokens) and checkpoints. Links to
    folders are not followed.

    Args:
        path: A model, a checkpoint, a run's folder, or any folder that holds some.

    Raises:
        FileNotFoundError: There is nothing.
    """
    if not path.exists():
        raise MissingFileError(f"{path}: expected a file or a folder, got none; check the name")
    done: set[Path] = set()
    for kind in KINDS:
        if kind.is_it(path):
            for found in kind.check(path):
                if found.path not in done:
                    done.add(found.path)
                    yield found
    if path.is_dir():
        inside = [each for each in sorted(path.iterdir()) if not (each.is_symlink() and each.is_dir())]
        for each in inside:
            if each not in done:
                yield from (found for found in verify(each) if found.path not in done)
    elif path not in done:
        yield Found(path, known=False)


def _in_manifest(folder: Path) -> Iterator[Found]:
    place = folder / MANIFEST
    try:
        manifest = Manifest.read(folder)
    except ContrastiveTextError as error:
        yield Found(place, damage=str(error).removeprefix(f"{place}: "))
        return
    assert manifest is not None
    yield Found(place)
    for name, digest in manifest.files.items():
        one = Manifest({name: digest}).damage(folder, whole=True)
        yield Found(folder / name, damage=one[0].removeprefix(f"{name}: ") if one else None)


def _in_checkpoint(path: Path) -> Iterator[Found]:
    try:
        verify_checkpoint(path)
    except ContrastiveTextError as error:
        yield Found(path, damage=str(error).removeprefix(f"{path}: "))
    else:
        yield Found(path)


KINDS = (
    Kind(is_it=lambda path: (path / MANIFEST).is_file(), check=_in_manifest),
    Kind(is_it=lambda path: path.suffix == ".ckpt" and path.is_file(), check=_in_checkpoint),
)
"""All that can be verified."""
