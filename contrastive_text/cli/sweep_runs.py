"""The runs of a sweep, one after the other in this process, beside other processes that share the folder."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from contrastive_text.cli.main import run
from contrastive_text.cli.sweep_checks import speaking_to
from contrastive_text.cli.words import option_value
from contrastive_text.core.class_paths import trusted
from contrastive_text.core.console import console
from contrastive_text.core.terminal import say
from contrastive_text.runs.sweeps import Cell, SweepFolder, SweepRun, SweepTable, read_validations
from contrastive_text.runs.sweeps.folder import empty

_WAIT = 1.0
"""Seconds after which a process looks again whether another one has finished."""


@dataclass(frozen=True)
class Job:
    """How a cell is run.

    Args:
        options: Those of ``fit`` that all cells share.
        folder: Where runs are kept.
        keep_weights: Whether checkpoints and models stay.
    """

    options: Sequence[str]
    folder: SweepFolder
    keep_weights: bool

    def words(self, cell: Cell, seed: int) -> list[str]:
        """Returns the command of a run, from ``fit`` on."""
        trust = [f"--trust={module}" for module in trusted()]
        return ["fit", *trust, *cell.words(self.options), f"--seed_everything={seed}"]

    def run(self, cell: Cell, seed: int, place: Path) -> SweepRun:
        """Runs a cell in its folder, which is emptied; what it prints goes into ``fit.log`` there.

        Raises:
            SystemExit: A signal stopped the run.
        """
        words = [*self.words(cell, seed), f"--trainer.default_root_dir={place}"]
        words += [f"--export.dirpath={place / 'model'}", f"--checkpoint.dirpath={place / 'checkpoints'}"]
        if option_value(words, "--resumable.minutes") is None:
            words.append("--resumable.minutes=null")  # a run that is killed is begun anew
        if option_value(words, "--trainer.enable_progress_bar") is None:
            words.append("--trainer.enable_progress_bar=false")
        empty(place)
        log = place / "fit.log"
        begun = time.perf_counter()
        with log.open("w", encoding="utf-8") as file, speaking_to(file), _alone(words):
            try:
                status: object = run(words)
            except SystemExit as left:
                # Lightning makes status 1 of a Ctrl-C before the first step.
                status = 130 if isinstance(left.__context__, KeyboardInterrupt) else left.code
        if isinstance(status, int) and status > 128:
            say(f"stopped in {cell.name}, seed {seed}; the same command goes on, with this run anew")
            raise SystemExit(status)
        seconds = round(time.perf_counter() - begun, 1)
        error = "" if status == 0 else _reason(log)
        done = SweepRun(cell.labels, seed, seconds, [] if error else read_validations(place), error)
        if not self.keep_weights:
            for weights in ("model", "checkpoints"):
                shutil.rmtree(place / weights, ignore_errors=True)
        self.folder.keep(place, done, command=shlex.join(["contrastive-text", *words]))
        gc.collect()  # a trainer and its parts refer to each other
        torch.cuda.empty_cache()
        return done


def _reason(log: Path) -> str:
    said = log.read_text(encoding="utf-8").rpartition("error: ")[2]
    return " ".join(said.split())[:300] or f"see {log}"


@contextlib.contextmanager
def _alone(words: Sequence[str]) -> Iterator[None]:
    """Lets a run start processes of its own for further devices, and leaves nothing of them to the next run."""
    typed, environment = sys.argv, dict(os.environ)
    sys.argv = [typed[0], *words]  # what Lightning starts them with
    try:
        yield
    finally:
        sys.argv = typed
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


def run_all(job: Job, cells: Sequence[Cell], seeds: Sequence[int], tabulate: Callable[[], SweepTable]) -> None:
    """Runs what isn't finished, seed by seed; a run that another process is at is left to it.

    Args:
        job: How.
        cells: The grid.
        seeds: For every cell.
        tabulate: Writes the tables, after every run, and gives them.

    Raises:
        ValueError: A run without the score of the table, which no other run would have either.
    """
    screen = console()
    every = [(cell, seed) for seed in seeds for cell in cells]
    waiting = [each for each in every if not job.folder.finished(*each)]
    if len(waiting) < len(every):
        screen.print(f"{len(every) - len(waiting)} of them finished before")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seconds: list[float] = []
    with Progress(*columns, console=screen, redirect_stdout=False, redirect_stderr=False) as progress:
        bar = progress.add_task("runs", total=len(every))
        while waiting:
            busy = []
            for cell, seed in waiting:
                progress.update(bar, completed=sum(job.folder.finished(*each) for each in every))
                with job.folder.held(cell, seed) as place:
                    if place is None:
                        busy.append((cell, seed))
                    elif not job.folder.finished(cell, seed):  # by another process, meanwhile
                        done = job.run(cell, seed, place)
                        seconds.append(done.seconds)
                        table = tabulate()
                        said = f"failed: {done.error}" if done.error else _score(table, done)
                        left = sum(job.folder.read(*each) is None for each in every)
                        line = (
                            f"{cell.name}, seed {seed}: {said} ({done.seconds:.0f} s){time_left(seconds, left)}"
                        )
                        screen.print(line, soft_wrap=True)
            if busy and len(busy) == len(waiting):
                time.sleep(_WAIT)
            waiting = busy
        progress.update(bar, completed=len(every))


def _score(table: SweepTable, run: SweepRun) -> str:
    return f"{table.score} {table.figures(run)[table.score]:.2f}"


def time_left(seconds: Sequence[float], runs: int) -> str:
    """Says how long the runs that are left will take, in one process.

    Args:
        seconds: What runs took so far.
        runs: How many are left.

    Example:
        >>> time_left([50.0, 70.0], 5), time_left([0.5], 1), time_left([9.0], 0)
        ('; 5 runs left, about 5 min', '; 1 run left, about 1 s', '')
    """
    expected = sum(seconds) / len(seconds) * runs
    if not runs:
        return ""
    if expected < 120:
        long = f"{math.ceil(expected)} s"
    else:
        long = f"{expected / 60:.0f} min" if expected < 7200 else f"{expected / 3600:.1f} h"
    return f"; {runs} run{'s' if runs > 1 else ''} left, about {long}"
