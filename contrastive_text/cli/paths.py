"""What every command reads and writes: kept apart, and known to be writable before any work."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import TypeAlias

from contrastive_text.core.errors import DiskError, InvalidValueError, MissingFileError
from contrastive_text.core.storage.manifests import MODULES


@dataclass(frozen=True, slots=True)
class ReadPath:
    """A file or a folder that a command reads.

    Args:
        model: Whether it may be a model, into whose folder nothing else is written.
    """

    model: bool = False


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a command writes.

    Args:
        files: Returns all files that are written for it, itself the first.
        by_options: Returns what is written in its place where other options have these values.
    """

    files: Callable[[Path], Sequence[Path]] = lambda path: [path]
    by_options: Callable[[Mapping[str, object]], WrittenFile | WrittenFolder] | None = None


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """A folder that a command writes.

    Args:
        key: A file by which an earlier output is known, that may be replaced inside of a folder that is read;
            None for a folder that others share, such as a cache, whose files have names of their own.
        never_with: Files of a folder that belongs to something else.
        around_inputs: Whether what is read may lie in it, as runs in the folder of their page.
        all_new: Whether nothing in it is ever written over, for each run makes a folder of its own there.
    """

    key: str | None = None
    never_with: Sequence[str] = ()
    around_inputs: bool = False
    all_new: bool = False


Role: TypeAlias = ReadPath | WrittenFile | WrittenFolder
"""What a command does with the path that is an option's value."""
_RUN_PATHS = (
    *("train", "validation", "test", "predict", "tasks"),
    *("task.held_out", "retrieval.files", "retrieval.corpus"),
)
RUN_READS: dict[str, Role] = {
    **dict.fromkeys((*(f"data.{part}" for part in _RUN_PATHS), "config", "init_from", "ckpt_path"), ReadPath()),
    **dict.fromkeys(("model.encoder", "model.guides"), ReadPath(model=True)),
    "model.views": ReadPath(),
}
"""What a run reads, by the places of its configuration."""
RUN_WRITES: dict[str, Role] = {
    "folder": WrittenFolder(all_new=True),  # what a run may go on with there is checked by itself
    "export.dirpath": WrittenFolder(key=MODULES),
    "checkpoint.dirpath": WrittenFolder(),
    "trainer.default_root_dir": WrittenFolder(all_new=True),
}
"""What ``fit`` writes; the other commands over a run write into a folder of their own."""


def check_paths(roles: Mapping[str, Role], values: Mapping[str, object]) -> None:
    """Checks that nothing is written over what is read, or is written as something else, and that it can be.

    Args:
        roles: Option -> what is done with the paths that are its value.
        values: Option -> its value: None, a path, or several in lists and mappings; a configuration, for a run.

    Raises:
        FileNotFoundError: A file in a folder that isn't there.
        OSError: A place that can't be written to.
        ValueError: The same place twice, by whatever names, or a file inside of what is read.
    """
    named = [
        (option, role.by_options(values) if isinstance(role, WrittenFile) and role.by_options else role, path)
        for option, role in roles.items()
        for path in _paths(_value(values, option))
    ]
    read = {path: role.model for _, role, path in named if isinstance(role, ReadPath) and _is_there(path)}
    written: list[Path] = []
    for option, role, path in named:
        if isinstance(role, ReadPath):
            continue
        if isinstance(role, WrittenFile):
            files = apart = _check_files(path, role.files, list(read))
        else:
            _check_folder(path, role, f"{option}: " if "." in option else "")  # with a point, of a configuration
            files, apart = ([] if role.key is None else [path]), ([] if role.all_new else [path])
            for folder in apart:
                _check_folder_apart(folder, role, list(read))
        for file, model in product(apart, (place for place, is_model in read.items() if is_model)):
            if model.is_dir() and _inside(file, model):
                raise _refusal(file, f"a place outside of the model {model}", "one in it")
        written += files
    for one, other in combinations(written, 2):
        if str(_place(one)).casefold() == str(_place(other)).casefold() or _same(one, other):
            raise _refusal(other, f"another file than {one}, which is written too", "the same")


def _refusal(path: object, expected: str, got: str, todo: str = "name another") -> InvalidValueError:
    return InvalidValueError(f"{path}: expected {expected}, got {got}; {todo}")


def _value(values: object, option: str) -> object:
    """Returns an option's value; a dotted one is of mappings inside each other."""
    for part in option.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _paths(value: object) -> Iterator[Path]:
    """Yields the paths among values, in lists and mappings."""
    if isinstance(value, str | Path):
        yield Path(value)
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _paths(each)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name too long, or a folder that can't be looked into
        return False


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)  # by any link, and any case where the system ignores it
    except (OSError, ValueError):
        return False


def _place(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _inside(path: Path, folder: Path) -> bool:
    return any(_same(parent, folder) for parent in _place(path).parents)


def _check_files(path: Path, of: Callable[[Path], Sequence[Path]], read: Sequence[Path]) -> Sequence[Path]:
    """Returns the files that are written for a path, once they can be, and are none of those that are read."""
    if not path.name:  # as of an empty word
        raise _refusal(path, "a file", "a folder", "name a file in it")
    files = of(path)
    for file in files:
        _check_name(path, file)
        if file.is_symlink() and not file.exists():
            raise _refusal(file, "a file or nothing", "a link to nothing")
        if file.is_dir():
            raise _refusal(file, "a file", "a folder", "name a file in it")
        if file.exists() and not file.is_file():
            raise _refusal(file, "a file", "something else")
    if not path.parent.is_dir():
        raise MissingFileError(f"{path}: expected an existing folder, found none at {path.parent}; make it first")
    _check_room(path, path.parent)
    for file, other in product(files, read):
        if _same(file, other):
            raise _refusal(file, f"another file than {other}", "the same; it would be lost")
        if file.exists() and other.is_dir() and _inside(file, other):
            raise _refusal(file, "a new file", f"one of {other}, which is read; it would be lost")
    return files


def _check_folder(path: Path, output: WrittenFolder, where: str) -> None:
    around = next((each for each in (path, *path.parents) if _is_there(each)), Path())
    if not around.is_dir():
        raise _refusal(f"{where}{around}", "a folder", "a file", f"name another place than {path}")
    _check_name(path, path)
    _check_room(path, around)
    if output.key is not None and (path / output.key).exists() and not (path / output.key).is_file():
        raise _refusal(path / output.key, "a file", "something else", "name another folder")
    if found := next((name for name in output.never_with if (path / name).exists()), None):
        raise _refusal(path, "a folder of its own", f"one with {found}, which belongs to a model")


def _check_name(path: Path, file: Path) -> None:
    try:
        os.lstat(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # too long; a NUL byte
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidValueError(
            f"{str(path)!r}: expected a name that can be written to, got: {said}; name another"
        ) from error


def _check_room(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DiskError(
            error.errno or errno.EIO,
            f"{path}: expected a place that can be written to, got {error.strerror} in {folder}; "
            + ("make room" if full else "name another, or allow writing there"),
        ) from error


def _check_folder_apart(folder: Path, output: WrittenFolder, read: Sequence[Path]) -> None:
    for other in read:
        if _same(folder, other):
            raise _refusal(folder, f"another folder than {other}", "the same; it would be lost")
        if output.key is None or not folder.is_dir() or not any(folder.iterdir()):
            continue
        if other.is_dir() and _inside(folder, other) and not (folder / output.key).exists():
            raise _refusal(folder, "a new folder", f"one of {other}, which is read")
        if not output.around_inputs and _inside(other, folder):
            raise _refusal(folder, f"a folder apart from {other}, which is read", "one around it")
