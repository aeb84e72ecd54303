"""State of a module in a checkpoint, and the settings that a resumed run may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import pytorch_lightning as pl
import torch
from pytorch_lightning.utilities import rank_zero_warn

from contrastive_text.core.config.specs import describe_spec
from contrastive_text.core.config.suggestions import short_parser_errors
from contrastive_text.core.distributed import shard_like
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.machine import SETTING, current_setting, describe_setting_change
from contrastive_text.core.storage.checkpoints import BASE, check_resumable, load_options
from contrastive_text.core.terminal import log_message
from contrastive_text.data import TextDataModule
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.tokenizing import wrap_tokenizer
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.adapters import is_part_of_packed
from contrastive_text.losses import Loss
from contrastive_text.objectives import Objective
from contrastive_text.training.callbacks.every_run import check_weights
from contrastive_text.training.fsdp2 import SplitModule
from contrastive_text.training.guides import GUIDES, check_same_guides, guide_identities
from contrastive_text.training.tasks import TaskParts

TRAINER = "trainer"
"""Checkpoint key of the options of the trainer."""
_ENCODER = "model.encoder.model_name_or_path"
_WEIGHTS = "; the weights are those of the checkpoint"
_TOKENIZER = "tokenizer"
_T = TypeVar("_T")


class StoredModule(SplitModule):
    """Base class of ``ContrastiveModule`` that saves and loads checkpoints.

    A checkpoint also contains the hardware setting and a tokenizer learned from the corpus. It contains the
    identity of the weights under adapters, but not these weights.

    Attributes:
        encoder: Encoder with the tokenizer.
        by_task: Parts of each data set. A resumed run must have the same prompts.
    """

    encoder: Encoder
    by_task: TaskParts
    _learned_tokenizer: str | None = None

    def set_tokenizer(self, description: str) -> None:
        """Sets a tokenizer learned from the corpus, given as JSON. Checkpoints store it."""
        self._learned_tokenizer = description
        self.encoder.tokenizer = wrap_tokenizer(description)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's options are all in ``options``
        cls, checkpoint_path: str | Path, trust: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Loads a checkpoint, after verifying its checksums and that all its classes are trusted.

        Args:
            checkpoint_path: A local ``.ckpt`` file.
            trust: Modules whose classes the file may name, in addition to this library and imported modules.
            options: Options of Lightning's method, except ``hparams_file``. ``weights_only`` is True by default.

        Raises:
            FileNotFoundError: The file doesn't exist.
            ValueError: The file is damaged, or names a class of a module that isn't trusted.
        """
        with load_options(checkpoint_path, cls, "model", trust, options) as arguments:
            loaded: Self = super().load_from_checkpoint(checkpoint_path, **arguments)
        return loaded

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads a state dict of the module like torch. Each rank loads its part of split weights.

        Weights under adapters stay unchanged if the state doesn't contain them.

        Raises:
            ValueError: The weights belong to another network. The message says what differs.
        """
        bases, current = self._base_names() - state_dict.keys(), self.state_dict()
        state_dict = {name: shard_like(value, current.get(name, value)) for name, value in state_dict.items()}
        state_dict |= {name: current[name] for name in bases}
        where = (None if self._trainer is None else self._trainer.ckpt_path) or "load_state_dict"
        with short_parser_errors(where, "the weights of a module that is built as this one", (RuntimeError,)):
            return super().load_state_dict(state_dict, strict=strict, assign=assign)  # Any: torch's

    def without_base(self, state: Mapping[str, _T]) -> dict[str, _T]:
        """Returns the module's state dict without the weights under adapters, which are never trained."""
        bases = frozenset(self._base_names())
        return {
            name: value
            for name, value in state.items()
            if name not in bases and not is_part_of_packed(name, bases)
        }

    def _base_names(self) -> set[str]:
        """Returns the names of the weights under adapters, including names in copies and of tied weights."""
        if self.encoder.base_identity is None:
            return set()
        bases = {id(weight) for weight in self.encoder.base_weights()}
        return {name for name, weight in self.named_parameters(remove_duplicate=False) if id(weight) in bases}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # Any: content from Lightning
        """Checks that weights are finite, and adds setting, guides' identities and tokenizer to a checkpoint.

        Raises:
            RunError: Weights under adapters are trained, or weights are NaN or infinite.
        """
        check_weights(self.trainer, self)
        if self.encoder.base_identity is not None:
            if any(weight.requires_grad for weight in self.encoder.base_weights()):
                raise RunError(
                    "model.encoder.adapters: expected frozen weights under the adapters, got trained weights; "
                    "unfreeze other parts, or train without adapters. Checkpoints don't contain the weights "
                    "under adapters."
                )
            checkpoint["state_dict"] = self.without_base(checkpoint["state_dict"])
            checkpoint[BASE] = self.encoder.base_identity
        checkpoint[SETTING] = current_setting(self.device)
        checkpoint[TRAINER] = trainer_settings(self.trainer)
        checkpoint[GUIDES] = guide_identities(self.by_task.guides)
        if self._learned_tokenizer is not None:
            checkpoint[_TOKENIZER] = self._learned_tokenizer

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:  # Any: content from Lightning
        """Restores the learned tokenizer from a checkpoint.

        If a run resumes, checks that this is possible (``check_resumed``).

        A run that ended inside an epoch, such as by ``max_steps``, resumes inside the epoch if it gets longer.

        Raises:
            ValueError: The checkpoint's adapters were trained on other weights than the encoder's.
        """
        if (base := checkpoint.get(BASE)) is not None and base != self.encoder.base_identity:
            raise InvalidValueError(
                "model.encoder: expected the weights on which the checkpoint's adapters were trained "
                f"({base}), got {self.encoder.base_identity or 'an encoder without adapters'}; checkpoints "
                f"don't contain these weights, so name them by model_name_or_path"
            )
        if self._trainer is not None and self._trainer.state.fn == "fit":
            check_resumed(checkpoint, self.trainer, self.by_task.prompts)
            check_changes(checkpoint, self.trainer, self.hparams, self.by_task.objectives(None))
            check_same_guides(self.by_task.guides, checkpoint.get(GUIDES, {}), self.trainer.ckpt_path)
            _settle_epoch(checkpoint["loops"]["fit_loop"])
        if _TOKENIZER in checkpoint:
            self.set_tokenizer(checkpoint[_TOKENIZER])

    def on_train_start(self) -> None:
        """Starts a new epoch if the checkpoint of a resumed run is from the end of an epoch.

        Lightning would continue in the finished epoch of the checkpoint. Its next checkpoints would then count
        one epoch too few, and a run resumed from one of them would repeat an epoch.
        """
        loop = self.trainer.fit_loop
        epochs = loop.epoch_progress.current.state_dict()
        if loop.restarted_mid_epoch and epochs["processed"] == epochs["started"]:
            loop.reset_restart_stage()


