"""Helpers for timed comparisons: contenders that take turns, medians of ratios, options.

A contender is a process of its own that lives through all rounds, so that two training loops can take turns:
it works off so many steps when it is told to, answers with the seconds, and sleeps while another one works.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from machines import memory, peak, reset_peak, synchronize

T = TypeVar("T")


class Answer(NamedTuple):
    """Measurements that a contender reports after its turn.

    Args:
        seconds: Of all steps of the turn.
        tokens: Those without padding that the steps have seen.
        above: Highest memory since the start, above what was in use when the model was loaded, in bytes.
        losses: The loss of each step, where the contender tells it.
        counts: What else it has counted in this turn.
    """

    seconds: float
    tokens: int
    above: int
    losses: tuple[float, ...] = ()
    counts: Mapping[str, int] = {}


class Turn:
    """The contender's end: called after every step, it sleeps there until the next turn.

    Args:
        pipe: To the process that measures.
        device: Where the steps run; a GPU is waited for before the clock is read.
    """

    def __init__(self, pipe: Connection, device: str) -> None:
        self.pipe = pipe
        self.device = device
        self.counts: dict[str, int] = {}
        self._left = 0
        self._begun = 0.0
        self._tokens = 0
        self._losses: list[float] = []
        self._loaded = 0

    def loaded(self) -> None:
        """Notes the memory in use, above which the peak is given, and waits for the first turn."""
        reset_peak(self.device)
        self._loaded = memory(self.device)
        self._wait()

    def ended_step(self, tokens: int, loss: float | None = None) -> None:
        """Counts a step; after the last one of a turn it answers and waits."""
        self._left -= 1
        self._tokens += tokens
        if loss is not None:
            self._losses.append(loss)
        if self._left:
            return
        synchronize(self.device)
        seconds = time.perf_counter() - self._begun
        above = peak(self.device) - self._loaded
        self.pipe.send(Answer(seconds, self._tokens, above, tuple(self._losses), dict(self.counts)))
        self._wait()

    def _wait(self) -> None:
        try:
            self._left = self.pipe.recv()
        except EOFError:
            os._exit(0)  # measured enough: a trainer's own way out would save models
        self._tokens, self._losses = 0, []
        self.counts.clear()
        self._begun = time.perf_counter()


class Unheard(Turn):
    """Stands in for a turn where nobody measures."""

    def __init__(self) -> None:
        self.counts = {}

    def loaded(self) -> None:
        """Doesn't wait."""


class Contender:
    """One way to do the work, in a process of its own; use it in a ``with`` statement.

    Args:
        work: Does steps and tells ``Turn`` of each; importable, for the process starts from nothing.
        job: What ``work`` is given.
        threads: Of torch.
        device: ``cpu`` or ``cuda``.
        environment: Variables of the process.
    """

    def __init__(
        self,
        work: Callable[[Any, Turn], object],  # Any: each kind of work has its own record
        job: object,
        threads: int,
        device: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = work.__name__
        self._pipe, theirs = context.Pipe()
        # No daemon, which could have no loader's workers; it ends with the pipe.
        self._process = context.Process(target=_live, args=(work, job, theirs, threads, device))
        with variables(
            {
                "OMP_NUM_THREADS": str(threads),
                "HF_HUB_OFFLINE": "1",
                "TRANSFORMERS_VERBOSITY": "error",
                **(environment or {}),
            }
        ):
            self._process.start()
        theirs.close()

    def begin(self, steps: int) -> None:
        """Lets it work off so many steps."""
        self._pipe.send(steps)

    def end(self) -> Answer:
        """Waits for its answer.

        Raises:
            SystemExit: It failed or was killed.
        """
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise SystemExit(
                f"{self.name}: expected an answer, got exit status {self._process.exitcode}; -9 is a process "
                "killed for its memory: lower the batch size"
            ) from None
        if isinstance(answer, str):
            raise SystemExit(f"{self.name} failed:\n{answer}")
        assert isinstance(answer, Answer)
        return answer

    def __call__(self, steps: int) -> Answer:
        """Lets it work off so many steps and gives its answer."""
        self.begin(steps)
        return self.end()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _live(
    work: Callable[[object, Turn], object], job: object, pipe: Connection, threads: int, device: str
) -> NoReturn:
    torch.set_num_threads(threads)
    try:
        work(job, Turn(pipe, device))
        pipe.send("it ended before all rounds were over: more texts are needed")
    except BaseException:
        pipe.send(traceback.format_exc())
    os._exit(1)


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for what starts meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def take_turns(works: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Returns what several works return, round by round; who begins changes from round to round.

    Example:
        >>> order = []
        >>> found = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
        >>> order, found
        (['a', 'b', 'b', 'a'], {'a': [None, None], 'b': [None, None]})
    """
    found: dict[str, list[T]] = {name: [] for name in works}
    names = list(works)
    for number in range(rounds):
        shift = number % len(names)
        for name in (*names[shift:], *names[:shift]):
            found[name].append(works[name]())
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the median of the rounds' ratios, not the ratio of medians: a slow round slows both.

    Example:
        >>> ratio([4.0, 9.0, 10.0], [2.0, 3.0, 5.0])
        2.0
    """
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_and_range(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Returns the median of the rounds' ratios with the lowest and the highest.

    Example:
        >>> ratio_and_range([4.0, 9.0, 10.0], [2.0, 3.0, 5.0])
        '2.00 (2.00 to 3.00)'
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{ratio(ours, theirs):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def parser(description: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """Returns a parser with the options of every timed benchmark."""
    own = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--encoder", help="folder of the model; the extra `offline`'s if left out")
    own.add_argument("--rounds", type=int, default=rounds)
    own.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    own.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    own.add_argument("--quick", action="store_true", help="a smoke run: tiny random model, made-up texts")
    own.add_argument("--keep", type=Path, help="folder of finished settings, which are not measured again")
    own.add_argument("--out", type=Path, help="folder of the result; benchmarks/results if left out")
    return own


def kept(folder: Path | None, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the rows of a setting: those that an earlier run has left in a folder, or else new ones.

    Args:
        folder: Of finished settings; None to keep nothing. Other options want another folder.
        name: Of the setting.
        make: Measures it.
    """
    path = None if folder is None else folder / f"{name}.json"
    if path is not None and path.exists():
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        return rows
    rows = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_text(json.dumps(rows))
        part.replace(path)
    return rows
