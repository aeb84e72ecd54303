"""The command that runs a grid of fits and makes a table of it."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from contrastive_text.cli.commands import Sweep
from contrastive_text.cli.options import paths_of
from contrastive_text.cli.paths import RUN_READS, check_paths
from contrastive_text.cli.sweep_checks import check_cells, check_words, chosen_by, noted
from contrastive_text.cli.sweep_job import Job, check_weights
from contrastive_text.cli.sweep_runs import run_all
from contrastive_text.cli.sweep_scores import SweepScores, check_reports
from contrastive_text.cli.train import quieten
from contrastive_text.cli.words import option_values
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.terminal import say
from contrastive_text.metrics.verdicts import usual_mode
from contrastive_text.runs.report.heat_map import heat_map, picture, points
from contrastive_text.runs.sweeps import Cell, SweepFolder, SweepTable, parse_vary, plan

_FORMATS: Mapping[str, tuple[str, Callable[[SweepTable], str]]] = {
    "markdown": ("table.md", SweepTable.markdown),
    "csv": ("table.csv", SweepTable.csv),
    "json": ("table.json", SweepTable.json),
}
"""Name of a format -> its file, and what makes it."""
_MOST_SEEDS = 10_000
_TITLE = 40
"""Letters in a line of a figure's title, as the narrowest has room for."""


def sweep(options: Sweep) -> None:
    """Runs every cell of a grid under every seed that isn't finished, and writes the tables as it goes.

    Raises:
        ValueError: A configuration that ``fit`` would refuse, before anything is run.
        RuntimeError: Runs failed; the others were done.
    """
    quieten()
    axes = [parse_vary(typed) for typed in options.vary]
    cells, seeds = plan(axes, options.then), read_seeds(options.seeds)
    check_reports(options)
    check_words(options.fit, axes, cells, options.select)
    configs = check_cells(cells, options.fit)
    for cell in cells:
        for stage, config in zip(cell.stages, configs[cell.name], strict=True):
            files = option_values(cell.words(options.fit, stage), "--config")
            check_paths(RUN_READS | paths_of(Sweep), {**config, **vars(options), "config": files})
    last = {name: stages[-1] for name, stages in configs.items()}
    first = last[cells[0].name]
    select = options.select or chosen_by(first)
    mode = first["checkpoint"]["mode"] or usual_mode(select)
    scores = SweepScores(options, select, mode)
    scores.check(last)
    job = Job(options.fit, SweepFolder(options.output), options.keep_weights, options.select, scores, last)
    _say_grid(cells, seeds, options.output)
    if options.dry_run:
        _say_commands(job, cells, seeds[0])
        return
    names = [axis.name for axis in axes]
    notes = [noted(cell, configs[cell.name], select) for cell in cells]
    job.folder.check_plan(names, {name: config for note in notes for name, config in note.items()})
    check_weights(job, cells, seeds)

    def tabulate() -> SweepTable:
        found = [job.folder.read(cell, seed) for cell in cells for seed in seeds]
        runs = [run for run in found if run is not None]
        table = SweepTable(names, cells, runs, seeds, select, options.take, mode, scores.reports)
        for name, made in _FORMATS.values():
            with replacing(options.output / name) as file:
                file.write(f"{made(table)}\n".encode())
        return table

    run_all(job, cells, seeds, tabulate)
    table = tabulate()
    draw(table, options.output)
    say(_FORMATS[options.format][1](table))
    if failures := table.failures():
        raise RunError(
            f"sweep: {len(failures)} of {len(cells) * len(seeds)} runs failed, the first, "
            f"{' | '.join(failures[0].labels)}, with: {failures[0].error}; the same command tries them again"
        )


def _say_grid(cells: Sequence[Cell], seeds: Sequence[int], output: Path) -> None:
    numbers = sorted({len(cell.stages) for cell in cells})
    stages = f" of {' or '.join(map(str, numbers))} stages" if numbers != [1] else ""
    counts = [
        _counted(len(cells), "cell"),
        _counted(len(seeds), "seed"),
        _counted(len(cells) * len(seeds), "run"),
    ]
    say(f"{counts[0]} x {counts[1]} = {counts[2]}{stages}, in {output}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _say_commands(job: Job, cells: Sequence[Cell], seed: int) -> None:
    for cell in cells:
        say(f"  {cell.name}:")
        for stage in cell.stages:
            say(f"    contrastive-text {shlex.join(job.words(cell, seed, stage))}")


def read_seeds(given: Sequence[int]) -> list[int]:
    """Returns the seeds: 1 to N for a single number, or those that are named.

    Raises:
        ValueError: None, the same one twice, or one below 0.

    Example:
        >>> read_seeds([3]), read_seeds([1, 5])
        ([1, 2, 3], [1, 5])
    """
    if len(given) == 1 and given[0] > _MOST_SEEDS:
        raise InvalidValueError(f"--seeds: expected at most {_MOST_SEEDS:,} of them, got {given[0]}; name fewer")
    seeds = [*range(1, given[0] + 1)] if len(given) == 1 else [*given]
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        said = " ".join(map(str, given))
        raise InvalidValueError(f"--seeds: expected a number of 1 or more, or different seeds, got {said}")
    return seeds


def draw(table: SweepTable, folder: Path) -> None:
    """Draws the first report: as a heat map of two keys, or the points of one; three or more have tables only."""
    column = table.columns()[0]
    figures = {cell.labels: column.spread(cell) for cell in table.cells}
    labels = [list(dict.fromkeys(each)) for each in zip(*figures, strict=True)]
    over = f", mean ± sd over {len(table.seeds)} seeds" if len(table.seeds) > 1 else ""
    title = textwrap.fill(f"{column.report.title}{over}", _TITLE)
    if len(labels) > 2:
        return
    try:
        if len(labels) == 1:
            name = "points"
            means, sds = zip(*figures.values(), strict=True)
            figure = points(means, sds, labels[0], table.axes[0], title)
        else:
            name = "heat_map"
            rows, columns = labels
            each = [[[figures[row, label][i] for label in columns] for row in rows] for i in (0, 1)]
            figure = heat_map(each[0], each[1], rows, columns, (table.axes[0], table.axes[1]), title)
    except ImportError as error:
        say(f"note: no figure: {error}")
        return
    kinds: tuple[Literal["png", "svg"], ...] = ("png", "svg")
    for kind in kinds:
        with replacing(folder / f"{name}.{kind}") as file:
            file.write(picture(figure, kind))