def _settle_epoch(loop: dict[str, Any]) -> None:  # Any: Lightning's
    """Resets the loop state of a checkpoint from the end of an epoch to the state at the epoch's last batch.

    Lightning counts the last epoch of every run as done, so a longer run would skip the rest of the epoch. A run
    with ``max_steps`` would also continue the batch numbers of the last epoch in the next one.
    """
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    resumable = bool(loop["state_dict"].get("combined_loader"))  # other loaders can't resume inside an epoch
    is_epoch_end = epochs["current"]["processed"] == epochs["current"]["started"]
    if not resumable or not is_epoch_end or not batches["current"]["processed"]:
        return
    for progress in (epochs["total"], epochs["current"]):
        progress["processed"] = progress["completed"] = progress["started"] - 1
    if batches["is_last_batch"]:
        for progress in (batches["total"], batches["current"]):
            progress["completed"] = progress["processed"] - 1
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # Lightning adds it again


def check_resumed(
    checkpoint: Mapping[str, Any],  # Any: content from Lightning
    trainer: pl.Trainer,
    prompts: Prompts,
) -> None:
    """Checks that a run can resume from a checkpoint. Warns if the hardware setting differs.

    Args:
        checkpoint: The checkpoint to resume from.
        trainer: Trainer of the resumed run.
        prompts: Prompts of the module.

    Raises:
        ValueError: The checkpoint contains only weights, or the run began with other prompts.
    """
    check_resumable(checkpoint, trainer.ckpt_path)
    old = Prompts(**(checkpoint.get("hyper_parameters") or {}).get("prompts", {})).with_training_defaults()
    if old.spec != prompts.spec:
        raise InvalidValueError(
            f"model.prompts: expected the prompts of the run of {trainer.ckpt_path} ({old.describe()}), "
            f"got {prompts.describe()}; give the same model.prompts, or begin a new "
            "run from its weights with --init_from"
        )
    # Before training the module may still be on the CPU.
    if difference := describe_setting_change(
        checkpoint.get(SETTING), current_setting(trainer.strategy.root_device)
    ):
        rank_zero_warn(f"the run goes on under another setting, so its last bits may differ: {difference}")


