"""Hostile cases: commands over files that nobody should give, and what makes the files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

Outcome: TypeAlias = Literal["answer", "counted", "right"]
Make: TypeAlias = Callable[[Path, Mapping[str, str]], None]
"""Makes a file at a path; the second argument has the places of the sound model, texts, run, ... by name."""
Check: TypeAlias = Callable[[Path, str], bool]
"""Returns from the folder and the printed text whether a result is right."""
Change: TypeAlias = Callable[[bytes], bytes]
Content: TypeAlias = str | bytes | Make
FileRows: TypeAlias = Mapping[str, tuple[str, Content, *tuple[str | int, ...]]]


def embedded(file: str) -> str:
    """Returns the command that embeds a file."""
    return f"embed {file} v.npy --model $bert --device cpu"


EMBED_FILE, EMBEDDED = embedded("{}"), embedded("in.txt")
EMBED_TEXTS = embedded("$texts")
TWO = "a small dog\nthe cold river\n"
HEAD = "sentence1\tsentence2\tscore\n"
TABLE = HEAD + "a small dog\tthe cold river\t1\nthe man\tan old bird\t3\na dog\ta tree\t2\n"
_SMALL = (
    "--recipe simcse --model.encoder.model_name_or_path $bert --data.train $texts --data.batch_size 8 "
    "--data.num_workers 0 --trainer.accelerator cpu --trainer.enable_progress_bar false"
)
EVALUATE_FILE = "evaluate $bert {}"
EMBED = "embed $texts v.npy --model m --device cpu"
FIT = f"fit {_SMALL} --trainer.max_steps 1"
VIEWS = f"views {_SMALL}"
SWEPT = f"sweep {_SMALL} --trainer.max_steps 1 --data.validation $pairs --seeds 1"
SWEEP = f"{SWEPT} --dry_run"

RAN = "ran.txt"
"""File that malicious code of a case would write into the working directory: an answer leaves nothing."""
EVIL = f"open({RAN!r}, 'w').close()\n\n\nclass Evil:\n    pass\n"
DEEP = '{"a": ' * 5000 + "1" + "}" * 5000


class _Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as pickle has it
        return subprocess.call, (["touch", RAN],)


PICKLE = pickle.dumps(_Runs())


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile input.

    Args:
        name: What is odd about it; the test's name.
        command: Words after ``contrastive-text``; ``$bert``, ``$texts``, ``$pairs``, ... are sound files.
        files: Name in the working directory -> its text, its bytes, or what makes it.
        outcome: ``answer``: status 2, one ``error:``, nothing changed or left on the disk. ``counted``:
            status 0, and what was skipped or cut is printed. ``right``: status 0, and the stated result.
        says: Words that are printed, all of them.
        check: What else must be true of the result.
        may_change: Inputs that the command itself has made and may replace or remove.
    """

    name: str
    command: str
    files: Mapping[str, Content]
    outcome: Outcome
    says: tuple[str, ...]
    check: Check | None = None
    may_change: tuple[str, ...] = ()


def answer(
    name: str, command: str, files: Mapping[str, Content], *says: str, may_change: tuple[str, ...] = ()
) -> Case:
    """Returns a case that is refused with an error."""
    return Case(name, command, files, "answer", says, may_change=may_change)


def counted(
    name: str, command: str, files: Mapping[str, Content], *says: str, may_change: tuple[str, ...] = ()
) -> Case:
    """Returns a case that is read, and whose losses are printed."""
    return Case(name, command, files, "counted", says, may_change=may_change)


def right(name: str, command: str, files: Mapping[str, Content], *says: str, check: Check | None = None) -> Case:
    """Returns a case with a result."""
    return Case(name, command, files, "right", says, check)


