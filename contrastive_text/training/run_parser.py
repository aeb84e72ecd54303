"""Parser of a run's configuration, and checks of the Trainer's options."""

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

from contrastive_text.core.config.class_paths import add_working_directory, dotted_texts, foreign_modules
from contrastive_text.core.config.untrusted import importing_only
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, at_least, find_cause
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
"""Top-level key of a configuration -> class whose arguments are under the key."""
VALUES = (
    *("seed_everything", "folder", "init_from", "keep_heads", "chunk", "oversubscribe", "ckpt_path"),
    "weights_only",
)
"""Top-level keys of a configuration that have a plain value."""
_METHODS = ("fit", "validate", "test", "predict")
"""Methods of the Trainer that a run calls."""
_RUN_ARGUMENTS = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
"""Arguments of the Trainer's methods that are not in a configuration."""
_CHECKPOINT_WORDS = ("best", "last", "hpc")
"""Lightning's names for a checkpoint of an earlier run of the same Trainer in the same process."""
_WORKERS_A_CORE = 8
"""Largest number of data loading processes per core.

They wait for the disk and the step, so they can share a core.
"""
_SEEDS = 2**32
"""Number of valid seeds: Lightning passes the seed to numpy, which reads 32 bits."""
_NOT_ZERO = {
    "limit_train_batches": "a run without batches trains nothing: leave it out for all",
    "max_epochs": "a run of no epoch trains nothing: leave it out, or give the epochs to train",
    "max_steps": "a run of no step trains nothing: leave it out, or give the steps to train",
    "val_check_interval": "give a number of batches or a share of an epoch, or --trainer.limit_val_batches 0 "
    "for no validation",
    "log_every_n_steps": "leave it out for 50, or give --trainer.logger false for no log",
}
"""Trainer option that must not be 0 -> advice for the error message."""
_READS = {"validate": "val", "test": "test", "predict": "predict"}
"""Method of the Trainer -> part of the ``limit_PART_batches`` option of its batches."""
_CALLBACKS = Path(callbacks.__file__).parent


def run_parser(
    command: str = "fit", kind: type[LightningArgumentParser] = LightningArgumentParser
) -> LightningArgumentParser:
    """Returns the parser of a run's configuration, with the defaults of ``base.yaml``.

    Args:
        command: Name of the command. ``fit``, ``validate``, ``test``, ``predict`` and ``views`` have additional
            options.
        kind: Class of the parser, which may report errors in its own way.
    """
    # A copy, because parsing may leave attributes in the parser, such as print_config.
    return copy(_build(command, kind))  # type: ignore[arg-type]  # mypy looks for the hash of an object of the class


@cache  # reading the signatures takes as long as parsing, and a sweep needs a parser for each cell
def _build(command: str, kind: type[LightningArgumentParser]) -> LightningArgumentParser:
    """Builds the parser of a run's configuration. Callers must use a copy of the cached result."""
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
        help="fit: with --init_from, also take the weights of objectives with the same names in both runs",
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
        parser.add_method_arguments(pl.Trainer, command, skip=_RUN_ARGUMENTS)
    elif command == "views":
        parser.add_argument("--n", type=int, default=3, help="rows to show")
    return parser


def check_places(config: Mapping[str, Any]) -> None:
    """Checks that the keys of ``PLACES`` have mappings of arguments, and that the data have no own seed.

    Args:
        config: Names and values of YAML.

    Raises:
        ValueError: A key has another value, such as a file name, which the parser would read without merging it.
            Or ``data.seed`` is given.
    """
    for place in PLACES:
        inner = config.get(place)
        if inner is not None and not isinstance(inner, Mapping):
            raise InvalidValueError(
                f"{place}: expected names and values, got {inner!r}; merge files with --config FILE --config FILE"
            )
    if (seed := (config.get("data") or {}).get("seed")) is not None:
        raise InvalidValueError(
            f"data.seed: expected no value in a run, whose one seed is for weights and data, got {seed}; set "
            "seed_everything"
        )


@contextmanager
def importing_parts(config: Config, is_foreign: bool, typed: Iterable[str] = ()) -> Iterator[None]:
    """Allows the imports of a configuration's parts during the block that parses it.

    Modules of the user's own parts are found in the working directory. If the configuration is foreign, the
    parser may only import modules of checked parts, and modules that the user typed.

    Args:
        config: Names and values, merged from all files.
        is_foreign: Whether a part of the configuration comes from a checkpoint or a run folder.
        typed: Values of options that the user typed.
    """
    class_paths = [name for value in typed for name in re.findall(r"[^\W\d]\w*(?:\.\w+)+", value)]
    modules = [*foreign_modules(config), *(name.rpartition(".")[0] for name in class_paths)]
    for module in modules if is_foreign else (*modules, *dotted_texts(config)):
        add_working_directory(module)
    with importing_only(modules) if is_foreign else nullcontext():
        yield


def checkpoint_parts(path: str, to_resume: bool = False) -> Config:
    """Returns the configuration of module and data that a checkpoint was trained with.

    Args:
        path: Path of the checkpoint.
        to_resume: Whether a run will resume from the checkpoint.

    Raises:
        FileNotFoundError: The file doesn't exist.
        ValueError: The file is damaged, or isn't a checkpoint of this library.
    """
    if path in _CHECKPOINT_WORDS and not Path(path).exists():
        raise InvalidValueError(
            f"--ckpt_path: expected a checkpoint's file, got {path!r}, which needs the Trainer of the earlier "
            f"run; name the file, or resume a run with fit --resume RUN"
        )
    saved = read_checkpoint(path, to_resume)
    data = saved.arguments(TextDataModule, "data", without=("seed",))  # the seed follows seed_everything
    if saved.tasks:
        data["tasks"] = saved.tasks  # the form in files and options
    return {"model": saved.arguments(ContrastiveModule, "model"), "data": data}


