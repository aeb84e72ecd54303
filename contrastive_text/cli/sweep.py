"""Command ``sweep``: runs ``fit`` for each cell of a grid and each seed, and writes a table of the scores."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn

from contrastive_text.cli.commands import Sweep
from contrastive_text.cli.sweep_checks import (
    check_cells,
    check_metrics,
    check_recipes,
    check_words,
    describe_cells,
    read_reports,
    usual_score,
    with_seed,
)
from contrastive_text.cli.train import quieten
from contrastive_text.cli.words import SHORT, option_value
from contrastive_text.core.config.class_paths import trusted
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.storage.disk import atomic_file, hold_lock
from contrastive_text.core.terminal import print_message
from contrastive_text.inference.model_parts import build_pooler, pooler_name
from contrastive_text.metrics.verdict import Mode, usual_mode
from contrastive_text.recipes.layers import read_config
from contrastive_text.runs.grid import Axis, Cell, parse_vary, plan, read_grid
from contrastive_text.runs.sweep_figures import draw
from contrastive_text.runs.sweep_table import SweepRun, SweepTable
from contrastive_text.training.run_folder import CONFIG, changed_options

_FORMATS: Mapping[str, tuple[str, Callable[[SweepTable], str]]] = {
    "markdown": ("table.md", SweepTable.markdown),
    "latex": ("table.tex", SweepTable.latex),
    "csv": ("table.csv", SweepTable.csv),
    "json": ("table.json", SweepTable.json),
}
"""Format of a sweep's table -> file name and rendering method."""
_MOST_SEEDS = 10_000
_WAIT = 1.0
"""Seconds until a process checks again whether another process has finished a run."""


def sweep(options: Sweep) -> SweepTable | None:
    """Runs each cell of a grid with each seed, unless the run is finished, and writes the tables after each run.

    Returns:
        The table, or None with ``--dry_run``.

    Raises:
        ValueError: ``fit`` would refuse a configuration. No run has started.
        RuntimeError: A run failed. All other runs are complete.
    """
    quieten()
    axes = [*(read_grid(options.grid) if options.grid else ()), *map(parse_vary, options.vary)]
    axes = [Axis(",".join(SHORT.get(key, key) for key in axis.name.split(",")), axis.values) for axis in axes]
    cells, seeds = plan(axes), read_seeds(options.seeds)
    check_words(options.fit, axes)
    check_recipes(options.fit, axes)
    runs = Runs(options, axes, seeds)
    counts = [_count(len(cells), "cell"), _count(len(seeds), "seed"), _count(len(runs.every), "run")]
    print_message(f"{counts[0]} x {counts[1]} = {counts[2]}, in {options.output}")
    if runs.settings:
        print_message(runs.settings)
    if options.dry_run:
        for cell in cells:
            print_message(f"  {cell.name}:\n    contrastive-text {shlex.join(runs.words(cell, seeds[0]))}")
        return None
    runs.check_folders()
    options.output.mkdir(parents=True, exist_ok=True)
    names = [axis.name for axis in axes]

    def tabulate() -> SweepTable:
        table = SweepTable(
            names, cells, runs.results(), seeds, runs.select, options.take, runs.mode, runs.reports
        )
        for name, render in _FORMATS.values():
            with atomic_file(options.output / name) as file:
                file.write(f"{render(table)}\n".encode())
        return table

    _run_all(runs, tabulate)
    table = tabulate()
    draw(table, options.output)
    print_message(_FORMATS[options.format][1](table))
    if failures := table.failures():
        raise RunError(
            f"sweep: {len(failures)} of {len(runs.every)} runs failed, the first, "
            f"{Cell(failures[0].labels).name}, with: {failures[0].error}; the same command runs them again"
        )
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def read_seeds(numbers: Sequence[int]) -> list[int]:
    """Returns the seeds of ``--seeds``: 1 to N for a single number N, or the numbers if there are several.

    Raises:
        ValueError: There is no seed, a seed occurs twice, or a seed is negative.

    Example:
        >>> read_seeds([3]), read_seeds([1, 5])
        ([1, 2, 3], [1, 5])
    """
    if len(numbers) == 1 and numbers[0] > _MOST_SEEDS:
        raise InvalidValueError(
            f"--seeds: expected at most {_MOST_SEEDS:,} seeds, got {numbers[0]}; give a smaller number"
        )
    seeds = [*range(1, numbers[0] + 1)] if len(numbers) == 1 else [*numbers]
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        got = " ".join(map(str, numbers))
        raise InvalidValueError(f"--seeds: expected a number of 1 or more, or different seeds, got {got}")
    return seeds


