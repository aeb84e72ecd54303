"""The configuration of a run: its places, and the parser that checks and makes what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
from jsonargparse import ActionYesNo
from pytorch_lightning.cli import LightningArgumentParser

from contrastive_text.core.config.class_paths import dotted_texts, find_own, own_modules
from contrastive_text.core.config.foreign import importing_only
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import Config
from contrastive_text.training.callbacks import BestCheckpoint, ExportModel, SaveWhenStopped
from contrastive_text.training.module import ContrastiveModule

PLACES = {
    "model": ContrastiveModule,
    "data": TextDataModule,
    "trainer": pl.Trainer,
    "checkpoint": BestCheckpoint,
    "export": ExportModel,
    "resumable": SaveWhenStopped,
}
"""Places of a configuration that hold the arguments of a class."""
VALUES = (
    *("seed_everything", "folder", "init_from", "keep_heads", "chunk", "oversubscribe", "ckpt_path"),
    "weights_only",
)
"""What stands beside them: a plain value each."""
_METHODS = ("fit", "validate", "test", "predict")
"""Methods of the trainer that a run calls."""
_GIVEN = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
"""Arguments of these methods that no configuration holds."""
_OF_A_TRAINER = ("best", "last", "hpc")
"""Lightning's words for a checkpoint of its own earlier run in the same process."""


def run_parser(
    command: str = "fit", kind: type[LightningArgumentParser] = LightningArgumentParser
) -> LightningArgumentParser:
    """Returns the parser of a run's configuration, over ``base.yaml``.

    Args:
        command: ``fit``, ``validate``, ``test`` or ``predict``, whose own options it has too; ``views``, which
            has one; another has none.
        kind: Its class, which may answer errors in its own way.
    """
    # A copy: whoever parses may leave something in it, such as print_config.
    return copy(_built(command, kind))  # type: ignore[arg-type]  # mypy looks for the hash of an object of the class


@cache  # to read the signatures takes as long as to parse; a sweep has a parser for each cell
def _built(command: str, kind: type[LightningArgumentParser]) -> LightningArgumentParser:
    """Returns a parser that only copies of are used."""
    parser = kind(
        prog=f"contrastive-text {command}",
        default_config_files=[str(BASE)],
        dump_header=[f"pytorch_lightning=={version('pytorch-lightning')}"],
        exit_on_error=False,
    )
    parser.add_argument("-c", "--config", action="config", help="a YAML file; later ones override earlier")
    parser.add_argument("--seed_everything", type=bool | int, default=42, help="one seed for all; true draws one")
    for place in ("trainer", *(name for name in PLACES if name != "trainer")):
        parser.add_class_arguments(
            PLACES[place], place, fail_untyped=False, instantiate=place != "trainer", sub_configs=True
        )
    parser.link_arguments("seed_everything", "data.seed")
    parser.add_argument(
        "--folder",
        type=str | None,
        default=None,
        help="fit: the run's folder in place of runs/version_N; the same command starts or resumes the run there",
    )
    parser.add_argument(
        "--init_from",
        type=str | None,
        default=None,
        help="fit: start from the weights of a .ckpt file, of a run's best checkpoint, or of a saved model",
    )
    parser.add_argument(
        "--keep_heads",
        action=ActionYesNo,
        nargs="?",
        default=False,
        help="fit: with --init_from, go on with the weights of objectives that the run before has by these names",
    )
    parser.add_argument(
        "--chunk",
        type=Literal["auto"] | int | None,
        default=None,
        help="fit: tokens encoded together; auto for as many as fit into memory (model.chunk_tokens)",
    )
    parser.add_argument(
        "--oversubscribe", type=bool, default=False, help="allow more processes than the cores can carry"
    )
    if command in _METHODS:
        parser.add_method_arguments(pl.Trainer, command, skip=_GIVEN)
    elif command == "views":
        parser.add_argument("--n", type=int, default=3, help="rows to show")
    return parser


def check_places(config: Mapping[str, Any]) -> None:
    """Checks that the places of a configuration hold arguments.

    Args:
        config: Names and values, as YAML holds them.

    Raises:
        ValueError: The name of a file, which the parser would read without merging it; or a seed of the data.
    """
    for place in PLACES:
        inner = config.get(place)
        if inner is not None and not isinstance(inner, Mapping):
            raise InvalidValueError(
                f"{place}: expected names and values, got {inner!r}; lay files over each other with --config"
            )
    if (seed := (config.get("data") or {}).get("seed")) is not None:
        raise InvalidValueError(
            f"data.seed: expected no value in a run, whose one seed is for weights and data, got {seed}; set "
            "seed_everything"
        )


@contextmanager
def importing_parts(config: Config, is_foreign: bool, typed: Iterable[str] = ()) -> Iterator[None]:
    """Prepares the import of the parts of a configuration while the block parses it.

    Modules of the user's own parts are found in the working directory. Where arguments are a stranger's,
    the parser imports the modules of parts that were checked, and modules that the user typed, and no others.

    Args:
        config: Names and values, merged from all files.
        is_foreign: Whether a part of the configuration comes from a checkpoint or the folder of a run.
        typed: Values of options.
    """
    named = [name for value in typed for name in re.findall(r"[^\W\d]\w*(?:\.\w+)+", value)]
    modules = [*own_modules(config), *(name.rpartition(".")[0] for name in named)]
    for module in modules if is_foreign else (*modules, *dotted_texts(config)):
        find_own(module)
    with importing_only(modules) if is_foreign else nullcontext():
        yield


def checkpoint_parts(path: str, to_resume: bool = False) -> Config:
    """Returns the parts that a checkpoint was trained with, as a configuration; a run may go on from it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or another thing.
    """
    if path in _OF_A_TRAINER and not Path(path).exists():
        raise InvalidValueError(
            f"--ckpt_path: expected a checkpoint's file, got {path!r}, which only a living Trainer knows; name "
            "the file, or take up a run with fit --resume RUN"
        )
    saved = read_checkpoint(path, to_resume)
    data = saved.arguments(TextDataModule, "data", without=("seed",))  # the seed follows seed_everything
    if saved.tasks:
        data["tasks"] = saved.tasks  # as files and options have them
    return {"model": saved.arguments(ContrastiveModule, "model"), "data": data}
