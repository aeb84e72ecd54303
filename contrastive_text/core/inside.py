"""Paths that a folder's own records name: they stay inside of it."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from contrastive_text.core.errors import InvalidValueError


def inside(folder: Path, name: str, where: str) -> Path:
    """Returns the place in a folder that a record of the folder names.

    Args:
        folder: The folder, which may be anyone's.
        name: What the record says; empty for the folder itself.
        where: The record and the place in it, for the error.

    Raises:
        ValueError: A path that leads out of the folder: absolute, with ``..``, or through a link.

    Example:
        >>> inside(Path("model"), "1_Pooling", "modules.json").as_posix()
        'model/1_Pooling'
        >>> inside(Path("model"), "../other", "modules.json")
        Traceback (most recent call last):
            ...
        contrastive_text.core.errors.InvalidValueError: modules.json: expected a path inside model, got '../other'
    """
    kinds = (PurePosixPath(name), PureWindowsPath(name))  # as either system reads it: a folder may travel
    odd = any(kind.anchor or ".." in kind.parts for kind in kinds) or "\0" in name
    if odd or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise InvalidValueError(f"{where}: expected a path inside {folder}, got {name!r}")
    return folder / name
