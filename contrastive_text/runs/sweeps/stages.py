"""The stages of a cell: which of them an option of a sweep is for, and what a trained one has left."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.runs.sweeps.validations import as_json, read_record

_PREFIX = re.compile(r"(?:stage([1-9]\d{0,3})|all)\.")


def split_stage(key: str) -> tuple[int | None, str]:
    """Returns the stage that a key is for, None for all of them, and the key of the configuration.

    Example:
        >>> split_stage("stage2.data.train"), split_stage("all.data.validation"), split_stage("data.train")
        ((2, 'data.train'), (None, 'data.validation'), (1, 'data.train'))
    """
    prefix = _PREFIX.match(key)
    if prefix is None:
        return 1, key
    return None if prefix[1] is None else int(prefix[1]), key[prefix.end() :]


def words_of(words: Sequence[str], stage: int) -> list[str]:
    """Returns the options that are for a stage, as ``fit`` takes them.

    Example:
        >>> words = ["--data.train", "a.txt", "--stage2.data.train", "b.txt", "--all.trainer.max_steps=10"]
        >>> words_of(words, 1)
        ['--data.train', 'a.txt', '--trainer.max_steps=10']
        >>> words_of(words, 2)
        ['--data.train', 'b.txt', '--trainer.max_steps=10']
    """
    found: list[str] = []
    wanted = stage == 1  # of words before the first option, which ``fit`` answers
    for word in words:
        if word.startswith("--"):
            of, key = split_stage(word.removeprefix("--"))
            wanted, word = of in (None, stage), f"--{key}"
        found += [word] if wanted else []
    return found


def opening_of(stage: str) -> str:
    """Returns the option of ``fit`` that a stage begins with: its file, or its recipe.

    Example:
        >>> opening_of("second.yaml"), opening_of("consert")
        ('--config=second.yaml', '--recipe=consert')
    """
    return f"--{'config' if Path(stage).suffix in ('.yaml', '.yml') else 'recipe'}={stage}"


@dataclass(frozen=True, slots=True)
class Training:
    """What a trained stage has logged.

    Args:
        seconds: How long it took.
        validations: As those of ``SweepRun``.
    """

    seconds: float
    validations: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StageFolder:
    """Where a stage is trained.

    It counts as trained once its ``stage.json`` is there, written in one go after everything else, and as long as
    its weights are: the checkpoint that the next stage begins with, and the model that is measured.

    Args:
        path: The folder.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """The folder of its best checkpoint."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The folder of its model for use."""
        return self.path / "model"

    def empty(self) -> None:
        """Makes the folder, without what a killed run left in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def keep(self, training: Training, command: str) -> None:
        """Notes that the stage is trained, and the command that did it."""
        logged = {"seconds": training.seconds, "validations": as_json(training.validations)}
        write_json(self.path / "stage.json", {**logged, "command": command})

    def training(self) -> Training | None:
        """Returns what the stage has logged; None until it is trained.

        Raises:
            ValueError: Its record was changed.
        """
        file = self.path / "stage.json"
        if not file.exists():
            return None
        todo = "delete it to have this stage trained anew"
        kept = Record.read(file, todo)
        return Training(kept.number("seconds"), read_record(kept))

    @property
    def is_trained(self) -> bool:
        """Whether it is trained and its weights are there."""
        return self.has_weights() and self.training() is not None

    def has_weights(self) -> bool:
        """Whether its weights are there."""
        return any(self.checkpoints.glob("*.ckpt"))

    def remove_weights(self) -> None:
        """Removes checkpoint and model; killed midway, the stage no longer counts as trained."""
        for weights in (self.checkpoints, self.model):
            shutil.rmtree(weights, ignore_errors=True)