@contextmanager
def naming_options(building: bool = False) -> Iterator[None]:
    """Turns Lightning's errors about Trainer options into an InvalidValueError. Other errors pass unchanged.

    Args:
        building: Whether the block only builds a Trainer. Then each TypeError and ValueError concerns an option.

    Raises:
        ValueError: Lightning refuses an option.
    """
    try:
        yield
    except ContrastiveTextError:
        raise
    except Exception as error:
        refusal = find_cause(error, MisconfigurationException) or error  # the parser raises its own from it
        if not _concerns_options(refusal) and not (building and isinstance(error, TypeError | ValueError)):
            raise
        text = " ".join(str(refusal).split()).rstrip(".")
        raise InvalidValueError(
            f"trainer: expected options that Lightning accepts, got: {text}; change that --trainer option"
        ) from error


def _concerns_options(error: Exception) -> bool:
    """Returns whether Lightning refuses an option: by its own exception, or by a ``raise`` in a callback.

    If a part logs at a point where Lightning can't log, it gets the same exception. That is a bug of the part.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, MisconfigurationException):
        return all(frame.name != "log" for frame in frames)
    raised_in_callback = Path(frames[-1].filename).parent == _CALLBACKS and str(frames[-1].line).startswith(
        "raise "
    )
    return raised_in_callback and type(error) in (RuntimeError, ModuleNotFoundError)


def check_trainer(trainer: pl.Trainer) -> None:
    """Checks for Trainer options that Lightning accepts but can't run with.

    Raises:
        ValueError: The first such option.
    """
    # The strategy counts the processes that were started, regardless of the options.
    if (count := _started_processes()) not in (None, trainer.num_devices * trainer.num_nodes):
        raise InvalidValueError(
            f"trainer.devices, trainer.num_nodes: expected {count} processes, as many as were started, got "
            f"{trainer.num_devices} on each of {trainer.num_nodes} machines; give their numbers, and "
            "--trainer.strategy ddp"
        )
    at_least("trainer.accumulate_grad_batches", trainer.accumulate_grad_batches, 1, "leave it out for 1")
    at_least("trainer.check_val_every_n_epoch", trainer.check_val_every_n_epoch, 1, "leave it out for 1")
    at_least("trainer.gradient_clip_val", trainer.gradient_clip_val, 0, "set null for no clipping")
    for name, todo in _NOT_ZERO.items():
        if isinstance(value := vars(trainer).get(name, getattr(trainer, name, None)), int | float) and value == 0:
            raise InvalidValueError(f"trainer.{name}: expected another number than 0, got {value}; {todo}")
    if any(isinstance(callback, callbacks.LearningRateFinder) for callback in vars(trainer)["callbacks"]):
        raise InvalidValueError(
            "trainer.callbacks: expected no LearningRateFinder, got one: it sets an attribute lr of the module, "
            "which doesn't have it; try several with sweep --vary model.optimizer.lr= "
            "or call Tuner(trainer).lr_find(module, data, update_attr=False)"
        )


def check_reads_batches(trainer: pl.Trainer, method: str) -> None:
    """Checks that a method of the Trainer, such as ``validate``, reads at least one batch.

    Raises:
        ValueError: Its option ``limit_..._batches`` is 0.
    """
    name = f"limit_{_READS[method]}_batches" if method in _READS else None
    if name is not None and (limit := vars(trainer)[name]) == 0:
        raise InvalidValueError(
            f"trainer.{name}: expected a number above 0 for {method}, got {limit}; remove the limit to read all "
            "batches"
        )


def _started_processes() -> int | None:
    """Returns the number of processes that torchrun or srun started; None if the Trainer starts processes.

    A script in a SLURM allocation is one process, regardless of the allocation's number of tasks.
    """
    name = "WORLD_SIZE" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_STEP_NUM_TASKS"
    count = os.environ.get(name, "")
    return int(count) if count.isdecimal() else None


def check_processes(devices: object, accelerator: object, workers: int, oversubscribe: bool) -> None:
    """Checks that the machine has enough cores for the processes, before they are started.

    Args:
        devices: Trainer option ``devices``. On GPUs Lightning checks the number itself.
        accelerator: Trainer option ``accelerator``.
        workers: Number of data loading processes per device.
        oversubscribe: Whether to skip the check.

    Raises:
        ValueError: There are too many processes for the cores.
    """
    cores = os.cpu_count() or 1
    on_cpu = accelerator == "cpu" or (accelerator == "auto" and not torch.cuda.is_available())
    count = int(str(devices)) if on_cpu and str(devices).isdecimal() else 1
    most = {
        "trainer.devices": (count, max(cores, 2)),
        "data.num_workers": (workers, max(_WORKERS_A_CORE * cores, 16)),
    }
    for name, (requested, allowed) in most.items():
        if requested > allowed and not oversubscribe:
            raise InvalidValueError(
                f"{name}: expected at most {allowed} processes on {cores} cores, got {requested}; give fewer, or "
                "--oversubscribe true"
            )


def check_seed(seed: object) -> None:
    """Checks that a seed has at most 32 bits. With True or None Lightning chooses the seed.

    Raises:
        ValueError: The number is out of range.
    """
    if isinstance(seed, int) and not 0 <= seed < _SEEDS:
        raise InvalidValueError(f"seed_everything: expected 0 to {_SEEDS - 1}, got {seed}; choose another seed")
