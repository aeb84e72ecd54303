"""Scores and losses on held-out data: scored pairs, predictions of tasks, rankings, and losses of objectives."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchmetrics import Metric

from contrastive_text.core.batch import Batch, Encoded, StepBatch
from contrastive_text.core.distributed import gather_all, gather_rows, gather_sizes, sum_over_ranks
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.terminal import say
from contrastive_text.data import Collator
from contrastive_text.data.collator import StepCollator
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.data.run_tables import HeldOutCollator, Ranked, RankedCollator
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.inference.search import retrieval_scores
from contrastive_text.losses import reduce_terms
from contrastive_text.metrics import FIGURES, PearsonSimilarity, SpearmanSimilarity, further_metrics
from contrastive_text.objectives import Objective
from contrastive_text.training.forward_pass import read_slots
from contrastive_text.training.guides import Guide, guide_vectors
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import ViewPlan


class HeldOutLosses:
    """Gathers the losses of batches of held-out rows; the mean over batches is the loss.

    Rows are encoded by each rank for itself and compared with those of all ranks, so that a batch has the loss
    that one process would find: its terms are divided by the rows of all, as those of a step of training are.

    Args:
        objectives: Number of a loader -> the objectives whose loss is taken of its rows, by name.
    """

    def __init__(self, objectives: Mapping[int, Mapping[str, Objective]]) -> None:
        self.objectives = {number: dict(parts) for number, parts in objectives.items()}
        self._found: dict[str, list[Tensor]] = {name: [] for parts in objectives.values() for name in parts}

    def add(self, encoded: Encoded, number: int) -> None:
        """Adds a batch of the loader of this number: what its objectives read of this rank's rows."""
        whole = of_all_ranks(encoded)
        for name, objective in self.objectives[number].items():
            terms = objective(whole)
            value = reduce_terms(terms.total.detach(), max(int(terms.count), 1), terms.reduction)
            self._found[name].append(value)

    def figures(self) -> dict[str, Tensor]:
        """Returns ``OBJECTIVE/loss``, as training logs it: no percentage, and without the objective's weight."""
        return {f"{name}/loss": torch.stack(values).mean() for name, values in self._found.items() if values}


def of_all_ranks(encoded: Encoded) -> Encoded:
    """Returns the rows of all ranks, in rank order within each slot; without a process group the same."""
    slots = len(encoded.slots)
    examples = len(encoded.embeddings) // slots
    sizes = gather_sizes(examples, encoded.embeddings.device, encoded.shares)
    rows = [encoded.embeddings, encoded.text_ids, *encoded.guides.values()]
    by_example = [each.reshape(slots, examples, *each.shape[1:]).transpose(0, 1) for each in rows]
    targets = [] if encoded.target is None else [encoded.target]
    every = gather_all([*by_example, *targets], sizes)
    vectors, ids, *guides = (each.transpose(0, 1).flatten(0, 1) for each in every[: len(rows)])
    return replace(
        encoded,
        embeddings=vectors,
        text_ids=ids,
        target=every[-1] if targets else None,
        guides=dict(zip(encoded.guides, guides, strict=True)),
        shares=None,
    )


RANK_SCORE = FIGURES[0]
"""Name of the mean over the sets of the figure that chooses."""


