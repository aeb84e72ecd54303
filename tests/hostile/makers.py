"""What makes the files of hostile cases: kinds of files, packed ones, damaged copies of sound ones."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hostile.case import Check, Make

Change = Callable[[bytes], bytes]


# Kinds of files


def folder(path: Path, _: Mapping[str, str]) -> None:
    """Makes an empty folder."""
    path.mkdir(parents=True)


def fifo(path: Path, _: Mapping[str, str]) -> None:
    """Makes a named pipe that nobody writes to."""
    os.mkfifo(path)


def unix_socket(path: Path, _: Mapping[str, str]) -> None:
    """Makes a socket; by its name alone, for the whole path may be too long for one."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def link(to: str) -> Make:
    """Returns what makes a symbolic link; ``$bert`` and the like are known."""

    def make(path: Path, sound: Mapping[str, str]) -> None:
        path.symlink_to(sound[to[1:]] if to.startswith("$") else to)

    return make


def sparse(size: int) -> Make:
    """Returns what makes a file of zeros that takes no room on the disk."""

    def make(path: Path, _: Mapping[str, str]) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def packed(content: bytes, times: int = 1) -> bytes:
    """Returns a gzip file, which may have the same member many times over."""
    return gzip.compress(content) * times


# Copies


def copied(name: str, changes: Mapping[str, str | bytes | Change | Make | None] | None = None) -> Make:
    """Returns what copies a sound file or folder and changes files of it.

    Args:
        name: Of the sound one.
        changes: File in it -> what it then holds, None for nothing, a change of its bytes, or, where there is
            none of that name, what makes it.
    """

    def make(path: Path, sound: Mapping[str, str]) -> None:
        source = Path(sound[name])
        if source.is_dir():
            shutil.copytree(source, path, symlinks=True)
        else:
            shutil.copy(source, path)
        for inner, change in (changes or {}).items():
            apply(path / inner if inner else path, change, sound)

    return make


def apply(path: Path, change: str | bytes | Change | Make | None, sound: Mapping[str, str]) -> None:
    """Changes or makes a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if change is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif isinstance(change, str):
        path.write_text(change, encoding="utf-8", newline="")
    elif isinstance(change, bytes):
        path.write_bytes(change)
    elif path.is_file():
        path.write_bytes(change(path.read_bytes()))  # type: ignore[call-arg, arg-type]  # a Change, for it is there
    else:
        change(path, sound)  # type: ignore[call-arg, arg-type]  # a Make


def edited(**changes: Any) -> Change:  # Any: what JSON can hold
    """Returns a change of an object's members; ``...`` takes a member away."""

    def change(content: bytes) -> bytes:
        changed = {**json.loads(content), **changes}
        return json.dumps({name: value for name, value in changed.items() if value is not ...}).encode()

    return change


def replaced(old: str, new: str) -> Change:
    """Returns a change of words, which must be there."""

    def change(content: bytes) -> bytes:
        assert old.encode() in content, old
        return content.replace(old.encode(), new.encode())

    return change


def halved(content: bytes) -> bytes:
    """Cuts a file in the middle."""
    return content[: len(content) // 2]


def half_zeroed(content: bytes) -> bytes:
    """Sets the second half to zeros, the size stays."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


def flipped(content: bytes) -> bytes:
    """Changes one bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def checkpoint(change: Callable[[dict[str, Any]], object], name: str = "checkpoint") -> Make:
    """Returns what saves a changed checkpoint, as torch saves it."""

    def make(path: Path, sound: Mapping[str, str]) -> None:
        content = torch.load(sound[name], weights_only=True)
        changed = change(content)
        torch.save(content if changed is None else changed, path)

    return make


def array(values: Any) -> Make:  # Any: what numpy takes
    """Returns what writes a ``.npy`` file."""

    def make(path: Path, _: Mapping[str, str]) -> None:
        np.save(path, np.asarray(values))

    return make


# Results


def vectors(count: int, width: int = 16, name: str = "v.npy") -> Check:
    """Returns a check that a file holds so many vectors, all finite and none of them zero."""

    def check(place: Path, _: str) -> bool:
        found = np.load(place / name)
        return found.shape == (count, width) and bool(np.isfinite(found).all() and found.any(axis=1).all())

    return check


def lines(*expected: str, name: str) -> Check:
    """Returns a check that a file holds these lines."""

    def check(place: Path, _: str) -> bool:
        return (place / name).read_text(encoding="utf-8").split("\n")[:-1] == list(expected)

    return check
