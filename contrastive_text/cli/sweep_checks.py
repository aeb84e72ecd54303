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
from contrastive_text.training.run import Run

_OURS = {
    "seed_everything": "--seeds",
    "data.seed": "--seeds",
    "trainer.default_root_dir": "--output",
    "export.dirpath": "--keep_weights, which keeps the model of each run in its own folder",
    "checkpoint.dirpath": "--keep_weights, which keeps the checkpoints of each run in its own folder",
    "ckpt_path": "--init_from, for each run starts anew",
    "trainer.logger": "nothing, for the table is made of the CSV files that runs write by default",
}
"""Option of ``fit`` that a sweep sets itself -> what to give in its place."""


def check_words(words: Sequence[str], axes: Sequence[Axis]) -> None:
    """Checks for options that a sweep sets itself, and for options inside a part that varies.

    Raises:
        ValueError: Such an option, or several processes of one sweep.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidValueError(
            "sweep: expected to be started once, got several processes; each run starts its own"
        )
    given = [word.partition("=")[0].removeprefix("--") for word in words if word.startswith("--")]
    varied = [key for axis in axes for key in axis.name.split(",")]
    for key in (*given, *varied):
        if key in _OURS:
            raise InvalidValueError(f"--{key}: expected none, for a sweep sets it, got one; give {_OURS[key]}")
    for option in given:
        for key in varied:
            if _plain(option).startswith(f"{_plain(key)}."):
                raise InvalidValueError(
                    f"--{option}: expected no option inside of {key}, which varies, got one, that would override "
                    "every value; write it into the values, as in Class(rate=0.3)"
                )


def _plain(key: str) -> str:
    return key.replace(".init_args", "")


def check_cells(cells: Sequence[Cell], words: Sequence[str]) -> dict[str, Config]:
    """Returns the configuration of every cell by its name, once all are parsed and then all are built.

    Args:
        cells: The grid.
        words: Options of ``fit`` that all cells share.

    Raises:
        ValueError: A cell that ``fit`` would refuse, two cells of one configuration, one without validation, or a
            logger.
    """
    configs: dict[str, Config] = {}
    parsed: list[tuple[LightningArgumentParser, Namespace]] = []
    for cell in cells:
        with _named(cell):
            parser, namespace = configured("views", expand_recipes(cell.words(words)))
        parsed.append((parser, namespace))
        config = get_loader("yaml")(parser.dump(namespace, skip_none=False))
        for apart in ("n", "seed_everything"):  # of the command ``views``; and what differs from run to run
            del config[apart]
        if not validated(config):
            raise InvalidValueError(
                f"data.validation: expected a file to score the runs on, got none for {cell.name}; give "
                "--data.validation PAIRS.tsv"
            )
        if config["trainer"]["logger"] not in (None, True):
            raise InvalidValueError(
                f"trainer.logger: expected none, got one for {cell.name}; leave it out, for the table is made of "
                "the CSV files that runs write by default"
            )
        same = next((name for name, known in configs.items() if known == config), None)
        if same is not None:
            raise InvalidValueError(
                f"--vary: expected different runs, got one configuration for {same} and {cell.name}; drop a "
                "value, or the option that overrides it"
            )
        configs[cell.name] = config
    for cell, (parser, namespace) in zip(cells, parsed, strict=True):
        with _named(cell):
            Run(parser, namespace)
    return configs


def validated(config: Config) -> str:
    """Returns whose validation files a run has: ``tasks``, else ``pairs``; empty for none."""
    data = config["data"]
    if any(task["validation"] for task in (data["tasks"] or {}).values()):
        return "tasks"
    return "pairs" if data["validation"] else ""


@contextlib.contextmanager
def _named(cell: Cell) -> Iterator[None]:
    """Keeps quiet what parsing or building a cell says; what is wrong is said with the cell's name."""
    said = io.StringIO()
    try:
        with speaking_to(said):
            yield
    except SystemExit as error:  # the parser's answer
        reason = said.getvalue().rpartition("error: ")[2].strip()
        raise InvalidValueError(f"in the cell {cell.name}: {reason}") from error
    except ValueError as error:
        raise InvalidValueError(f"in the cell {cell.name}: {constructor_answer(str(error)) or error}") from error


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