class RankedScores:
    """Gathers the vectors of retrieval sets and scores them, times 100.

    Every rank encodes its part of the queries and of the documents; the documents' vectors are gathered, and each
    rank ranks them for its own queries.

    Args:
        sides: Number of a loader -> the queries or documents in it.
        widths: What a figure's name ends with -> of how many features it is; None for all.
    """

    def __init__(self, sides: Mapping[int, Ranked], widths: Mapping[str, int | None]) -> None:
        self.sides = dict(sides)
        self.widths = dict(widths)
        self._seen: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {
            (side.name, side.side): [] for side in self.sides.values()
        }

    def add(self, batch: Batch, number: int, vectors: Tensor) -> None:
        """Adds the vectors of a batch, (N, D), of the loader of this number."""
        assert batch.target is not None
        side = self.sides[number]
        self._seen[side.name, side.side].append((batch.target.long(), at_least_float32(vectors.detach())))

    def figures(self, partial: bool = False) -> dict[str, Tensor]:
        """Returns ``NAME/ndcg@10``, the others of ``metrics.FIGURES``, and the mean ``ndcg@10`` over the sets.

        Args:
            partial: Whether a set of which not all texts came is left out, as in a trial run of some batches.

        Raises:
            ValueError: Not all texts came.
        """
        figures: dict[str, Tensor] = {}
        for side in self.sides.values():
            if side.side == "positive":
                figures |= self._scored(side.name, side.data, partial)
        for mark in self.widths:
            each = [score for name, score in figures.items() if name.endswith(f"/{RANK_SCORE}{mark}")]
            figures |= {f"{RANK_SCORE}{mark}": torch.stack(each).mean()} if each else {}
        return figures

    def _scored(self, name: str, data: RetrievalSet, partial: bool) -> dict[str, Tensor]:
        asked, queries = self._own(name, "anchor")
        numbers, vectors = self._own(name, "positive")
        sizes = gather_sizes(len(numbers), numbers.device)
        numbers, vectors = gather_rows(numbers, sizes), gather_rows(vectors, sizes)
        every = int(sum_over_ranks(torch.tensor(len(asked), device=asked.device)))
        if (every, len(numbers)) != (len(data.queries), len(data.documents)):
            if partial:
                return {}
            raise InvalidValueError(
                f"trainer.limit_val_batches: expected all {len(data.queries):,} queries and "
                f"{len(data.documents):,} documents of {name}, got {every:,} and {len(numbers):,}; leave the "
                "limit out, and bound the corpus with data.retrieval.documents"
            )
        documents = torch.empty_like(vectors).index_copy_(0, numbers, vectors)
        places = asked.tolist()
        own = replace(
            data,
            queries=tuple(data.queries[place] for place in places),
            relevance=tuple(data.relevance[place] for place in places),
            own=tuple(data.own[place] for place in places),
        )
        figures = {}
        for mark, width in self.widths.items():
            wanted = FIGURES if width is None else FIGURES[:1]
            found = retrieval_scores(own, queries[:, :width], documents[:, :width], wanted)
            for figure, values in found.items():
                total = sum_over_ranks(values.sum().to(queries))
                figures[f"{name}/{figure}{mark}"] = 100 * total / every
        return figures

    def _own(self, name: str, side: str) -> tuple[Tensor, Tensor]:
        """Returns the numbers and vectors of this rank's texts."""
        seen = self._seen[name, side]
        if not seen:
            raise InvalidValueError(f"{name}: expected texts on every process, got none; use fewer devices")
        return torch.cat([numbers for numbers, _ in seen]), torch.cat([vectors for _, vectors in seen])


_Metrics: TypeAlias = Mapping[str, Mapping[str, Metric]]
"""Suffix of score names (none or ``@WIDTH``) -> kind of score -> the metric that gathers it."""

OVERALL = "overall"
"""Name of the mean of the tasks' scores."""