class Change(NamedTuple):
    """Configuration setting that has different values in two runs.

    Args:
        name: Dotted name, as an option has it: ``model.optimizer.lr``.
        before: Value of the earlier run.
        now: Value of the later run.
    """

    name: str
    before: object
    now: object

    def __str__(self) -> str:
        """Returns the name of the setting with the values of both runs."""
        return f"{self.name} {describe_spec(self.now)} instead of {describe_spec(self.before)}"


def find_changes(before: object, now: object, name: str = "") -> Iterator[Change]:
    """Yields the configuration settings that differ between two runs. A part of another class is one change.

    Args:
        before: Configuration of the earlier run, or a value in it.
        now: Configuration of the later run, or a value in it.
        name: Dotted name of the value.

    Example:
        >>> before = {"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.1}}, "views": None}
        >>> now = {"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.2}}, "views": None}
        >>> [str(change) for change in find_changes(before, now)]
        ['loss.temperature 0.2 instead of 0.1']
    """
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        if before != now:
            yield Change(name, before, now)
    elif before.get("class_path") != now.get("class_path"):
        yield Change(name, before, now)
    else:
        for key in sorted({*before, *now}):
            inner = name if key == "init_args" else f"{name}.{key}" if name else str(key)
            yield from find_changes(before.get(key), now.get(key), inner)


def trainer_settings(trainer: pl.Trainer) -> dict[str, object]:
    """Returns the options of a trainer that change its steps and are not restored from a checkpoint."""
    options = vars(trainer)  # set by Lightning, but not declared
    names = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
    settings = {name: options[name] for name in names}
    return {
        **settings,
        "gradient_clip_algorithm": str(settings["gradient_clip_algorithm"]),
        "precision": trainer.precision,
    }


def check_changes(
    checkpoint: Mapping[str, Any],  # Any: content from Lightning
    trainer: pl.Trainer,
    model: Mapping[str, Any],  # Any: values of YAML
    objectives: Mapping[str, Objective],
) -> None:
    """Prints the settings that a resumed run changes, and refuses changes that only a new run would read.

    Every other setting of module and data takes effect at the first resumed step. The optimizer and the
    schedule check their own states.

    Args:
        checkpoint: The checkpoint to resume from.
        trainer: The trainer of the resumed run.
        model: Arguments of its module, as plain data.
        objectives: Name -> objective of its module.

    Raises:
        InvalidValueError: The initial value of a learned number differs, such as the temperature.
    """
    data = vars(trainer).get("datamodule")
    pairs = [
        ("model", checkpoint.get("hyper_parameters"), model),
        ("trainer", checkpoint.get(TRAINER), trainer_settings(trainer)),
    ]
    if isinstance(data, TextDataModule):
        pairs.append(("data", checkpoint.get("datamodule_hyper_parameters"), data.hparams))
    changes = [
        change
        for place, before, now in pairs
        if before
        for change in find_changes(_public(before), _public(now), place)
    ]
    _check_learned(changes, objectives, trainer.ckpt_path)
    if changes and trainer.is_global_zero:
        log_message(f"Changed since {trainer.ckpt_path}:")
        for change in changes:
            log_message(f"  {change}{_WEIGHTS if change.name == _ENCODER else ''}")


