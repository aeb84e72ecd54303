"""What is checked before a sweep's first run: its words, and the configuration of every cell."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TextIO

from jsonargparse import Namespace, get_loader
from pytorch_lightning.cli import LightningArgumentParser

from contrastive_text.cli.answers import constructor_answer
from contrastive_text.cli.configuration import configured
from contrastive_text.cli.words import expand_recipes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes.layers import Config
from contrastive_text.runs.sweeps import Axis, Cell
from contrastive_text.runs.sweeps.stages import split_stage
from contrastive_text.training.callbacks import PAIR_SCORE, RANKING_SCORE, TASK_SCORE
from contrastive_text.training.initial_weights import check_initial_weights
from contrastive_text.training.run import Run

_OURS = {
    "seed_everything": "--seeds",
    "data.seed": "--seeds",
    "trainer.default_root_dir": "--output",
    "folder": "--output",
    "export.dirpath": "--keep_weights, which keeps the model of each run in its own folder",
    "checkpoint.dirpath": "--keep_weights, which keeps the checkpoints of each run in its own folder",
    "ckpt_path": "--init_from, for each run starts anew",
}
"""Option of ``fit`` that a sweep sets itself -> what to give in its place."""
_OF_THE_FIRST = {
    "init_from": "nothing, for a further stage begins with the weights of the one before",
    "recipe": "--then, or --vary then=...",
}
"""The same of every stage but the first."""


def check_words(words: Sequence[str], axes: Sequence[Axis], cells: Sequence[Cell], select: str | None) -> None:
    """Checks for options that a sweep sets itself, of stages that no cell has, or inside a part that varies.

    Args:
        words: Options of ``fit`` that all cells share.
        axes: What varies.
        cells: The grid.
        select: What chooses, where it is given.

    Raises:
        ValueError: Such an option, or several processes of one sweep.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidValueError(
            "sweep: expected to be started once, got several processes; each run starts its own"
        )
    given = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    varied = [key for axis in axes for key in axis.name.split(",") if key != "then"]
    ends = {cell.stages[-1] for cell in cells}
    for key in (*given, *varied):
        stage, plain = split_stage(key)
        ours = _OURS if stage == 1 else _OURS | _OF_THE_FIRST
        if select is not None and (stage in ends or stage is None):
            ours = ours | {"checkpoint.monitor": f"{select} with --select alone"}
        if plain in ours:
            raise InvalidValueError(f"--{key}: expected none, for a sweep sets it, got one; give {ours[plain]}")
        if stage is not None and stage > max(ends):
            raise InvalidValueError(
                f"--{key}: expected a stage up to {max(ends)}, got one more; add it with --then"
            )
    for option in given:
        for key in varied:
            if _plain(option).startswith(f"{_plain(key)}."):
                raise InvalidValueError(
                    f"--{option}: expected no option inside of {key}, which varies, got one, that would override "
                    "every value; write it into the values, as in Class(rate=0.3)"
                )


def _plain(key: str) -> str:
    return key.replace(".init_args", "")


def check_cells(cells: Sequence[Cell], words: Sequence[str]) -> dict[str, list[Config]]:
    """Returns the configurations of every cell's stages by its name, once all are parsed and then all are built.

    Args:
        cells: The grid.
        words: Options of ``fit`` that all cells share.

    Raises:
        ValueError: A stage that ``fit`` would refuse, or that can't begin with the weights of the one before; two
            cells of one configuration, one without validation, or a logger.
    """
    configs: dict[str, list[Config]] = {}
    parsed: list[list[tuple[LightningArgumentParser, Namespace]]] = []
    for cell in cells:
        stages = []
        for stage in cell.stages:
            with _named(cell, stage):
                stages.append(configured("views", expand_recipes(cell.words(words, stage))))
        parsed.append(stages)
        read = [_config(parser, namespace) for parser, namespace in stages]
        _check_config(cell, read)
        same = next((name for name, known in configs.items() if known == read), None)
        if same is not None:
            raise InvalidValueError(
                f"--vary: expected different runs, got one configuration for {same} and {cell.name}; drop a "
                "value, or the option that overrides it"
            )
        configs[cell.name] = read
    for cell, stages in zip(cells, parsed, strict=True):
        before: Run | None = None
        for stage, (parser, namespace) in zip(cell.stages, stages, strict=True):
            with _named(cell, stage):
                run = Run(parser, namespace)
                if before is not None:
                    check_initial_weights(run.module, before.module, keep_heads=namespace["keep_heads"])
            before = run
    return configs