class HeldOutScores:
    """Gathers what becomes one score per file of scored pairs, and per task.

    Files of scored pairs are embedded as the saved model would; rows of a task are predicted by its objective,
    with the pooler of training, which its head has learned on.

    Args:
        loaders: The trainer's loaders of validation or test, or a single one.
        by_task: The objectives of each task, and what they read of other models.
        device: Where the numbers are kept.
    """

    def __init__(self, loaders: object, by_task: TaskParts, device: torch.device) -> None:
        listed = loaders if isinstance(loaders, list | tuple) else [loaders]
        self.guides = by_task.guides
        self.widths = {"": None, **{f"@{width}": width for width in by_task.widths}}
        self.files: dict[int, str] = {}  # scored pairs
        self.tasks: dict[str, tuple[Objective, _Metrics]] = {}
        self.parts: dict[int, tuple[str, str, _Metrics]] = {}  # of a task with several files
        ranked: dict[int, Ranked] = {}
        losses: dict[int, dict[str, Objective]] = {}
        for number, loader in enumerate(listed):
            collate = loader.collate_fn if isinstance(loader, DataLoader) else None
            if isinstance(collate, RankedCollator):
                ranked[number] = collate.ranked
            elif isinstance(collate, HeldOutCollator):
                losses[number] = by_task.named(collate.objectives)
            elif isinstance(collate, StepCollator):
                task = next(iter(collate.collators))
                objective = predicting(by_task.objectives(task))
                self.tasks.setdefault(task, (objective, _task_metrics(objective, device)))
                if collate.file:
                    self.parts[number] = (task, collate.file, _task_metrics(objective, device))
            else:
                self.files[number] = collate.task if isinstance(collate, Collator) else str(number)
        self.ranked, self.losses = RankedScores(ranked, self.widths), HeldOutLosses(losses)
        self.pairs = {name: _pair_metrics(self.widths, device) for name in self.files.values()}

    def add(
        self, batch: Batch | StepBatch, number: int, embed: Callable[[Batch], Tensor], embedder: Embedder
    ) -> dict[str, Tensor] | None:
        """Adds a batch to the score of its file or its task.

        Args:
            batch: Scored pairs, rows of a task, queries or documents, or held-out rows.
            number: That of its loader.
            embed: From a batch to the vectors of the saved model, (S, D).
            embedder: That of training.

        Returns:
            Of scored pairs: vectors as ``anchor`` and ``positive``, (N, D), and gold scores as ``target``, (N,).
        """
        if isinstance(batch, Batch) and number in self.ranked.sides:
            self.ranked.add(batch, number, embed(batch))
            return None
        if isinstance(batch, Batch) and number in self.losses.objectives:
            objectives = self.losses.objectives[number].values()
            self.losses.add(encode_unaltered(batch, embedder, *objectives, guides=self.guides), number)
            return None
        if isinstance(batch, Batch):
            return self._add_pairs(self.files[number], batch, embed(batch))
        for task, rows in batch.batches.items():
            self._add_predictions(task, encode_unaltered(rows, embedder, self.tasks[task][0]), number)
        return None

    def _add_pairs(self, name: str, batch: Batch, vectors: Tensor) -> dict[str, Tensor]:
        if batch.target is None:
            raise InvalidValueError(
                "evaluation: expected pairs with a score, got none; give a file with a score column"
            )
        u, v = vectors[batch.by_role("anchor")], vectors[batch.by_role("positive")]
        for mark, metrics in self.pairs[name].items():
            for metric in metrics.values():
                metric.update(*(each[:, : self.widths[mark]] for each in (u, v)), target=batch.target)
        return {"anchor": u, "positive": v, "target": batch.target}

    def _add_predictions(self, task: str, encoded: Encoded, number: int) -> None:
        objective, metrics = self.tasks[task]
        assert encoded.target is not None
        *_, own = self.parts.get(number, ({},))
        for mark, predict in objective.predictors().items():
            predictions = at_least_float32(predict(encoded))
            of_classes = predictions.ndim == 2
            target = encoded.target.long() if of_classes else encoded.target.to(predictions.dtype)
            for metric in (*metrics[mark].values(), *own.get(mark, {}).values()):
                metric.update(predictions, target)

    def figures(self, partial: bool = False) -> dict[str, Tensor]:
        """Returns all scores times 100: ``spearman``, ``TASK/accuracy``, ``overall``, ``SET/ndcg@10``, ...

        And ``OBJECTIVE/loss`` of held-out rows, as it is.

        Beside its score a task of two classes has ``f1``, of the second one, and ``matthews``, and one of scores
        ``spearman``. Of several files they are of all rows together, and ``TASK/accuracy/FILE`` is of one. What
        ends with ``@64`` is a score of the first 64 features.

        The first two are means over the files, of which each has its own where there are several; ``overall``
        is the plain mean over the tasks with held-out files, as the CS224N report has it. A correlation that is
        not defined, because all predictions or all gold scores are equal, counts 0, and a warning says so.
        """
        figures: dict[str, Tensor] = {}
        named = {name: _named(metrics) for name, metrics in self.pairs.items()}
        for kind in next(iter(named.values()), ()):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="pearson: all")  # the other has said so
                each = {name: metrics[kind].compute() for name, metrics in named.items()}
            figures[kind] = torch.stack(list(each.values())).mean()
            figures |= {f"{kind}/{name}": score for name, score in each.items()} if len(each) > 1 else {}
        scores = []
        for task, (_, metrics) in self.tasks.items():
            found = {f"{task}/{name}": _defined(each.compute(), task) for name, each in _named(metrics).items()}
            figures |= found
            scores.append(next(iter(found.values())).float())
        for task, file, metrics in self.parts.values():
            each = {name: _defined(metric.compute(), task) for name, metric in _named(metrics).items()}
            figures |= {f"{task}/{name}/{file}": score for name, score in each.items()}
        if scores:
            figures[OVERALL] = torch.stack(scores).mean()
        return figures | self.ranked.figures(partial) | self.losses.figures()

    def log(self, module: pl.LightningModule, part: str) -> None:
        """Logs the figures under a part, ``val`` or ``test``; says the main ones of before the first step."""
        trainer = module.trainer
        at_start = trainer.sanity_checking and trainer.num_sanity_val_steps == math.inf  # asked for by -1
        trial = (trainer.sanity_checking and not at_start) or vars(trainer)["fast_dev_run"]
        for name, figure in self.figures(partial=bool(trial)).items():
            # The metrics have gathered over ranks; sync_dist spares a warning.
            shown = name in ("spearman", OVERALL, RANK_SCORE)
            if at_start and shown and trainer.is_global_zero:
                say(f"before the first step: {part}/{name} {float(figure):.2f}")
            module.log(f"{part}/{name}", figure, prog_bar=shown, sync_dist=True)


