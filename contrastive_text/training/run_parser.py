"""Configuration of a run: its places, the parser, and checks of the Trainer's options."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from jsonargparse import ActionYesNo
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import callbacks
from pytorch_lightning.cli import LightningArgumentParser

from contrastive_text.core.checks import at_least
from contrastive_text.core.config.class_paths import dotted_texts, find_own, own_modules
from contrastive_text.core.config.foreign import importing_only
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, cause_of
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
_WORKERS_A_CORE = 8
"""Processes that read wait for the disk and for the step: more than one may share a core."""
_SEEDS = 2**32
"""Lightning gives the seed to numpy, which takes 32 bits."""
_NOT_ZERO = {
    "limit_train_batches": "a run without batches trains nothing: leave it out for all",
    "max_epochs": "a run of no epoch trains nothing: leave it out, or give the epochs to train",
    "max_steps": "a run of no step trains nothing: leave it out, or give the steps to train",
    "val_check_interval": "give a number of batches or a share of an epoch, or --trainer.limit_val_batches 0 "
    "for no validation",
    "log_every_n_steps": "leave it out for 50, or give --trainer.logger false for no log",
}
"""Options of the Trainer that do nothing where they are 0 -> what to do instead."""
_READS = {"validate": "val", "test": "test", "predict": "predict"}
"""Method of the Trainer -> whose batches it reads."""
_CALLBACKS = Path(callbacks.__file__).parent


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


@contextmanager
def answering(building: bool = False) -> Iterator[None]:
    """Makes an answer of what Lightning says of the options, and lets every other error pass.

    Args:
        building: Whether nothing but a Trainer is built inside; then a wrong type or value is an option's too.

    Raises:
        ValueError: Options that it refuses.
    """
    try:
        yield
    except ContrastiveTextError:
        raise
    except Exception as error:
        refusal = cause_of(error, MisconfigurationException) or error  # the parser raises its own from it
        if not _is_of_options(refusal) and not (building and isinstance(error, TypeError | ValueError)):
            raise
        said = " ".join(str(refusal).split()).rstrip(".")
        raise InvalidValueError(
            f"trainer: expected options that Lightning takes, got others: {said}; change that --trainer option"
        ) from error


def _is_of_options(error: Exception) -> bool:
    """Whether Lightning refuses an option: with its own exception, or by a ``raise`` in its callbacks.

    A part that logs where nothing can be logged gets that exception too: it is a bug of the part.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, MisconfigurationException):
        return all(frame.name != "log" for frame in frames)
    refused = Path(frames[-1].filename).parent == _CALLBACKS and str(frames[-1].line).startswith("raise ")
    return refused and type(error) in (RuntimeError, ModuleNotFoundError)


def check_trainer(trainer: pl.Trainer) -> None:
    """Checks for options that Lightning takes and can't run with.

    Raises:
        ValueError: Such an option.
    """
    # The strategy's own count is what was started, whatever the options say.
    if (started := _started()) not in (None, trainer.num_devices * trainer.num_nodes):
        raise InvalidValueError(
            f"trainer.devices, trainer.num_nodes: expected {started} processes, as many as were started, got "
            f"{trainer.num_devices} on each of {trainer.num_nodes} machines; give their numbers, and "
            "--trainer.strategy ddp"
        )
    at_least("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, 1, "leave it out for 1")
    at_least("trainer.check_val_every_n_epoch", trainer.check_val_every_n_epoch, 1, "leave it out for 1")
    at_least("trainer.gradient_clip_val", trainer.gradient_clip_val, 0, "set null for no clipping")
    for name, todo in _NOT_ZERO.items():
        if isinstance(value := vars(trainer).get(name, getattr(trainer, name, None)), int | float) and value == 0:
            raise InvalidValueError(f"trainer.{name}: expected another number than 0, got {value}; {todo}")
    if any(isinstance(each, callbacks.LearningRateFinder) for each in vars(trainer)["callbacks"]):
        raise InvalidValueError(
            "trainer.callbacks: expected no LearningRateFinder, got one: it sets an attribute lr of the module, "
            "and the learning rate is that of model.optimizer; try several with sweep --vary model.optimizer.lr= "
            "or call Tuner(trainer).lr_find(module, data, update_attr=False)"
        )


def check_reads_batches(trainer: pl.Trainer, method: str) -> None:
    """Checks that a method of the trainer, such as ``validate``, reads a batch.

    Raises:
        ValueError: Its batches are limited to none.
    """
    name = f"limit_{_READS[method]}_batches" if method in _READS else None
    if name is not None and (limit := vars(trainer)[name]) == 0:
        raise InvalidValueError(
            f"trainer.{name}: expected another number than 0 for {method}, got {limit}; leave it out for all"
        )


def _started() -> int | None:
    """Returns how many processes torchrun or srun has started; None where the Trainer starts its own.

    A script in an allocation of SLURM is one process, whatever tasks it was given.
    """
    name = "WORLD_SIZE" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_STEP_NUM_TASKS"
    count = os.environ.get(name, "")
    return int(count) if count.isdecimal() else None


def check_processes(devices: object, accelerator: object, workers: int, oversubscribe: bool) -> None:
    """Checks that the machine's cores can carry the processes, before any is started.

    Args:
        devices: As the Trainer takes them; on a GPU Lightning counts them itself.
        accelerator: As the Trainer takes it.
        workers: Processes that read for each of them.
        oversubscribe: Whether to leave that to the user.

    Raises:
        ValueError: Too many.
    """
    cores = os.cpu_count() or 1
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    count = int(str(devices)) if on_cpu and str(devices).isdecimal() else 1
    most = {
        "trainer.devices": (count, max(cores, 2)),
        "data.num_workers": (workers, max(_WORKERS_A_CORE * cores, 16)),
    }
    for name, (given, allowed) in most.items():
        if given > allowed and not oversubscribe:
            raise InvalidValueError(
                f"{name}: expected at most {allowed} processes on {cores} cores, got {given}; give fewer, or "
                "--oversubscribe true"
            )


def check_seed(seed: object) -> None:
    """Checks that a number can be a seed; True and None leave its choice to Lightning.

    Raises:
        ValueError: Such a number.
    """
    if isinstance(seed, int) and not 0 <= seed < _SEEDS:
        raise InvalidValueError(f"seed_everything: expected 0 to {_SEEDS - 1}, got {seed}; choose another seed")