def over_files(outcome: Outcome, command: str, rows: FileRows) -> tuple[Case, ...]:
    """Returns a case for each row: name -> name of a file, its content, and words that are printed.

    Args:
        outcome: As of a case.
        command: A command with ``{}`` for the name of the file.
        rows: A number among the words is the number of vectors that the command must write. A case
            that is refused must also print the name of the file.
    """
    cases = []
    for name, (file, content, *words) in rows.items():
        says = tuple(word for word in words if isinstance(word, str))
        if outcome == "answer" and ("{}" in command or not says):
            says = (file, *says)
        check = next((vectors(word) for word in words if isinstance(word, int)), None)
        cases.append(Case(name, command.replace("{}", shlex.quote(file)), {file: content}, outcome, says, check))
    return tuple(cases)


def refusals(
    command: str, rows: Mapping[str, str], files: Mapping[str, Content] | None = None
) -> tuple[Case, ...]:
    """Returns a case for each row: end of the command, which names it -> words of the error."""
    name = command.partition(" ")[0]
    return tuple(answer(name + end, command + end, files or {}, says) for end, says in rows.items())


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
    return lambda path, sound: path.symlink_to(sound[to[1:]] if to.startswith("$") else to)


def sparse(size: int) -> Make:
    """Returns what makes a file of zeros that takes no room on the disk."""

    def make(path: Path, _: Mapping[str, str]) -> None:
        path.touch()
        os.truncate(path, size)

    return make


def packed(content: bytes, times: int = 1) -> bytes:
    """Returns a gzip file, which may have the same member many times over."""
    return gzip.compress(content) * times


def array(values: Any) -> Make:  # Any: what numpy takes
    """Returns what writes a ``.npy`` file."""
    return lambda path, _: np.save(path, np.asarray(values))


# Corruptions


def copied(name: str, changes: Mapping[str, Content | Change | None] | None = None) -> Make:
    """Returns what copies a sound file or folder and changes files of it.

    Args:
        name: Name of the sound file or folder.
        changes: File in it -> its new content, None to remove it, a change of its bytes, or, if there is no file
            of that name, what makes it.
    """

    def make(path: Path, sound: Mapping[str, str]) -> None:
        source = Path(sound[name])
        if source.is_dir():
            shutil.copytree(source, path, symlinks=True)
        else:
            shutil.copy(source, path)
        for inner, change in (changes or {}).items():
            put(path / inner if inner else path, change, sound)

    return make


def put(path: Path, content: Content | Change | None, sound: Mapping[str, str]) -> None:
    """Makes, changes or removes a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif path.is_file():
        path.write_bytes(content(path.read_bytes()))  # type: ignore[call-arg, arg-type]  # a Change, for it is there
    else:
        content(path, sound)  # type: ignore[call-arg, arg-type]  # a Make


def edited(**changes: Any) -> Change:  # Any: what JSON can hold
    """Returns a change of an object's members; ``...`` removes a member."""

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


def weights(change: Callable[[dict[str, Tensor]], object]) -> Change:
    """Returns a change of the tensors of a safetensors file: in place, or to the returned ones."""

    def changed(content: bytes) -> bytes:
        tensors = load(content)
        other = change(tensors)
        return save(other if isinstance(other, dict) else tensors, {"format": "pt"})

    return changed


def checkpoint(change: Callable[[dict[str, Any]], object]) -> Make:  # Any: what a checkpoint can hold
    """Returns what saves the sound checkpoint changed, as torch saves it."""

    def make(path: Path, sound: Mapping[str, str]) -> None:
        content = torch.load(sound["checkpoint"], weights_only=True)
        change(content)
        torch.save(content, path)

    return make


def halved(content: bytes) -> bytes:
    """Cuts a file in the middle."""
    return content[: len(content) // 2]


def half_zeroed(content: bytes) -> bytes:
    """Sets the second half to zeros; the size stays."""
    return halved(content).ljust(len(content), b"\0")


def flipped(content: bytes) -> bytes:
    """Changes one bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def vectors(count: int, width: int = 16, name: str = "v.npy") -> Check:
    """Returns a check that a file holds that many vectors, all finite and none of them zero."""

    def check(place: Path, _: str) -> bool:
        found = np.load(place / name)
        return found.shape == (count, width) and bool(np.isfinite(found).all() and found.any(axis=1).all())

    return check
