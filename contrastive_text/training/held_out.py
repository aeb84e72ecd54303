"""Scores on held-out data: the correlation of scored pairs, and what supervised objectives get right."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, new_in_full_precision
from contrastive_text.core.types import Batch, Encoded, StepBatch
from contrastive_text.data import Collator, StepCollator
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.metrics import SpearmanSimilarity
from contrastive_text.objectives import Objective
from contrastive_text.training.forward_pass import read_slots
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import ViewPlan

OVERALL = "overall"
"""Name of the mean of the tasks' scores."""


class HeldOutScores:
    """Gathers what becomes one score per file of scored pairs, and per task.

    Args:
        pairs: Names of the files of scored pairs.
        tasks: Task -> its objectives by name; the first one that predicts gives the task's score.
        device: Where the numbers are kept.
    """

    def __init__(
        self, pairs: Sequence[str], tasks: Mapping[str, Mapping[str, Objective]], device: torch.device
    ) -> None:
        self.pairs = {name: SpearmanSimilarity().to(device) for name in pairs}
        self.tasks: dict[str, tuple[Objective, str, Metric]] = {}
        for task, objectives in tasks.items():
            objective = predicting(objectives)
            assert objective.target is not None
            name, metric = objective.target.metric()
            self.tasks[task] = (objective, name, metric.to(device))

    def add_pairs(self, name: str, batch: Batch, vectors: Tensor) -> dict[str, Tensor]:
        """Adds scored pairs: the vectors of a batch's rows, (S, D).

        Returns:
            The pairs: vectors as ``anchor`` and ``positive``, (N, D), and gold scores as ``target``, (N,).
        """
        if batch.target is None:
            raise InvalidValueError(
                "evaluation: expected pairs with a score, got none; give a file with a score column"
            )
        u, v = vectors[batch.by_role("anchor")], vectors[batch.by_role("positive")]
        self.pairs[name].update(u, v, target=batch.target)
        return {"anchor": u, "positive": v, "target": batch.target}

    def add_predictions(self, task: str, encoded: Encoded) -> None:
        """Adds the predictions of a task's objective for an encoded batch."""
        objective, _, metric = self.tasks[task]
        predictions = at_least_float32(objective.predict(encoded))
        assert encoded.target is not None
        of_classes = predictions.ndim == 2
        metric.update(predictions, encoded.target.long() if of_classes else encoded.target.to(predictions.dtype))

    def figures(self) -> dict[str, Tensor]:
        """Returns all scores times 100: ``spearman``, ``TASK/accuracy``, ``TASK/pearson``, ``overall``.

        ``spearman`` is the mean over the files, of which each has its own where there are several; ``overall``
        is the plain mean over the tasks with held-out files, as the CS224N report has it. A correlation that is
        not defined, because all predictions or all gold scores are equal, counts 0, and a warning says so.
        """
        figures: dict[str, Tensor] = {}
        if self.pairs:
            each = {name: metric.compute() for name, metric in self.pairs.items()}
            figures["spearman"] = torch.stack(list(each.values())).mean()
            figures |= {f"spearman/{name}": score for name, score in each.items()} if len(each) > 1 else {}
        scores = {
            f"{task}/{name}": _defined(metric.compute(), task) for task, (_, name, metric) in self.tasks.items()
        }
        if scores:
            figures |= scores
            figures[OVERALL] = torch.stack([score.float() for score in scores.values()]).mean()
        return figures


def _defined(score: Tensor, task: str) -> Tensor:
    """Returns a score times 100; 0 with a warning where it is not defined."""
    if score.isnan():
        warnings.warn(
            f"{task}: the score is not defined, for all predictions or all gold scores are equal: it counts 0",
            stacklevel=2,
        )
    return 100 * score.nan_to_num(nan=0.0)


def predicting(objectives: Mapping[str, Objective]) -> Objective:
    """Returns the first objective that predicts.

    Raises:
        ValueError: None does.
    """
    for objective in objectives.values():
        if objective.predicts:
            return objective
    raise InvalidValueError(
        f"validation: expected an objective that predicts the task's labels, got {', '.join(objectives)}; drop "
        "the task's held-out files"
    )


