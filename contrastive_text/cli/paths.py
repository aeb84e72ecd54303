"""Checks of the paths that a command reads and writes, before any work: writable, and no input overwritten."""

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
from contrastive_text.core.storage.manifests import MANIFEST


@dataclass(frozen=True, slots=True)
class ReadPath:
    """Role of a file or folder that a command reads.

    Args:
        model: Whether the path may be a model folder. Commands write no other file into a model folder.
    """

    model: bool = False


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Role of a file that a command writes, for checks of paths.

    Args:
        files: Function from the path to all files that the command writes for it, the path itself first.
        by_options: Function from the values of all options to the role that replaces this one.
    """

    files: Callable[[Path], Sequence[Path]] = lambda path: [path]
    by_options: Callable[[Mapping[str, object]], WrittenFile | WrittenFolder] | None = None


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """Role of a folder that a command writes, for checks of paths.

    Args:
        key: Name of a file that identifies an earlier output. The command may replace such an output inside an
            input folder. None for a folder with outputs of many commands, such as a cache.
        never_with: Names of files that show that the folder has another use.
        around_inputs: Whether the folder may contain inputs, such as the runs of a report.
        all_new: Whether the command only creates new folders in it and overwrites nothing.
    """

    key: str | None = None
    never_with: Sequence[str] = ()
    around_inputs: bool = False
    all_new: bool = False


Role: TypeAlias = ReadPath | WrittenFile | WrittenFolder
"""Role of the path in an option: input file, output file or output folder."""
_RUN_PATHS = (
    *("train", "validation", "test", "predict", "tasks"),
    *("task.held_out", "retrieval.files", "retrieval.corpus"),
)
RUN_READS: dict[str, Role] = {
    **dict.fromkeys((*(f"data.{part}" for part in _RUN_PATHS), "config", "init_from", "ckpt_path"), ReadPath()),
    **dict.fromkeys(("model.encoder", "model.guides"), ReadPath(model=True)),
    "model.views": ReadPath(),
}
"""Role of each path that a run reads, by its key in the configuration."""
RUN_WRITES: dict[str, Role] = {
    "folder": WrittenFolder(all_new=True),  # training/run_folder.py checks whether a run can resume there
    "export.dirpath": WrittenFolder(key=MANIFEST),
    "checkpoint.dirpath": WrittenFolder(),
    "trainer.default_root_dir": WrittenFolder(all_new=True),
}
"""Role of each path that ``fit`` writes, by its key in the configuration. Other commands write none of these."""


def check_paths(roles: Mapping[str, Role], values: Mapping[str, object]) -> None:
    """Checks that a command can write its outputs, and that no output overwrites an input or another output.

    Args:
        roles: Role of the paths of each option.
        values: Value of each option: None, a path, or lists and mappings of paths. For a run: its configuration.

    Raises:
        FileNotFoundError: The folder of an output file doesn't exist.
        OSError: An output can't be written.
        ValueError: Two options name the same file, also through links, or an output is inside an input.
    """
    entries = [
        (option, role.by_options(values) if isinstance(role, WrittenFile) and role.by_options else role, path)
        for option, role in roles.items()
        for path in _paths(_value(values, option))
    ]
    inputs = {path: role.model for _, role, path in entries if isinstance(role, ReadPath) and _is_there(path)}
    outputs: list[Path] = []
    for option, role, path in entries:
        if isinstance(role, ReadPath):
            continue
        if isinstance(role, WrittenFile):
            files = apart = _check_files(path, role.files, list(inputs))
        else:
            _check_folder(path, role, f"{option}: " if "." in option else "")  # keys of configurations have dots
            files, apart = ([] if role.key is None else [path]), ([] if role.all_new else [path])
            for folder in apart:
                _check_folder_apart(folder, role, list(inputs))
        for file, model in product(apart, (place for place, is_model in inputs.items() if is_model)):
            if model.is_dir() and _inside(file, model):
                raise _refusal(file, f"a path outside of the model folder {model}", "a path inside it")
        outputs += files
    for first, second in combinations(outputs, 2):
        if str(_real_path(first)).casefold() == str(_real_path(second)).casefold() or _is_same(first, second):
            raise _refusal(second, f"another file than the output {first}", "the same file")


def _refusal(path: object, expected: str, got: str, todo: str = "name another path") -> InvalidValueError:
    """Returns the error for a path that a command can't read or write."""
    return InvalidValueError(f"{path}: expected {expected}, got {got}; {todo}")