def _pair_metrics(marks: Iterable[str], device: torch.device) -> _Metrics:
    return {
        mark: {"spearman": SpearmanSimilarity().to(device), "pearson": PearsonSimilarity().to(device)}
        for mark in marks
    }


def _task_metrics(objective: Objective, device: torch.device) -> _Metrics:
    """Returns what holds an objective's predictions against the target, its score first."""

    def metrics() -> dict[str, Metric]:
        assert objective.target is not None
        name, metric = objective.target.metric()
        own = {name: metric, **further_metrics(objective.target)}
        return {name: each.to(device) for name, each in own.items()}

    return {mark: metrics() for mark in objective.predictors()}


def _named(metrics: _Metrics) -> dict[str, Metric]:
    """Returns metrics by the whole names of their scores."""
    return {f"{kind}{mark}": metric for mark, each in metrics.items() for kind, metric in each.items()}


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


def encode_unaltered(
    batch: Batch, embedder: Embedder, *objectives: Objective, guides: Mapping[str, Guide] | None = None
) -> Encoded:
    """Returns a batch as objectives read it, without any view.

    Args:
        batch: Ragged rows.
        embedder: That of training, with which the objectives have learned.
        objectives: Some of the batch's task.
        guides: By name, where the objectives' losses are wanted; None for predictions, which read none.
    """
    read = read_slots(batch, ViewPlan(), objectives)
    vectors = embedder.pool(read)
    guided = {} if guides is None else guide_vectors(guides, read, objectives)
    target = read.target_for(vectors)
    return Encoded(vectors, read.slots, read.text_ids, target=target, guides=guided, shares=read.shares)


def predictions(batch: Batch, embedder: Embedder, objectives: Mapping[str, Objective]) -> Tensor:
    """Returns what the first objective that predicts gives for a batch, in float32."""
    objective = predicting(objectives)
    return objective.predict(encode_unaltered(batch, embedder, objective)).float()