class Runs:
    """Runs of a sweep, with their options, folders and scores.

    All configurations are parsed and built, and the data of all reports are read, before the first run.

    Args:
        options: Options of the command.
        axes: Axes of the grid.
        seeds: Seeds of every cell.

    Attributes:
        every: All pairs of a cell and a seed, sorted by seed.
        errors: Reason why a run failed, by cell and seed.
        select: Validation figure that selects the best weights of a run.
        mode: Whether a high or a low value of ``select`` is better.
        reports: Figures of the table.
        settings: Description of the settings that differ between cells of several recipes, or that are replaced.

    Raises:
        ValueError: ``fit`` would refuse a configuration, two configurations are equal, or a report can't be
            measured.
    """

    def __init__(self, options: Sweep, axes: Sequence[Axis], seeds: Sequence[int]) -> None:
        self._options = options
        cells = plan(axes)
        self.every = [(cell, seed) for seed in seeds for cell in cells]
        self.errors: dict[tuple[Cell, int], str] = {}
        self._configs = check_cells(cells, options, seeds[0])
        self.settings = describe_cells(self._configs, axes)
        first = self._configs[cells[0]]
        self.select = options.select or str(usual_score(first))
        check_metrics(self._configs, options)
        self.mode: Mode = first["checkpoint"]["mode"] or usual_mode(self.select)
        pooler = None if options.report_pooler is None else build_pooler(options.report_pooler)
        self._suffix = "" if pooler is None else f" ({pooler_name(pooler)})"
        self.reports = read_reports(options, self.select, self.mode, self._suffix)
        self._parts = {part for report in self.reports for part in report.parts}

    def place(self, cell: Cell, seed: int) -> Path:
        """Returns the folder of a run of the sweep."""
        return self._options.output / cell.folder / f"seed-{seed}"

    def lock(self, cell: Cell, seed: int) -> Path:
        """Returns the path that a process locks while it trains or measures a run."""
        return self.place(cell, seed).with_name(f"seed-{seed}.run")

    def read(self, cell: Cell, seed: int) -> SweepRun | None:
        """Returns the scores of a run of the sweep, or None if it isn't trained and measured yet."""
        return SweepRun.read(cell, seed, self.place(cell, seed))

    def results(self) -> list[SweepRun]:
        """Returns all runs of the sweep that are measured or have failed."""
        failed = [SweepRun(cell.labels, seed, error=error) for (cell, seed), error in self.errors.items()]
        results = [self.read(*pair) for pair in self.every if pair not in self.errors]
        return [*(run for run in results if run is not None), *failed]

    def is_finished(self, cell: Cell, seed: int) -> bool:
        """Returns whether a run is trained and has the scores of all reports."""
        run = self.read(cell, seed)
        return run is not None and self._parts <= run.scores.keys()

    def words(self, cell: Cell, seed: int) -> list[str]:
        """Returns the arguments of a run's command after ``contrastive-text``."""
        words = with_seed(cell.words(self._options.fit), seed)
        if option_value(words, "--trainer.enable_progress_bar") is None:
            words.append("--trainer.enable_progress_bar=false")
        words += [f"--checkpoint.monitor={self.select}", f"--seed_everything={seed}"]
        trust = [f"--trust={module}" for module in trusted()]
        return ["fit", *trust, *words, f"--folder={self.place(cell, seed)}"]

    def check_folders(self) -> None:
        """Checks that earlier runs in the folders have the options of this sweep, and weights for new reports.

        Raises:
            ValueError: A run has other options, or a run with missing scores has no weights.
        """
        without_weights = []
        for cell, seed in self.every:
            place = self.place(cell, seed)
            if not (place / CONFIG).is_file():
                continue
            saved, config = read_config(place / CONFIG), self._configs[cell]
            config = {**config, "checkpoint": {**config["checkpoint"], "monitor": self.select}}
            changes = changed_options(saved, config, "seed_everything")
            start = option_value(with_seed(cell.words(self._options.fit), seed), "--init_from")
            if start is not None and start != saved.get("init_from"):
                changes.append(f"init_from {start!r} instead of {saved.get('init_from')!r}")
            if changes:
                more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
                raise InvalidValueError(
                    f"--output: expected the options of the run in {place}, got {'; '.join(changes[:3])}"
                    f"{more}; give the same options, or name another folder"
                )
            if self.read(cell, seed) and not self.is_finished(cell, seed) and not (place / "model").is_dir():
                without_weights.append(str(place))
        if without_weights:
            raise InvalidValueError(
                f"--report: expected runs with the scores of all reports, or with weights to measure, got "
                f"{len(without_weights)} runs without weights: {' '.join(without_weights)}; delete them to "
                f"train them again, or remove the report"
            )

    def run(self, cell: Cell, seed: int) -> None:
        """Trains or resumes a run, measures its best weights, and deletes them without ``--keep_weights``."""
        place = self.place(cell, seed)
        place.parent.mkdir(parents=True, exist_ok=True)
        log, start, earlier = place.with_suffix(".log"), time.perf_counter(), self.read(cell, seed)
        scores = {} if earlier is None else dict(earlier.scores)
        error = _call(self.words(cell, seed), log) if earlier is None else ""
        for suite in dict.fromkeys(part.partition(":")[0] for part in self._parts - scores.keys()):
            error = error or self._measure(suite, place, log, scores)
        if error:
            self.errors[cell, seed] = error.replace("checkpoint.monitor: ", "--select: ", 1)
            return
        SweepRun(cell.labels, seed, round(time.perf_counter() - start, 1), scores=scores).write(place)
        if not self._options.keep_weights:
            for weights in ("checkpoints", "model"):
                shutil.rmtree(place / weights, ignore_errors=True)

    def _measure(self, suite: str, place: Path, log: Path, scores: dict[str, float]) -> str:
        """Adds the scores of a suite to the scores of a run. Returns the error, or an empty string."""
        output = place.with_suffix(".json")
        words = ["evaluate", str(place / "model"), "--suite", suite, "--data", str(self._options.report_data)]
        words += [] if self._options.report_pooler is None else ["--pooler", self._options.report_pooler]
        if error := _call([*words, "--format", "json", "--output", str(output)], log, mode="ab"):
            return error
        (table,) = json.loads(output.read_text(encoding="utf-8"))[suite]["models"].values()
        output.unlink()
        for task in table["tasks"]:
            scores[f"{suite}:{task['task']}{self._suffix}"] = math.nan if task["score"] is None else task["score"]
        return ""


