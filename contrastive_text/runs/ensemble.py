"""Ensemble of the best model of each task: every task is routed to the model with its best score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from contrastive_text.core.batch import StepBatch
from contrastive_text.core.errors import ExistingFileError, InvalidValueError, MissingFileError
from contrastive_text.core.storage.checkpoints import (
    Checkpoint,
    best_checkpoint,
    read_checkpoint,
    verify_checkpoint,
)
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.records import Record, resolve_inside
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Row
from contrastive_text.data import Collator, KeyedRow, TextDataModule
from contrastive_text.data.tasks import files_of
from contrastive_text.pairings import Pairing, SameText
from contrastive_text.training.checkpoint_io import copy_checkpoint
from contrastive_text.training.held_out import find_predictor
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import ViewPlan

_LIST = "ensemble.json"
_REBUILD = "build the ensemble again"


@dataclass(frozen=True, slots=True)
class Choice:
    """Best model of a task in an ensemble, with the score by which it was chosen.

    Args:
        member: File of the model's checkpoint in the ensemble's folder.
        metric: Name of the score: ``accuracy``, ``pearson``, ...
        score: Score of the checkpoint's weights on the validation files, times 100.
        validation: The validation files.
        rows: Identity of the validated rows; None if the checkpoint doesn't have it.
        source: The checkpoint that was copied.
    """

    member: str
    metric: str
    score: float
    validation: tuple[str, ...]
    rows: int | None
    source: str


def build_ensemble(folder: str | Path, runs: Sequence[str | Path]) -> dict[str, Choice]:
    """Builds an ensemble folder: chooses the best run for each task and copies its checkpoint.

    The score of a run on a task is the validation score that its best checkpoint stores; nothing is validated
    again. Of equal scores the first run wins. A run that is the best on no task isn't copied.

    Source: the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), whose ensemble
    uses for every task the model with the best score on its development set. Nothing is averaged.

    Args:
        folder: New folder of the ensemble.
        runs: Folders of runs, whose best checkpoints are read, or ``.ckpt`` files.

    Returns:
        Task -> best model of the task.

    Raises:
        FileNotFoundError: The path of a run doesn't exist.
        FileExistsError: The folder isn't empty.
        ValueError: A checkpoint is damaged or has no score of a task, or the scores of a task are of different
            files or metrics.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExistingFileError(f"ensemble: expected a new folder, got {folder}, which exists; name another")
    choices: dict[str, Choice] = {}
    members: dict[str, str] = {}
    for run in runs:
        file = best_checkpoint(run, "--runs")
        for task, choice in _scored(read_checkpoint(file)).items():
            if (other := choices.get(task)) is not None:
                _check_comparable(task, choice, other)
            if other is None or choice.score > other.score:
                choices[task] = choice
    for choice in choices.values():
        members.setdefault(choice.source, f"member-{len(members) + 1}.ckpt")
    choices = {task: replace(choice, member=members[choice.source]) for task, choice in choices.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for source, member in members.items():
        copy_checkpoint(Path(source), folder / member)
        verify_checkpoint(folder / member)
    listed = {"tasks": {task: asdict(choice) for task, choice in choices.items()}}
    with atomic_file(folder / _LIST) as listing:
        listing.write(json.dumps(listed, indent=2).encode() + b"\n")
    return choices


def _scored(checkpoint: Checkpoint) -> dict[str, Choice]:
    """Returns the validation score of a checkpoint on each of its tasks, as a ``Choice`` without ``member``."""
    choices = {}
    for task, arguments in checkpoint.tasks.items():
        if (score := _score_of(checkpoint, task)) is not None:
            files = arguments.get("validation")
            choices[task] = Choice(
                member="",
                metric=score[0],
                score=score[1],
                validation=tuple(files_of(files if isinstance(files, str | list) else None)),
                rows=checkpoint.best.validated.get(task),
                source=str(checkpoint.path),
            )
    if not choices:
        raise InvalidValueError(
            f"{checkpoint.path}: expected the score of a task (val/TASK/...), got "
            f"{', '.join(checkpoint.best.figures) or 'no score'}; train the run again with this version, with "
            "data.tasks and a validation file for each task"
        )
    return choices


def _score_of(checkpoint: Checkpoint, task: str) -> tuple[str, float] | None:
    """Returns metric and value of a task's validation score in a checkpoint; None if there is no score."""
    for name, score in checkpoint.best.figures.items():
        metric = name.removeprefix(f"val/{task}/")
        if metric != name and "/" not in metric and not math.isnan(score):
            return metric, score
    return None


def _check_comparable(task: str, one: Choice, other: Choice) -> None:
    if one.rows != other.rows or one.metric != other.metric:
        names = [f"{choice.metric} on {', '.join(choice.validation)}" for choice in (other, one)]
        raise InvalidValueError(
            f"{one.source}: expected {task} to be scored as in {other.source} ({names[0]}), got {names[1]}; the "
            "scores can't be compared, so validate both runs on the same rows"
        )


def is_ensemble(folder: str | Path) -> bool:
    """Returns whether a folder is a saved ensemble."""
    return Path(folder, _LIST).is_file()


def read_choices(folder: str | Path) -> dict[str, Choice]:
    """Reads the best model of each task from a saved ensemble.

    Raises:
        FileNotFoundError: The folder lacks ``ensemble.json`` or a checkpoint.
        ValueError: ``ensemble.json`` is damaged.
    """
    path = Path(folder, _LIST)
    if not path.is_file():
        raise MissingFileError(
            f"ensemble: expected a folder with {_LIST}, got {folder} without it; build an ensemble with "
            "contrastive-text ensemble OUT --runs RUN RUN"
        )
    tasks = Record.read(path, _REBUILD).record("tasks")
    choices = {task: _choice(tasks.record(task)) for task in tasks}
    if not choices:
        raise tasks.refusal("a task or more", {})
    for task, choice in choices.items():
        if not resolve_inside(Path(folder), choice.member, str(path)).is_file():
            raise MissingFileError(
                f"{path}: expected {choice.member}, the model of {task}, next to it, got no such file; {_REBUILD}"
            )
    return choices


def _choice(record: Record) -> Choice:
    return Choice(
        member=record.text("member"),
        metric=record.text("metric"),
        score=record.number("score"),
        validation=tuple(record.texts("validation")),
        rows=record.integer("rows", default=None),
        source=record.text("source"),
    )


class TaskEnsemble:
    """Ensemble of models that predicts each task with the model that is best on it.

    Args:
        members: File of a checkpoint -> its module.
        choices: Task -> its best model, one of the members.
        pairings: Task -> pairing that selects the texts of a row.

    ``TaskEnsemble.load("ensemble").predict("sst", [{"text": "A fine film."}])`` returns a class for each row.
    """

    def __init__(
        self,
        members: Mapping[str, ContrastiveModule],
        choices: Mapping[str, Choice],
        pairings: Mapping[str, Pairing],
    ) -> None:
        self.members = dict(members)
        self.choices = dict(choices)
        self.pairings = dict(pairings)

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None, trust: Sequence[str] | None = None) -> Self:
        """Loads a saved ensemble with the models of all tasks.

        Args:
            folder: Folder that ``build_ensemble`` wrote.
            device: Device of the models. None is the GPU if there is one, else the CPU.
            trust: Modules whose classes the checkpoints may name, in addition to this library's
                classes and imported modules.

        Raises:
            FileNotFoundError: The folder is no ensemble, or a checkpoint is missing.
            ValueError: A file is damaged, or names a class of a module that isn't trusted.
        """
        choices = read_choices(folder)
        target_device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        members: dict[str, ContrastiveModule] = {}
        pairings: dict[str, Pairing] = {}
        for file in dict.fromkeys(choice.member for choice in choices.values()):
            path = Path(folder, file)
            members[file] = ContrastiveModule.load_from_checkpoint(path, trust, map_location=target_device).eval()
            tasks = TextDataModule.load_from_checkpoint(path, trust).named_tasks
            member_tasks = [task for task, choice in choices.items() if choice.member == file]
            pairings |= {task: tasks[task].pairing or SameText() for task in member_tasks}
        return cls(members, choices, pairings)

    def route(self, task: str) -> ContrastiveModule:
        """Returns the ensemble's model of a task.

        Raises:
            ValueError: The ensemble has no such task.
        """
        if task not in self.choices:
            raise InvalidValueError(f"task: expected one of {', '.join(self.choices)}, got {task}")
        return self.members[self.choices[task].member]

    def target(self, task: str) -> Target:
        """Returns the target of a task: its classes, or the range of its scores."""
        target = find_predictor(self.route(task).by_task.objectives(task)).target
        assert target is not None
        return target

    def scores(self, task: str, rows: Sequence[Row], batch_size: int = 128) -> Tensor:
        """Predicts rows of a task: scores of classes (N, classes), or values 0 .. 1 (N,), on the CPU.

        Args:
            task: Name of the task.
            rows: Rows with the columns that the task's pairing reads: ``text``, or ``anchor`` and ``positive``.
            batch_size: Number of rows in a batch.

        Raises:
            ValueError: There is no such task or no row, or a row lacks a column.
        """
        module, pairing = self.route(task), self.pairings[task]
        missing = [name for row in rows for name in pairing.reads if name not in ("target", *row)]
        if missing or not rows:
            raise InvalidValueError(
                f"{task}: expected rows with {' and '.join(pairing.reads)}, got "
                f"{f'a row without {missing[0]}' if missing else 'no row'}"
            )
        tokenizer = module.text_tokenizer(training=False)
        assert tokenizer is not None
        collator = Collator(tokenizer, pairing, ViewPlan(), seed=0, task=task, prompts=module.by_task.prompts)
        keyed = [KeyedRow(epoch=0, number=i, row=row, task=task) for i, row in enumerate(rows)]
        outputs = []
        with torch.inference_mode():
            for start in range(0, len(keyed), batch_size):
                batch = StepBatch({task: collator(keyed[start : start + batch_size])}).to(module.device)
                outputs.append(module.predict_step(batch, 0).cpu())
        return torch.cat(outputs)

    def predict(self, task: str, rows: Sequence[Row], batch_size: int = 128) -> list[str]:
        """Predicts rows of a task as text: the class name of each row, or its score; see ``scores``."""
        return self.target(task).format(self.scores(task, rows, batch_size))