def _config(parser: LightningArgumentParser, namespace: Namespace) -> Config:
    config: Config = get_loader("yaml")(parser.dump(namespace, skip_none=False))
    for apart in ("n", "seed_everything"):  # of the command ``views``; and what differs from run to run
        del config[apart]
    return config


def _check_config(cell: Cell, stages: Sequence[Config]) -> None:
    if not validated(stages[-1]):
        option = "--data.validation" if len(stages) == 1 else f"--stage{len(stages)}.data.validation"
        raise InvalidValueError(
            f"data.validation: expected a file to score the runs on, got none for {cell.name}; give "
            f"{option} PAIRS.tsv, data.retrieval.files a folder, or data.task.held_out a file like the one to "
            "train on"
        )
    for config in stages:
        if config["trainer"]["logger"] is False or "CSVLogger" in str(config["trainer"]["logger"]):
            raise InvalidValueError(
                f"trainer.logger: expected none, or loggers beside the runs' own metrics.csv, got "
                f"{config['trainer']['logger']} for {cell.name}; leave it out, for the table is made of that file"
            )


def noted(cell: Cell, stages: Sequence[Config], select: str) -> dict[str, Config]:
    """Returns what the plan of a sweep notes of a cell: a name and a configuration for each stage.

    What chooses the weights is written out, so that an option that says what would be chosen anyway is no change.

    Args:
        cell: A place of the grid.
        stages: The configurations of its stages.
        select: What chooses the weights of the last one.
    """
    names = [cell.name, *(f"{cell.name}, stage {stage}" for stage in cell.stages[1:])]
    monitors = [*map(chosen_by, stages[:-1]), select]
    found = {
        name: {**config, "checkpoint": {**config["checkpoint"], "monitor": monitor}}
        for name, config, monitor in zip(names, stages, monitors, strict=True)
    }
    found[cell.name]["then"] = [*cell.then]
    return found


def chosen_by(config: Config) -> str:
    """Returns the figure by which ``fit`` chooses the best checkpoint.

    Raises:
        ValueError: Held-out rows alone, of which each objective has a loss.
    """
    usual = {"tasks": TASK_SCORE, "pairs": PAIR_SCORE, "retrieval": RANKING_SCORE, "": PAIR_SCORE}
    chosen = config["checkpoint"]["monitor"] or usual.get(validated(config))
    if chosen is None:
        raise InvalidValueError(
            "--select: expected the loss that chooses, for there are held-out rows alone, got none; give "
            "--select val/OBJECTIVE/loss, of a stage before the last checkpoint.monitor"
        )
    return str(chosen)


def validated(config: Config) -> str:
    """Returns what validates a run: ``tasks``, else ``pairs``, ``retrieval`` or ``held_out``; empty for none."""
    data = config["data"]
    tasks = (data["tasks"] or {}).values()
    if any(task["validation"] for task in tasks):
        return "tasks"
    if data["validation"]:
        return "pairs"
    held_out = data["task"]["held_out"] or any(task["held_out"] for task in tasks)
    return "retrieval" if data["retrieval"]["files"] else "held_out" if held_out else ""


@contextlib.contextmanager
def _named(cell: Cell, stage: int) -> Iterator[None]:
    """Keeps quiet what parsing or building a stage says; what is wrong is said with the name of the cell."""
    said = io.StringIO()
    place = f"in the cell {cell.name}" + (f", stage {stage}" if len(cell.stages) > 1 else "")
    try:
        with speaking_to(said):
            yield
    except SystemExit as error:  # the parser's answer
        reason = said.getvalue().rpartition("error: ")[2].strip()
        raise InvalidValueError(f"{place}: {reason}") from error
    except ValueError as error:
        raise InvalidValueError(f"{place}: {constructor_answer(str(error)) or error}") from error


@contextlib.contextmanager
def speaking_to(file: TextIO) -> Iterator[None]:
    """Sends what is printed, warned and logged into a file."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    handlers = [each for logger in loggers for each in logger.handlers if type(each) is logging.StreamHandler]
    streams = [(handler, handler.setStream(file)) for handler in handlers]
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            yield
    finally:
        for handler, stream in streams:
            if stream is not None:
                handler.setStream(stream)
