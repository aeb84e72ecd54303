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
from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.storage.records import Record, inside
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Row
from contrastive_text.data import Collator, KeyedRow, TextDataModule
from contrastive_text.data.tasks import files_of
from contrastive_text.pairings import Pairing, SameText
from contrastive_text.training.checkpoint_io import copy_checkpoint
from contrastive_text.training.held_out import predicting
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import ViewPlan

_LIST = "ensemble.json"
_ANEW = "build the ensemble anew"


@dataclass(frozen=True, slots=True)
class Choice:
    """The model that was chosen for a task, and its score.

    Args:
        member: File of its checkpoint in the ensemble's folder.
        metric: ``accuracy``, ``pearson``, ...
        score: Times 100, on the validation files, by the weights of this very checkpoint.
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
    """Chooses the best run for each task, and copies the checkpoints that were chosen.

    A run scores on a task what its best checkpoint scored when it was written; nothing is validated anew. The
    first of equals wins. A run that is the best on no task is left out.

    Source: the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), whose ensemble
    uses for every task the model with the best score on its development set. Nothing is averaged.

    Args:
        folder: Where it is written; made anew.
        runs: Folders of runs, for their best checkpoints, or ``.ckpt`` files.

    Returns:
        Task -> its choice.

    Raises:
        FileNotFoundError: There is nothing at the path of a run.
        FileExistsError: The folder holds something already.
        ValueError: A damaged checkpoint, one without the score of a task, or scores of a task on different files
            or by different metrics.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExistingFileError(f"ensemble: expected a new folder, got {folder}, which is there; name another")
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
    with replacing(folder / _LIST) as listing:
        listing.write(json.dumps(listed, indent=2).encode() + b"\n")
    return choices


def _scored(checkpoint: Checkpoint) -> dict[str, Choice]:
    """Returns the scores of a checkpoint on its tasks, each as a choice without a file."""
    choices = {}
    for task, said in checkpoint.tasks.items():
        if (found := _score_of(checkpoint, task)) is not None:
            files = said.get("validation")
            choices[task] = Choice(
                member="",
                metric=found[0],
                score=found[1],
                validation=tuple(files_of(files if isinstance(files, str | list) else None)),
                rows=checkpoint.best.validated.get(task),
                source=str(checkpoint.path),
            )
    if not choices:
        raise InvalidValueError(
            f"{checkpoint.path}: expected the score of a task (val/TASK/...), got "
            f"{', '.join(checkpoint.best.figures) or 'none'}; train it with data.tasks and a "
            "validation file for each task, under this version"
        )
    return choices


def _score_of(checkpoint: Checkpoint, task: str) -> tuple[str, float] | None:
    """Returns name and value of a task's score on held-out data, of these very weights; None if unknown."""
    for name, score in checkpoint.best.figures.items():
        metric = name.removeprefix(f"val/{task}/")
        if metric != name and "/" not in metric and not math.isnan(score):
            return metric, score
    return None


def _check_comparable(task: str, one: Choice, other: Choice) -> None:
    if one.rows != other.rows or one.metric != other.metric:
        said = [f"{choice.metric} on {', '.join(choice.validation)}" for choice in (other, one)]
        raise InvalidValueError(
            f"{one.source}: expected {task} to be scored as in {other.source} ({said[0]}), got {said[1]}; such "
            "scores can't be compared, so validate both runs on the same rows"
        )


def is_ensemble(folder: str | Path) -> bool:
    """Returns whether a folder is a saved ensemble."""
    return Path(folder, _LIST).is_file()


def read_choices(folder: str | Path) -> dict[str, Choice]:
    """Reads which member of a saved ensemble each task has.

    Raises:
        FileNotFoundError: A folder without ``ensemble.json``, or without one of the members.
        ValueError: A damaged list.
    """
    path = Path(folder, _LIST)
    if not path.is_file():
        raise MissingFileError(
            f"ensemble: expected a folder with {_LIST}, found none in {folder}; make one with "
            "contrastive-text ensemble OUT --runs RUN RUN"
        )
    tasks = Record.read(path, _ANEW).record("tasks")
    choices = {task: _choice(tasks.record(task)) for task in tasks}
    if not choices:
        raise tasks.refusal("a task or more", {})
    for task, choice in choices.items():
        if not inside(Path(folder), choice.member, str(path)).is_file():
            raise MissingFileError(
                f"{path}: expected {choice.member}, the model of {task}, beside it, found none; {_ANEW}"
            )
    return choices