def _call(words: Sequence[str], log: Path, mode: Literal["wb", "ab"] = "wb") -> str:
    """Runs a command in a process and writes its output to a file. Returns the error, or an empty string.

    Raises:
        SystemExit: A signal stopped this process. The command gets SIGTERM, so that ``fit`` saves a checkpoint.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  # Python's signature
        raise SystemExit(128 + number)

    old_handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            log.open(mode) as file,
            subprocess.Popen(
                [sys.executable, "-m", "contrastive_text", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process only
            ) as process,
        ):
            try:
                status = process.wait()
            except SystemExit:
                process.terminate()
                process.wait()
                print_message(f"stopped; the same command resumes the run of {log}")
                raise
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
    if status == 0:
        return ""
    reason = log.read_text(encoding="utf-8", errors="replace").rpartition("error: ")[2]
    return " ".join(reason.split())[:300] or f"see {log}"


def _run_all(runs: Runs, tabulate: Callable[[], SweepTable]) -> None:
    """Runs all unfinished runs of the sweep, seed by seed. Waits for runs that another process trains."""
    waiting = [pair for pair in runs.every if not runs.is_finished(*pair)]
    if len(waiting) < len(runs.every):
        print_message(f"{len(runs.every) - len(waiting)} of them are finished already")
    seconds: list[float] = []
    tabulate()
    while waiting:
        busy = []
        for cell, seed in waiting:
            with hold_lock(runs.lock(cell, seed)) as is_mine:
                if not is_mine or _is_training(runs.place(cell, seed)):
                    busy.append((cell, seed))
                elif not runs.is_finished(cell, seed):  # another process may have finished it
                    start = time.perf_counter()
                    runs.run(cell, seed)
                    seconds.append(time.perf_counter() - start)
                    _say_run(runs, tabulate(), cell, seed, seconds)
        if len(busy) == len(waiting):
            time.sleep(_WAIT)
        waiting = busy


def _is_training(place: Path) -> bool:
    """Returns whether the fit of a killed sweep still runs in a folder."""
    with hold_lock(place) as is_free:
        return not is_free


def _say_run(runs: Runs, table: SweepTable, cell: Cell, seed: int, seconds: Sequence[float]) -> None:
    """Prints the scores or the error of a run, and the time that the remaining runs will take."""
    run = next(run for run in table.runs if (run.labels, run.seed) == (cell.labels, seed))
    scores = ", ".join(f"{report.name} {figure:.2f}" for report, figure in table.reported(run).items())
    remaining = len(runs.every) - len(table.runs)
    result = f"failed: {run.error}" if run.error else scores
    print_message(f"{cell.name}, seed {seed}: {result} ({seconds[-1]:.0f} s){time_left(seconds, remaining)}")


def time_left(seconds: Sequence[float], runs: int) -> str:
    """Estimates the time that the remaining runs take in one process, as text.

    Args:
        seconds: Duration of each run so far, in seconds.
        runs: Number of the remaining runs.

    Example:
        >>> time_left([50.0, 70.0], 5), time_left([0.5], 1), time_left([9.0], 0)
        ('; 5 runs left, about 5 min', '; 1 run left, about 1 s', '')
    """
    expected = sum(seconds) / len(seconds) * runs
    if not runs:
        return ""
    if expected < 120:
        duration = f"{math.ceil(expected)} s"
    else:
        duration = f"{expected / 60:.0f} min" if expected < 7200 else f"{expected / 3600:.1f} h"
    return f"; {_count(runs, 'run')} left, about {duration}"
