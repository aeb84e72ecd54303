"""Settings of a resumed run: which ones differ from the checkpoint's, and which ones can't."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytorch_lightning as pl

from contrastive_text.core.config.specs import describe_spec
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.data import TextDataModule
from contrastive_text.losses import Loss
from contrastive_text.objectives import Objective

TRAINER = "trainer"
"""Key under which a checkpoint keeps options of its trainer."""
_ENCODER = "model.encoder.model_name_or_path"
_WEIGHTS = "; the weights are those of the checkpoint"


class Change(NamedTuple):
    """A setting that two runs have with different values.

    Args:
        name: Dotted name, as an option has it: ``model.optimizer.lr``.
        before: Value of the earlier run.
        now: Value of the later run.
    """

    name: str
    before: object
    now: object

    def __str__(self) -> str:
        """Returns the name with both values."""
        return f"{self.name} {describe_spec(self.now)} instead of {describe_spec(self.before)}"


def find_changes(before: object, now: object, name: str = "") -> Iterator[Change]:
    """Yields the settings that differ, a part of another class as a whole.

    Args:
        before: Configuration of the earlier run, or a value in it.
        now: The same of the later run.
        name: Dotted name of the place.

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
    """Returns the options of a trainer that change its steps, and that no restored state holds."""
    options = vars(trainer)  # Lightning sets them, undeclared
    names = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
    named = {name: options[name] for name in names}
    return {
        **named,
        "gradient_clip_algorithm": str(named["gradient_clip_algorithm"]),
        "precision": trainer.precision,
    }


def check_changes(
    checkpoint: Mapping[str, Any],  # Any: what Lightning put into it
    trainer: pl.Trainer,
    model: Mapping[str, Any],  # Any: what YAML can hold
    objectives: Mapping[str, Objective],
) -> None:
    """Prints the settings that a resumed run changes, and refuses those that only its first step reads.

    Every other setting of module and data is in force from the first resumed step on. The optimizer and the
    schedule check their own states.

    Args:
        checkpoint: The checkpoint to resume from.
        trainer: The trainer of the resumed run.
        model: Arguments of its module, as plain data.
        objectives: Name -> objective of its module.

    Raises:
        InvalidValueError: Another start of a value that is learned, such as the temperature.
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
        say(f"Changed since {trainer.ckpt_path}:")
        for change in changes:
            say(f"  {change}{_WEIGHTS if change.name == _ENCODER else ''}")


def _public(arguments: Mapping[str, Any]) -> dict[str, Any]:  # Any: as above
    return {name: value for name, value in arguments.items() if not name.startswith("_")}


def _check_learned(changes: Iterable[Change], objectives: Mapping[str, Objective], path: object) -> None:
    """Checks that no change is of a value that a loss starts from and learns."""
    for change in changes:
        place, _, leaf = change.name.rpartition(".")
        for name, objective in objectives.items():
            learned = {key for part in objective.modules() if isinstance(part, Loss) for key in part.figures}
            if f"{place}.".startswith(f"model.objectives.{name}.") and leaf in learned:
                raise InvalidValueError(
                    f"{change.name}: expected {change.before}, from which the run of {path} began to learn it, "
                    f"got {change.now}; keep it, or start a run from the checkpoint's weights with --init_from"
                )