class ScoredModule(pl.LightningModule):
    """What a module does with held-out data: scores of validation and test, and predictions.

    Files of scored pairs are embedded as the saved model would; rows of a task are predicted by its objective,
    with the pooler of training, which its head has learned on.
    """

    by_task: TaskParts

    def __init__(self) -> None:
        super().__init__()
        self._scores: HeldOutScores | None = None

    @property
    @abstractmethod
    def embedder(self) -> Embedder:
        """What a text goes through on its way to an embedding, in training."""

    def _plain(self, batch: Batch, task: str) -> Encoded:
        """Returns a task's batch as its objectives read it, without any view."""
        read = read_slots(batch, ViewPlan(), [predicting(self.by_task.objectives(task))])
        vectors = self.embedder.pool(read)
        return Encoded(vectors, slots=read.slots, text_ids=read.text_ids, target=read.target_for(vectors))

    def _begin_scores(self, loaders: object) -> None:
        each = [_task_and_name(loader, number) for number, loader in enumerate(_listed(loaders))]
        tasks = {name: self.by_task.objectives(name) for is_task, name in each if is_task}
        self._scores = HeldOutScores([name for is_task, name in each if not is_task], tasks, self.device)

    def _score(self, batch: Batch | StepBatch, number: int, loaders: object) -> dict[str, Tensor] | None:
        assert self._scores is not None
        if isinstance(batch, StepBatch):
            for task, part in batch.batches.items():
                self._scores.add_predictions(task, self._plain(part, task))
            return None
        _, name = _task_and_name(_listed(loaders)[number], number)
        return self._scores.add_pairs(name, batch, self(batch))

    def _log_scores(self, part: str) -> None:
        assert self._scores is not None
        for name, figure in self._scores.figures().items():
            # The metrics have gathered over ranks; sync_dist spares a warning.
            self.log(f"{part}/{name}", figure, prog_bar=name in ("spearman", "overall"), sync_dist=True)

    def on_validation_epoch_start(self) -> None:
        """Starts a score for every validation file and task."""
        self._begin_scores(self.trainer.val_dataloaders)

    @new_in_full_precision()
    def validation_step(
        self,
        batch: Batch | StepBatch,
        batch_idx: int,  # noqa: ARG002  # the base's signature
        dataloader_idx: int = 0,
    ) -> dict[str, Tensor] | None:
        """Adds a batch to its file's or task's score; gives scored pairs as ``HeldOutScores.add_pairs`` does."""
        return self._score(batch, dataloader_idx, self.trainer.val_dataloaders)

    def on_validation_epoch_end(self) -> None:
        """Logs ``val/spearman``, ``val/TASK/SCORE`` and ``val/overall``; see ``HeldOutScores.figures``."""
        self._log_scores("val")

    def on_test_epoch_start(self) -> None:
        """Starts a score for every test file and task."""
        self._begin_scores(self.trainer.test_dataloaders)

    @new_in_full_precision()
    def test_step(self, batch: Batch | StepBatch, batch_idx: int, dataloader_idx: int = 0) -> None:  # noqa: ARG002  # the base's signature
        """Adds a batch to its file's or task's score."""
        self._score(batch, dataloader_idx, self.trainer.test_dataloaders)

    def on_test_epoch_end(self) -> None:
        """Logs the scores as validation does, under ``test``."""
        self._log_scores("test")

    @new_in_full_precision()
    def predict_step(self, batch: Batch | StepBatch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the vectors of the anchors, (N, D), or what a task's objective predicts."""
        if isinstance(batch, StepBatch):
            ((task, part),) = batch.batches.items()
            return predicting(self.by_task.objectives(task)).predict(self._plain(part, task)).float()
        vectors: Tensor = self(batch.split(batch.by_role("anchor")))
        return vectors.float()


def _listed(loaders: object) -> list[object]:
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]


def _task_and_name(loader: object, number: int) -> tuple[bool, str]:
    """Whether a loader holds a task's rows or scored pairs, and its name; if it isn't ours, its number."""
    collate = loader.collate_fn if isinstance(loader, DataLoader) else None
    if isinstance(collate, StepCollator):
        return True, next(iter(collate.collators))
    return False, collate.task if isinstance(collate, Collator) else str(number)
