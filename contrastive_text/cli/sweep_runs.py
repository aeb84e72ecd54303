"""The runs of a sweep, one after the other in this process, beside other processes that share the folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from contrastive_text.cli.sweep_job import Job
from contrastive_text.core.console import console
from contrastive_text.runs.sweeps import Cell, SweepRun, SweepTable

_WAIT = 1.0
"""Seconds after which a process looks again whether another one has finished."""


def run_all(job: Job, cells: Sequence[Cell], seeds: Sequence[int], tabulate: Callable[[], SweepTable]) -> None:
    """Runs what isn't finished, seed by seed; a run that another process is at is left to it.

    Args:
        job: How.
        cells: The grid.
        seeds: For every cell.
        tabulate: Writes the tables, after every run, and gives them.

    Raises:
        ValueError: A run without the figure that chooses or is shown, which no other run would have either.
    """
    screen = console()
    every = [(cell, seed) for seed in seeds for cell in cells]
    waiting = [each for each in every if not job.finished(*each)]
    if len(waiting) < len(every):
        screen.print(f"{len(every) - len(waiting)} of them finished before")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seconds: list[float] = []
    with Progress(*columns, console=screen, redirect_stdout=False, redirect_stderr=False) as progress:
        bar = progress.add_task("runs", total=len(every))
        while waiting:
            busy = []
            for cell, seed in waiting:
                progress.update(bar, completed=sum(job.finished(*each) for each in every))
                with job.folder.held(cell, seed) as place:
                    if place is None:
                        busy.append((cell, seed))
                    elif not job.finished(cell, seed):  # by another process, meanwhile
                        done = job.run(cell, seed, place)
                        seconds.append(done.seconds)
                        table = tabulate()
                        said = f"failed: {done.error}" if done.error else _scores(table, done)
                        left = sum(job.folder.read(*each) is None for each in every)
                        line = (
                            f"{cell.name}, seed {seed}: {said} ({done.seconds:.0f} s){time_left(seconds, left)}"
                        )
                        screen.print(line, soft_wrap=True)
            if busy and len(busy) == len(waiting):
                time.sleep(_WAIT)
            waiting = busy
        progress.update(bar, completed=len(every))
    for cell, seed in every:
        job.tidy(cell, seed)  # after a kill between the record of a run and the end of its weights


def _scores(table: SweepTable, run: SweepRun) -> str:
    return ", ".join(f"{report.name} {figure:.2f}" for report, figure in table.reported(run).items())


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