def _public(arguments: Mapping[str, Any]) -> dict[str, Any]:  # Any: as above
    return {name: value for name, value in arguments.items() if not name.startswith("_")}


def _check_learned(changes: Iterable[Change], objectives: Mapping[str, Objective], path: object) -> None:
    """Checks that no change concerns the initial value of a number that a loss learns."""
    for change in changes:
        place, _, leaf = change.name.rpartition(".")
        for name, objective in objectives.items():
            learned = {
                key for part in objective.modules() if isinstance(part, Loss) for key in part.logged_values
            }
            if f"{place}.".startswith(f"model.objectives.{name}.") and leaf in learned:
                raise InvalidValueError(
                    f"{change.name}: expected {change.before}, the initial value in the run of {path}, got "
                    f"{change.now}; keep it, or start a run from the checkpoint's weights with --init_from"
                )


_CLASS = "class"
"""Key of the class name in the state of an optimizer."""
_KERNELS = ("fused", "foreach")
"""Settings of an optimizer's parameter group that select a kernel. A strategy may change them later."""
_REMEDY = "or start a run from the checkpoint's weights with --init_from"


def keep_settings(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes an optimizer keep its learning rate, weight decay and other settings when it loads a state.

    torch would replace them with the settings of the saved groups, so a resumed run would ignore changed
    settings. Groups that a callback added keep their saved settings. The state also names the optimizer's class.
    A state of another class is refused.

    Args:
        optimizer: Optimizer before a schedule changes its rates.

    Returns:
        The same optimizer.

    Example:
        >>> def build(lr):
        ...     weight = torch.nn.Parameter(torch.ones(1))
        ...     return keep_settings(torch.optim.SGD([weight], lr=lr, momentum=0.9))
        >>> resumed = build(lr=0.1)
        >>> resumed.load_state_dict(build(lr=0.5).state_dict())
        >>> resumed.param_groups[0]["lr"]
        0.1
    """
    cls = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    settings = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]

    def name_class(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state[_CLASS] = cls

    def restore(current: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        if (saved := state.get(_CLASS, cls)) != cls:
            raise InvalidValueError(
                f"model.optimizer: expected {saved}, whose moments the checkpoint has, got {cls}; keep the "
                f"optimizer, {_REMEDY}"
            )
        groups = _regroup(state["param_groups"], [len(group["params"]) for group in current.param_groups])
        for group, initial, now in zip(groups, settings, current.param_groups, strict=False):
            group |= {
                **initial,
                **{name: now[name] for name in _KERNELS if name in now},
                "initial_lr": initial["lr"],
            }
        return {**state, "param_groups": groups}

    optimizer.register_state_dict_post_hook(name_class)
    optimizer.register_load_state_dict_pre_hook(restore)
    return optimizer


def _regroup(saved: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Divides saved parameters into groups of the optimizer's sizes: without weight decay there may be one fewer.

    Args:
        saved: Groups of the checkpoint.
        sizes: Number of parameters in each group of the optimizer.

    Raises:
        InvalidValueError: The number of parameters differs.
    """
    numbers = [number for group in saved for number in group["params"]]
    if len(numbers) != sum(sizes):
        raise InvalidValueError(
            f"model: expected the {len(numbers)} trained parameters whose moments the checkpoint has, got "
            f"{sum(sizes)}; freeze and train the same parameters, {_REMEDY}"
        )
    if [len(group["params"]) for group in saved] == list(sizes):
        return [dict(group) for group in saved]
    ends = list(accumulate(sizes))
    return [{**saved[0], "params": numbers[end - size : end]} for end, size in zip(ends, sizes, strict=True)]
