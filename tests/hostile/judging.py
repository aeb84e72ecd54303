"""Runs a command as a user's shell does, in this process, and compares its outcome with the expected one."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
import random
import re
import resource
import shlex
import signal
import stat
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from hostile.cases import Case, put

from contrastive_text.cli import run

WIDTH = "200"
"""Columns of the terminal, as the variable ``COLUMNS`` tells them."""
LIMIT = 180
"""Seconds that a command may take at most: one that hangs, and not one on a slow machine, takes longer."""
_MEMORY = 6 << 30
"""Bytes of addresses that a command may take on top of what the process has: a bomb ends as a MemoryError, and
not the machine. Threads and arenas reserve some GB without using them."""
_LONGEST = 10_000
"""Characters that a command may print at most: a hostile file isn't poured over the terminal."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LEFT_OVER = re.compile(r"unfinished|partial|\.lock$|\.tmp$|\.vectors\.npy")


class Hang(BaseException):
    """Nothing catches it but the test."""


class Result(NamedTuple):
    """Result of a command that ran on hostile input.

    Args:
        status: Its exit status.
        said: What it printed on both streams.
        trouble: An exception that left it; empty for none.
    """

    status: object
    said: str
    trouble: str


def judge(case: Case, place: Path, sound: Mapping[str, str]) -> None:
    """Runs a case in an empty folder, and fails with all that is not as expected."""
    for name, content in case.files.items():
        put(place / name, content, sound)
    words = filled(case.command, sound)
    before, sound_before = state(place), state(Path(sound["folder"]))
    result = shell(words, place)
    after = state(place)
    is_answer = case.outcome == "answer"
    answers = len(re.findall(r"^error: ", result.said, flags=re.MULTILINE))
    names = sorted({*before, *(after if is_answer else ())})
    changed = [name for name in names if before.get(name) != after.get(name)]
    left = [name for name in after.keys() - before.keys() if _LEFT_OVER.search(name)]
    wrong = {
        "words that were not printed": [word for word in case.says if word not in " ".join(result.said.split())],
        "an exception left the command": result.trouble,
        "a sound file was changed": state(Path(sound["folder"])) != sound_before,
        "it printed control characters": _CONTROL.findall(result.said),
        "it printed too much": len(result.said) > _LONGEST,
        "another exit status": result.status not in ((2,) if is_answer else (0, None)),
        "a case that names no file and no option": is_answer and not case.says,
        "not one error": is_answer and answers != 1,
        "a traceback": is_answer and "Traceback" in result.said,
        "changed, or left": [name for name in changed if not name.startswith(case.may_change or "\0")],
        "left over": [] if is_answer else left,
    }
    if not any(wrong.values()) and case.check is not None:
        wrong["not the right result"] = not case.check(place, result.said)
    found = {name: what for name, what in wrong.items() if what}
    assert not found, f"{found}\nstatus {result.status}, said:\n{result.said[-3000:]}"


def filled(command: str, sound: Mapping[str, str]) -> list[str]:
    """Returns the words of a command, with the places of sound files."""
    return [re.sub(r"\$([a-z_]+)", lambda found: sound[found[1]], word) for word in shlex.split(command)]


def state(place: Path) -> dict[str, object]:
    """Returns all files that lie in a folder and below it, links too, with what they hold."""
    found: dict[str, object] = {}
    for above, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = Path(above, name)
            if path.is_dir() and not path.is_symlink():
                continue
            mode = path.lstat().st_mode
            holds: object = None
            if stat.S_ISLNK(mode):
                holds = os.readlink(path)
            elif stat.S_ISREG(mode):
                holds = path.stat().st_size, path.stat().st_mtime_ns
            found[str(path.relative_to(place))] = stat.S_IFMT(mode), holds
    return found


def shell(words: list[str], place: Path) -> Result:
    """Runs a command in a folder as a process of its own would, without leaving a trace in this one."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    status: object = None
    trouble = ""
    with undisturbed(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with limited():
                status = run(words)
        except SystemExit as error:
            status = error.code
        except Hang:
            trouble = f"a hang above {LIMIT} s"
        except BaseException as error:
            trouble = f"{type(error).__name__} left the command: {error!s:.500}"
    said = "".join(stream.buffer.getvalue().decode("utf-8", "replace") for stream in (out, err))
    return Result(status, said.replace("\r\n", "\n"), trouble)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Ends what takes more than ``LIMIT`` seconds or more memory than a command may."""

    def ring(*_: object) -> None:
        raise Hang

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    earlier = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, earlier)


@contextlib.contextmanager
def undisturbed(place: Path) -> Iterator[None]:
    """Works in a folder, and then puts back what a command changes of a process."""
    here, path, modules, variables = os.getcwd(), [*sys.path], {*sys.modules}, dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    threads, field = torch.get_num_threads(), csv.field_size_limit()
    loggers = [logging.getLogger(), *map(logging.getLogger, ("pytorch_lightning.utilities.rank_zero",))]
    kept = [(logger, logger.level, [*logger.handlers], [*logger.filters]) for logger in loggers]
    os.chdir(place)
    set_variables({**variables, "COLUMNS": WIDTH})
    try:
        with warnings.catch_warnings(record=True):  # they would stand among the run's own
            warnings.simplefilter("default")  # as in a user's shell, not as in a test
            yield
    finally:
        os.chdir(here)
        sys.path[:] = path
        for name in {*sys.modules} - modules:
            if _made(sys.modules[name], place):
                del sys.modules[name]
        set_variables(variables)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
        csv.field_size_limit(field)
        for logger, level, had, filters in kept:
            logger.setLevel(level)
            logger.handlers[:], logger.filters[:] = had, filters


def set_variables(variables: Mapping[str, str]) -> None:
    """Makes these the variables of the process.

    It touches only those that differ: a library's thread that reads one while another is set may end the process.
    """
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _made(module: types.ModuleType, place: Path) -> bool:
    file = getattr(module, "__file__", None)
    return bool(file) and str(file).startswith(str(place))
