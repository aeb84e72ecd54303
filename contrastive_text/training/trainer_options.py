"""Options of the Trainer that can't be: what Lightning refuses in its own words, and what it lets pass."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import callbacks

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, cause_of

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
    steps, clip, epochs = (
        trainer.accumulate_grad_batches,
        trainer.gradient_clip_val,
        trainer.check_val_every_n_epoch,
    )
    if steps < 1:
        raise InvalidValueError(
            f"trainer.accumulate_grad_batches: expected 1 or more, got {steps}; leave it out for 1"
        )
    if epochs is not None and epochs < 1:
        raise InvalidValueError(
            f"trainer.check_val_every_n_epoch: expected 1 or more, got {epochs}; leave it out for 1"
        )
    if clip is not None and not 0 <= clip < math.inf:  # NaN compares as false
        raise InvalidValueError(
            f"trainer.gradient_clip_val: expected a number from 0, got {clip}; set null for no clipping"
        )
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
    count = int(str(devices)) if str(devices).isdecimal() else 1
    most = max(cores, 2)
    if on_cpu and count > most and not oversubscribe:
        raise InvalidValueError(
            f"trainer.devices: expected at most {most} processes on {cores} cores, got {count}; give fewer, or "
            "--oversubscribe true"
        )
    most = max(_WORKERS_A_CORE * cores, 16)
    if workers > most and not oversubscribe:
        raise InvalidValueError(
            f"data.num_workers: expected at most {most} on {cores} cores, got {workers}; give fewer, or "
            "--oversubscribe true"
        )


def check_seed(seed: object) -> None:
    """Checks that a number can be a seed; True and None leave its choice to Lightning.

    Raises:
        ValueError: Such a number.
    """
    if isinstance(seed, int) and not 0 <= seed < _SEEDS:
        raise InvalidValueError(f"seed_everything: expected 0 to {_SEEDS - 1}, got {seed}; choose another seed")
