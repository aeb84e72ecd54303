"""The command that runs a grid of fits and makes a table of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from contrastive_text.cli.commands import Sweep
from contrastive_text.cli.options import paths_of
from contrastive_text.cli.paths import RUN_READS, check_paths
from contrastive_text.cli.sweep_checks import check_cells, check_words, validated
from contrastive_text.cli.sweep_runs import Job, run_all
from contrastive_text.cli.train import quieten
from contrastive_text.cli.words import option_values
from contrastive_text.core.disk import replacing
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.terminal import say
from contrastive_text.recipes.layers import Config
from contrastive_text.runs.report.heat_map import heat_map, picture, points
from contrastive_text.runs.sweeps import SweepFolder, SweepTable, parse_vary, plan
from contrastive_text.training.callbacks import PAIR_SCORE, TASK_SCORE

_FORMATS: Mapping[str, tuple[str, Callable[[SweepTable], str]]] = {
    "markdown": ("table.md", SweepTable.markdown),
    "csv": ("table.csv", SweepTable.csv),
    "json": ("table.json", SweepTable.json),
}
"""Name of a format -> its file, and what makes it."""
_MOST_SEEDS = 10_000


def sweep(options: Sweep) -> None:
    """Runs every cell of a grid under every seed that isn't finished, and writes the tables as it goes.

    Raises:
        ValueError: A configuration that ``fit`` would refuse, before anything is run.
        RuntimeError: Runs failed; the others were done.
    """
    quieten()
    axes = [parse_vary(typed) for typed in options.vary]
    cells, seeds = plan(axes), read_seeds(options.seeds)
    check_words(options.fit, axes)
    configs = check_cells(cells, options.fit)
    for config in configs.values():
        values = {**config, "output": options.output, "config": option_values(options.fit, "--config")}
        check_paths(RUN_READS | paths_of(Sweep), values)
    first = configs[cells[0].name]
    score = options.score or _chosen_by(first)
    if not score.startswith("val/"):
        raise InvalidValueError(f"--score: expected a figure of the validation such as {PAIR_SCORE}, got {score}")
    job = Job(options.fit, SweepFolder(options.output), options.keep_weights)
    say(f"{len(cells)} cells x {len(seeds)} seeds = {len(cells) * len(seeds)} runs, in {options.output}")
    if options.dry_run:
        for cell in cells:
            say(f"  {cell.name}:\n    contrastive-text {shlex.join(job.words(cell, seeds[0]))}")
        return
    names = [axis.name for axis in axes]
    job.folder.check_plan(names, configs)

    def tabulate() -> SweepTable:
        found = [job.folder.read(cell, seed) for cell in cells for seed in seeds]
        runs = [run for run in found if run is not None]
        table = SweepTable(names, cells, runs, seeds, score, options.take, first["checkpoint"]["mode"])
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


def _chosen_by(config: Config) -> str:
    """Returns the figure by which ``fit`` chooses the best checkpoint."""
    return str(config["checkpoint"]["monitor"] or (TASK_SCORE if validated(config) == "tasks" else PAIR_SCORE))


def draw(table: SweepTable, folder: Path) -> None:
    """Draws the heat map of two keys, or the points of one, as PNG and SVG; three or more have tables only."""
    figures = {cell.labels: table.mean_and_sd(cell) for cell in table.cells}
    labels = [list(dict.fromkeys(each)) for each in zip(*figures, strict=True)]
    title = f"{table.score}, mean ± sd over {len(table.seeds)} seeds" if len(table.seeds) > 1 else table.score
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
            each = [[[figures[row, column][i] for column in columns] for row in rows] for i in (0, 1)]
            figure = heat_map(each[0], each[1], rows, columns, (table.axes[0], table.axes[1]), title)
    except ImportError as error:
        say(f"note: no figure: {error}")
        return
    kinds: tuple[Literal["png", "svg"], ...] = ("png", "svg")
    for kind in kinds:
        with replacing(folder / f"{name}.{kind}") as file:
            file.write(picture(figure, kind))