def _value(values: object, option: str) -> object:
    """Returns the value of an option in a configuration. Dots in its name separate keys of nested mappings."""
    for part in option.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _paths(value: object) -> Iterator[Path]:
    """Yields the paths in nested lists and mappings of an option's value."""
    if isinstance(value, str | Path):
        yield Path(value)
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _paths(item)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long, or a folder without permission
        return False


def _is_same(first: Path, second: Path) -> bool:
    """Returns whether two paths are the same file, also through links or on a file system without case."""
    try:
        return first.samefile(second)
    except (OSError, ValueError):
        return False


def _real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _inside(path: Path, folder: Path) -> bool:
    return any(_is_same(parent, folder) for parent in _real_path(path).parents)


def _check_files(path: Path, of: Callable[[Path], Sequence[Path]], inputs: Sequence[Path]) -> Sequence[Path]:
    """Checks the files that a command writes for a path against the inputs. Returns the files."""
    if not path.name:  # the path of an empty word
        raise _refusal(path, "a file", "a folder", "name a file in it")
    files = of(path)
    for file in files:
        _check_name(path, file)
        if file.is_symlink() and not file.exists():
            raise _refusal(file, "a file or a free name", "a link to a missing file")
        if file.is_dir():
            raise _refusal(file, "a file", "a folder", "name a file in it")
        if file.exists() and not file.is_file():
            raise _refusal(file, "a file", "a device or another special file")
    if not path.parent.is_dir():
        raise MissingFileError(
            f"{path}: expected an existing folder, found none at {path.parent}; create it first"
        )
    _check_room(path, path.parent)
    for file, source in product(files, inputs):
        if _is_same(file, source):
            raise _refusal(file, f"another file than the input {source}", "the same file, which would be lost")
        if file.exists() and source.is_dir() and _inside(file, source):
            raise _refusal(file, "a new file", f"a file of the input {source}, which would be lost")
    return files


def _check_folder(path: Path, output: WrittenFolder, where: str) -> None:
    existing = next((folder for folder in (path, *path.parents) if _is_there(folder)), Path())
    if not existing.is_dir():
        raise _refusal(f"{where}{existing}", "a folder", "a file", f"name another path than {path}")
    _check_name(path, path)
    _check_room(path, existing)
    if output.key is not None and (path / output.key).exists() and not (path / output.key).is_file():
        raise _refusal(path / output.key, "a file", "a folder or a special file", "name another folder")
    if name := next((name for name in output.never_with if (path / name).exists()), None):
        raise _refusal(path, "a folder without a model", f"a folder with {name}, which belongs to a model")


def _check_name(path: Path, file: Path) -> None:
    try:
        os.lstat(file)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # too long; a NUL byte
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidValueError(
            f"{str(path)!r}: expected a valid file name, got: {reason}; name another path"
        ) from error


def _check_room(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DiskError(
            error.errno or errno.EIO,
            f"{path}: expected a writable folder, got {error.strerror} in {folder}; "
            + ("free some space" if full else "name another path, or allow writing there"),
        ) from error


def _check_folder_apart(folder: Path, output: WrittenFolder, inputs: Sequence[Path]) -> None:
    for source in inputs:
        if _is_same(folder, source):
            raise _refusal(folder, f"another folder than the input {source}", "the same, which would be lost")
        if output.key is None or not folder.is_dir() or not any(folder.iterdir()):
            continue
        if source.is_dir() and _inside(folder, source) and not (folder / output.key).exists():
            raise _refusal(folder, "a new folder", f"a folder inside the input {source}")
        if not output.around_inputs and _inside(source, folder):
            raise _refusal(folder, f"a folder that does not contain the input {source}", "a folder around it")