def _choice(said: Record) -> Choice:
    return Choice(
        member=said.text("member"),
        metric=said.text("metric"),
        score=said.number("score"),
        validation=tuple(said.texts("validation")),
        rows=said.integer("rows", default=None),
        source=said.text("source"),
    )


class TaskEnsemble:
    """Models of several tasks, one model for each task.

    Args:
        members: File of a checkpoint -> its module.
        choices: Task -> its choice among them.
        pairings: Task -> which texts of a row it reads.

    ``TaskEnsemble.load("ensemble").predict("sst", [{"text": "A fine film."}])`` gives a name for each row.
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
        """Loads a saved ensemble.

        Args:
            folder: What ``build_ensemble`` wrote.
            device: Where to put the models; None for the GPU if there is one, else the CPU.
            trust: Modules whose classes the members may name, beside this library's and those that are imported.

        Raises:
            FileNotFoundError: No ensemble there, or a member is gone.
            ValueError: A damaged list or member, or one that names a class of a module that isn't trusted.
        """
        choices = read_choices(folder)
        place = device or ("cuda" if torch.cuda.is_available() else "cpu")
        members: dict[str, ContrastiveModule] = {}
        pairings: dict[str, Pairing] = {}
        for file in dict.fromkeys(choice.member for choice in choices.values()):
            path = Path(folder, file)
            members[file] = ContrastiveModule.load_from_checkpoint(path, trust, map_location=place).eval()
            tasks = TextDataModule.load_from_checkpoint(path, trust).each_task
            own = [task for task, choice in choices.items() if choice.member == file]
            pairings |= {task: tasks[task].pairing or SameText() for task in own}
        return cls(members, choices, pairings)

    def route(self, task: str) -> ContrastiveModule:
        """Returns the model of a task.

        Raises:
            ValueError: No such task.
        """
        if task not in self.choices:
            raise InvalidValueError(f"task: expected one of {', '.join(self.choices)}, got {task}")
        return self.members[self.choices[task].member]

    def target(self, task: str) -> Target:
        """Returns the classes or the scale of a task's predictions."""
        target = predicting(self.route(task).by_task.objectives(task)).target
        assert target is not None
        return target

    def scores(self, task: str, rows: Sequence[Row], batch_size: int = 128) -> Tensor:
        """Returns the predictions of a task: scores of classes (N, classes), or values 0 .. 1 (N,), on the CPU.

        Args:
            task: Its name.
            rows: The texts, by the columns that the task's pairing reads: ``text``, or ``anchor`` and
                ``positive``.
            batch_size: Rows at once.

        Raises:
            ValueError: No such task, no row, or a row that lacks a column.
        """
        module, pairing = self.route(task), self.pairings[task]
        lacking = [name for row in rows for name in pairing.reads if name not in ("target", *row)]
        if lacking or not rows:
            raise InvalidValueError(
                f"{task}: expected rows with {' and '.join(pairing.reads)}, got "
                f"{f'one without {lacking[0]}' if lacking else 'none'}"
            )
        tokenizer = module.text_tokenizer(training=False)
        assert tokenizer is not None
        collator = Collator(tokenizer, pairing, ViewPlan(), seed=0, task=task, prompts=module.by_task.prompts)
        keyed = [KeyedRow(epoch=0, number=i, row=row, task=task) for i, row in enumerate(rows)]
        parts = []
        with torch.inference_mode():
            for start in range(0, len(keyed), batch_size):
                batch = StepBatch({task: collator(keyed[start : start + batch_size])}).to(module.device)
                parts.append(module.predict_step(batch, 0).cpu())
        return torch.cat(parts)

    def predict(self, task: str, rows: Sequence[Row], batch_size: int = 128) -> list[str]:
        """Returns the name of each row's class, or its score; see ``scores``."""
        return self.target(task).write(self.scores(task, rows, batch_size))
