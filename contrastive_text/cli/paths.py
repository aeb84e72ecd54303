"""What every command reads and writes: kept apart, and known to be writable before any work."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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
        folder_for: An option, and the word among its values with which a folder is written in place of the file.
        renamed_by: An option, and what makes the file's name of the path and of that option's value.
    """

    files: Callable[[Path], Sequence[Path]] = lambda path: [path]
    folder_for: tuple[str, str] | None = None
    renamed_by: tuple[str, Callable[[Path, str], Path]] | None = None

    def given(self, values: Mapping[str, object]) -> WrittenFile | WrittenFolder:
        """Returns what is written where the options have these values."""
        option, word = self.folder_for or ("", "")
        chosen = values.get(option)
        if isinstance(chosen, list | tuple) and word in chosen:
            return WrittenFolder()
        option, renamed = self.renamed_by or ("", lambda path, _: path)
        if isinstance(value := values.get(option), str):
            return WrittenFile(lambda path: self.files(renamed(path, value)))
        return self


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
        (option, role.given(values) if isinstance(role, WrittenFile) else role, path)
        for option, role in roles.items()
        for path in _paths(_value(values, option))
    ]
    read = {path: role.model for _, role, path in named if isinstance(role, ReadPath) and _is_there(path)}
    models = [path for path, may_be_model in read.items() if may_be_model and path.is_dir()]
    written: list[Path] = []
    for option, role, path in named:
        if isinstance(role, WrittenFile):
            if not path.name:  # as of an empty word
                raise InvalidValueError(f"{path}: expected a file, got a folder; name a file in it")
            files = role.files(path)
            _check_file(path, files)
            for file in files:
                _check_apart(file, list(read), models)
            written += files
        elif isinstance(role, WrittenFolder):
            _check_folder(path, role, f"{option}: " if "." in option else "")  # with a point, of a configuration
            if not role.all_new:
                _check_folder_apart(path, role, list(read), models)
            if role.key is not None:
                written.append(path)
    for one, other in combinations(written, 2):
        if str(_place(one)).casefold() == str(_place(other)).casefold() or _same(one, other):
            raise InvalidValueError(
                f"{other}: expected another file than {one}, which is written too, got the same; name another"
            )


def _value(values: object, option: str) -> object:
    """Returns an option's value; a dotted one is of mappings inside each other."""
    for part in option.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _paths(value: object) -> Iterator[Path]:
    """Yields the paths among values, in lists and mappings."""
    if isinstance(value, str | Path):
        yield Path(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _paths(each)
    elif isinstance(value, list | tuple):
        for each in value:
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


def _check_file(path: Path, files: Sequence[Path]) -> None:
    for file in files:
        _check_name(path, file)
        if file.is_symlink() and not file.exists():
            raise InvalidValueError(f"{file}: expected a file or nothing, got a link to nothing; name another")
        if file.exists() and not file.is_file():
            what = "a folder; name a file in it" if file.is_dir() else "something else; name another"
            raise InvalidValueError(f"{file}: expected a file, got {what}")
    if not path.parent.is_dir():
        raise MissingFileError(f"{path}: expected an existing folder, found none at {path.parent}; make it first")
    _check_room(path, path.parent)


def _check_folder(path: Path, output: WrittenFolder, where: str) -> None:
    around = next((each for each in (path, *path.parents) if _is_there(each)), Path())
    if not around.is_dir():
        raise InvalidValueError(f"{where}{around}: expected a folder, got a file; name another place than {path}")
    _check_name(path, path)
    _check_room(path, around)
    if output.key is not None and (path / output.key).exists() and not (path / output.key).is_file():
        raise InvalidValueError(f"{path / output.key}: expected a file, got something else; name another folder")
    if found := next((name for name in output.never_with if (path / name).exists()), None):
        raise InvalidValueError(
            f"{path}: expected a folder of its own, got one with {found}, which belongs to a model; name another"
        )


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


def _check_outside(path: Path, models: Sequence[Path]) -> None:
    for model in models:
        if _inside(path, model):
            raise InvalidValueError(
                f"{path}: expected a place outside of the model {model}, got one in it; name another"
            )


def _check_apart(file: Path, read: Sequence[Path], models: Sequence[Path]) -> None:
    for other in read:
        if _same(file, other):
            raise InvalidValueError(
                f"{file}: expected another file than {other}, got the same; it would be lost; name another"
            )
        if file.exists() and other.is_dir() and _inside(file, other):
            raise InvalidValueError(
                f"{file}: expected a new file, got one of {other}, which is read; it would be lost; name another"
            )
    _check_outside(file, models)


def _check_folder_apart(
    folder: Path, output: WrittenFolder, read: Sequence[Path], models: Sequence[Path]
) -> None:
    for other in read:
        if _same(folder, other):
            raise InvalidValueError(
                f"{folder}: expected another folder than {other}, got the same; it would be lost; name another"
            )
        if output.key is None or not folder.is_dir() or not any(folder.iterdir()):
            continue
        if other.is_dir() and _inside(folder, other) and not (folder / output.key).exists():
            raise InvalidValueError(
                f"{folder}: expected a new folder, got one of {other}, which is read; name another"
            )
        if not output.around_inputs and _inside(other, folder):
            raise InvalidValueError(
                f"{folder}: expected a folder apart from {other}, which is read, got one around it; name another"
            )
    _check_outside(folder, models)
