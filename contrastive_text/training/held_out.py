"""Scores and losses on held-out data: correlations of pairs, scores of tasks, rankings, losses of objectives."""

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
from contrastive_text.core.storage.checkpoints import RowScores, ScoreRows
from contrastive_text.core.terminal import log_message
from contrastive_text.data import Collator
from contrastive_text.data.collator import StepCollator
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.data.run_tables import HeldOutCollator, RankedCollator, RetrievalSide
from contrastive_text.encoders.base import Embedder
from contrastive_text.inference.search import SimilarityName, retrieval_scores
from contrastive_text.inference.sparse import SparseVectors, comparable, csr_of, join_rows, to_csr
from contrastive_text.losses import reduce_terms
from contrastive_text.metrics import (
    RETRIEVAL_METRICS,
    PearsonSimilarity,
    SpearmanSimilarity,
    exact_similarity,
    extra_metrics,
)
from contrastive_text.objectives import Objective
from contrastive_text.training.forward_pass import read_slots
from contrastive_text.training.guides import Guide, guide_vectors
from contrastive_text.training.tasks import TaskParts
from contrastive_text.views import ViewPlan


class HeldOutLosses:
    """Collects the losses of objectives on batches of held-out rows, and averages them over the batches.

    Each rank encodes its own rows and compares them with the rows of all ranks. The loss of a batch therefore
    equals that of one process: its terms are divided by the number of rows of all ranks, as in a training step.

    Args:
        objectives: Number of a loader -> name -> objective whose loss is computed on the loader's rows.
    """

    def __init__(self, objectives: Mapping[int, Mapping[str, Objective]]) -> None:
        self.objectives = {number: dict(parts) for number, parts in objectives.items()}
        self._losses: dict[str, list[Tensor]] = {name: [] for parts in objectives.values() for name in parts}
        self._rows: dict[str, list[Tensor]] = {}  # values of the examples of each batch

    def add(self, encoded: Encoded, number: int) -> None:
        """Adds the losses of objectives on an encoded held-out batch of this rank."""
        whole_batch = gather_encoded(encoded)
        examples = len(whole_batch.embeddings) // len(whole_batch.slots)
        for name, objective in self.objectives[number].items():
            terms = objective(whole_batch)
            count = max(int(terms.count), 1)
            self._losses[name].append(reduce_terms(terms.total.detach(), count, terms.reduction))
            for score, values in terms.rows.items():
                if score == "loss" and len(values) % examples == 0:  # otherwise a term isn't of one example
                    sums = values.reshape(-1, examples).sum(dim=0)
                    values = examples * reduce_terms(sums, count, terms.reduction)
                if len(values) == examples:
                    self._rows.setdefault(f"{name}/{score}", []).append(values)

    def figures(self) -> dict[str, Tensor]:
        """Returns the mean held-out loss ``OBJECTIVE/loss`` of each objective, without the objective's weight.

        Also returns the means over all rows of the other scores of ``Terms.rows``, times 100.
        """
        losses = {f"{name}/loss": torch.stack(values).mean() for name, values in self._losses.items() if values}
        scores = {name: parts for name, parts in self._rows.items() if name not in losses}
        return losses | {name: 100 * torch.cat(values).mean() for name, values in scores.items()}

    def rows(self) -> ScoreRows:
        """Returns the values of the held-out rows whose means are the losses and scores."""
        rows = {name: torch.cat(values).cpu().double() for name, values in self._rows.items()}
        for objective, losses in self._losses.items():
            name = f"{objective}/loss"
            mean = torch.stack(losses).mean().cpu().double()
            if name in rows and not torch.isclose(rows[name].mean(), mean, rtol=1e-4):
                del rows[name]  # the loss is not a mean over rows
        scales = {name: 1 if name.endswith("/loss") else 100 for name in rows}
        return {name: {"rows": RowScores(scales[name] * values)} for name, values in rows.items()}


def gather_encoded(encoded: Encoded) -> Encoded:
    """Gathers the encoded rows of all ranks, in rank order within each slot. One process gets its own rows."""
    slots = len(encoded.slots)
    examples = len(encoded.embeddings) // slots
    sizes = gather_sizes(examples, encoded.embeddings.device, encoded.rank_sizes)
    rows = [encoded.embeddings, encoded.text_ids, *encoded.guides.values()]
    by_example = [tensor.reshape(slots, examples, *tensor.shape[1:]).transpose(0, 1) for tensor in rows]
    by_name = {"target": encoded.target, "scores": encoded.scores}
    labels = {name: tensor for name, tensor in by_name.items() if tensor is not None}
    gathered_tensors = gather_all([*by_example, *labels.values()], sizes)
    vectors, ids, *guides = (tensor.transpose(0, 1).flatten(0, 1) for tensor in gathered_tensors[: len(rows)])
    labels = dict(zip(labels, gathered_tensors[len(rows) :], strict=True))
    return replace(
        encoded,
        embeddings=vectors,
        text_ids=ids,
        guides=dict(zip(encoded.guides, guides, strict=True)),
        rank_sizes=None,
        target=labels.get("target"),
        scores=labels.get("scores"),
    )


RANK_SCORE = RETRIEVAL_METRICS[0]
"""Name of the retrieval metric that selects checkpoints: mean nDCG@10 over the retrieval sets."""


class RetrievalScores:
    """Collects the vectors of retrieval sets and computes ranking metrics, times 100.

    Every rank encodes its share of the queries and documents. The documents' vectors are gathered, and each rank
    ranks all documents for its own queries.

    Args:
        sides: Number of a loader -> its queries or documents.
        variants: Suffix of a metric's name -> function to the vectors that are compared.
        sparse: Similarity of sparse vectors; None for dense vectors, which are compared by cosine.
    """

    def __init__(
        self,
        sides: Mapping[int, RetrievalSide],
        variants: Mapping[str, Callable[[Tensor], Tensor]],
        sparse: SimilarityName | None = None,
    ) -> None:
        self.sides = dict(sides)
        self.variants = dict(variants)
        self.sparse = sparse
        self._vectors: dict[tuple[str, str], list[tuple[Tensor, Tensor | SparseVectors]]] = {
            (side.name, side.side): [] for side in self.sides.values()
        }
        self._rows: dict[str, RowScores] = {}

    def add(self, batch: Batch, number: int, vectors: Tensor) -> None:
        """Adds the vectors of a batch of queries or documents, (N, D), of the loader with the given number."""
        assert batch.target is not None
        side = self.sides[number]
        rows: Tensor | SparseVectors = at_least_float32(vectors.detach())
        if self.sparse is not None:
            rows = comparable(self.sparse, to_csr(rows))
        self._vectors[side.name, side.side].append((batch.target.long(), rows))

    def figures(self, partial: bool = False) -> dict[str, Tensor]:
        """Returns the ranking metrics ``SET/METRIC`` of each retrieval set, and the mean ``ndcg@10``.

        Args:
            partial: Whether incomplete sets are skipped, as in a sanity check of a few batches.

        Raises:
            ValueError: A set is incomplete, and ``partial`` is false.
        """
        figures: dict[str, Tensor] = {}
        for side in self.sides.values():
            if side.side == "positive":
                figures |= self._score_set(side.name, side.data, partial)
        for mark in self.variants:
            scores = [score for name, score in figures.items() if name.endswith(f"/{RANK_SCORE}{mark}")]
            figures |= {f"{RANK_SCORE}{mark}": torch.stack(scores).mean()} if scores else {}
        return figures

    def _score_set(self, name: str, data: RetrievalSet, partial: bool) -> dict[str, Tensor]:
        query_numbers, queries = self._own(name, "anchor")
        numbers, vectors = self._own(name, "positive")
        sizes = gather_sizes(len(numbers), numbers.device)
        vectors = gather_rows(vectors, sizes) if self.sparse is None else _gather_sparse(vectors, numbers, sizes)
        numbers = gather_rows(numbers, sizes)
        count = int(sum_over_ranks(torch.tensor(len(query_numbers), device=query_numbers.device)))
        if (count, len(numbers)) != (len(data.queries), len(data.documents)):
            if partial:
                return {}
            raise InvalidValueError(
                f"trainer.limit_val_batches: expected all {len(data.queries):,} queries and "
                f"{len(data.documents):,} documents of {name}, got {count:,} and {len(numbers):,}; remove the "
                f"limit, and bound the corpus with data.retrieval.documents"
            )
        order = numbers.argsort()
        documents = vectors[order] if self.sparse is None else vectors[order.cpu().numpy()]
        like = queries if self.sparse is None else torch.zeros((), device=numbers.device)
        query_places = query_numbers.tolist()
        own_queries = replace(
            data,
            queries=tuple(data.queries[place] for place in query_places),
            relevance=tuple(data.relevance[place] for place in query_places),
            own_documents=tuple(data.own_documents[place] for place in query_places),
        )
        figures = {}
        query_sizes = gather_sizes(len(query_numbers), query_numbers.device)
        order = gather_rows(query_numbers, query_sizes).argsort()
        for mark, change in self.variants.items():
            names = RETRIEVAL_METRICS[:1] if mark else RETRIEVAL_METRICS
            scores = retrieval_scores(own_queries, change(queries), change(documents), names)
            if not mark:
                values = gather_rows(scores[RANK_SCORE].to(like), query_sizes)[order]
                self._rows[name] = RowScores(100 * values.cpu().double())
            for figure, values in scores.items():
                total = sum_over_ranks(values.sum().to(like))
                figures[f"{name}/{figure}{mark}"] = 100 * total / count
        return figures

    def rows(self) -> ScoreRows:
        """Returns nDCG@10 of each query, by retrieval set and in the order of the queries, after ``figures``."""
        return {RANK_SCORE: self._rows} if self._rows else {}

    def _own(self, name: str, side: str) -> tuple[Tensor, Tensor | SparseVectors]:
        """Returns the numbers and vectors of this rank's queries or documents of a retrieval set."""
        parts = self._vectors[name, side]
        if not parts:
            raise InvalidValueError(
                f"{name}: expected texts on every process, got no text on this one; use fewer devices"
            )
        numbers, vectors = torch.cat([numbers for numbers, _ in parts]), [rows for _, rows in parts]
        return numbers, torch.cat(vectors) if self.sparse is None else join_rows(vectors, features=0)


def _gather_sparse(vectors: SparseVectors, like: Tensor, sizes: list[int]) -> SparseVectors:
    """Concatenates the sparse vectors of all ranks, which communicate on the device of ``like``."""
    own = (vectors.data, *(array.astype("int64") for array in (vectors.indices, vectors.indptr)))
    data, columns, pointers = (torch.from_numpy(array).to(like.device) for array in own)
    data, columns = gather_all([data, columns], gather_sizes(len(columns), like.device))
    ends = gather_rows(pointers.diff(), sizes).cumsum(0)
    pointers = torch.cat([ends.new_zeros(1), ends])
    arrays = [tensor.cpu().numpy() for tensor in (data, columns, pointers)]
    return csr_of(arrays, (sum(sizes), vectors.shape[1]))


_Metrics: TypeAlias = Mapping[str, Mapping[str, Metric]]
"""Suffix of score names (empty or ``@WIDTH``) -> name of a score -> metric that computes it."""

OVERALL = "overall"
"""Name of the mean score of a run's tasks."""


class HeldOutScores:
    """Computes all scores of a validation or test: of scored pairs, tasks, retrieval sets and held-out rows.

    Scored pairs are embedded like with the saved model. Rows of a task are predicted by its objective, with the
    pooler of training, because its head was trained on this pooler.

    Args:
        loaders: Validation or test loaders of the trainer, or a single loader.
        by_task: Objectives and guides of each task.
        device: Device of the metrics.
        sparse: Similarity of sparse vectors in retrieval sets; None for dense vectors.
    """

    def __init__(
        self,
        loaders: object,
        by_task: TaskParts,
        device: torch.device,
        sparse: SimilarityName | None = None,
    ) -> None:
        listed = loaders if isinstance(loaders, list | tuple) else [loaders]
        self.guides = by_task.guides
        self.variants = by_task.variants
        self.files: dict[int, str] = {}  # scored pairs
        self.tasks: dict[str, tuple[Objective, _Metrics]] = {}
        self.parts: dict[int, tuple[str, str, _Metrics]] = {}  # files of tasks with several files
        ranked: dict[int, RetrievalSide] = {}
        losses: dict[int, dict[str, Objective]] = {}
        for number, loader in enumerate(listed):
            collate = loader.collate_fn if isinstance(loader, DataLoader) else None
            if isinstance(collate, RankedCollator):
                ranked[number] = collate.ranked
            elif isinstance(collate, HeldOutCollator):
                losses[number] = by_task.select_objectives(collate.objectives)
            elif isinstance(collate, StepCollator):
                task = next(iter(collate.collators))
                objective = find_predictor(by_task.objectives(task))
                self.tasks.setdefault(task, (objective, _task_metrics(objective, device)))
                if collate.file:
                    self.parts[number] = (task, collate.file, _task_metrics(objective, device))
            else:
                self.files[number] = collate.task if isinstance(collate, Collator) else str(number)
        self.ranked = RetrievalScores(ranked, self.variants, sparse)
        self.losses = HeldOutLosses(losses)
        self.pairs = {name: _pair_metrics(self.variants, device) for name in self.files.values()}
        self._pair_rows: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {name: [] for name in self.pairs}

    def add(
        self, batch: Batch | StepBatch, number: int, embed: Callable[[Batch], Tensor], embedder: Embedder
    ) -> dict[str, Tensor] | None:
        """Adds a batch to the score of its file or its task.

        Args:
            batch: Scored pairs, rows of a task, queries or documents, or held-out rows.
            number: Number of the batch's loader.
            embed: Function from a batch to the vectors of the saved model, (S, D).
            embedder: Embedder of training.

        Returns:
            For scored pairs: vectors as ``anchor`` and ``positive``, (N, D), and gold scores as ``target``, (N,).
            Otherwise None.
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
                "evaluation: expected pairs with a score, got pairs without one; give a file with a score column"
            )
        sides = batch.by_role("anchor"), batch.by_role("positive")
        u, v = (vectors[side] for side in sides)
        for mark, metrics in self.pairs[name].items():
            for metric in metrics.values():
                metric.update(*map(self.variants[mark], (u, v)), target=batch.target)
        anchor_ids, positive_ids = (batch.text_ids[side] for side in sides)
        pair_ids = 31 * anchor_ids ^ positive_ids
        self._pair_rows[name].append((pair_ids, exact_similarity(u.detach(), v.detach()), batch.target))
        return {"anchor": u, "positive": v, "target": batch.target}

    def _add_predictions(self, task: str, encoded: Encoded, number: int) -> None:
        objective, metrics = self.tasks[task]
        assert encoded.target is not None
        *_, file_metrics = self.parts.get(number, ({},))
        for mark, predict in objective.predictors().items():
            predictions = at_least_float32(predict(encoded))
            of_classes = predictions.ndim == 2
            target = encoded.target.long() if of_classes else encoded.target.to(predictions.dtype)
            for metric in (*metrics[mark].values(), *file_metrics.get(mark, {}).values()):
                metric.update(predictions, target)

    def figures(self, partial: bool = False) -> dict[str, Tensor]:
        """Returns all scores times 100: ``spearman``, ``TASK/accuracy``, ``overall``, ``SET/ndcg@10``, ...

        ``OBJECTIVE/loss`` of held-out rows is not multiplied by 100.

        A task of two classes also has ``f1`` of the second class and ``matthews``. A task of scores also has
        ``spearman``. Scores of a task with several files are computed over all rows; ``TASK/accuracy/FILE`` is
        the score of one file. The suffix ``@64`` marks a score of the first 64
        features, and ``@binary`` a score of one bit a feature.

        ``spearman`` and ``pearson`` are means over the files of scored pairs. With several files each also has
        its own score. ``overall`` is the mean over the tasks with held-out files, as in the CS224N report. If all
        predictions or all gold scores are equal, a correlation is undefined. It then counts 0, with a warning.

        Args:
            partial: Whether incomplete retrieval sets are skipped, as in a sanity check of a few batches.
        """
        figures: dict[str, Tensor] = {}
        by_file = {name: _by_score_name(metrics) for name, metrics in self.pairs.items()}
        for kind in next(iter(by_file.values()), ()):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="pearson: all")  # spearman has warned already
                by_name = {name: metrics[kind].compute() for name, metrics in by_file.items()}
            figures[kind] = torch.stack(list(by_name.values())).mean()
            figures |= {f"{kind}/{name}": score for name, score in by_name.items()} if len(by_name) > 1 else {}
        scores = []
        for task, (_, metrics) in self.tasks.items():
            task_scores = {
                f"{task}/{name}": _percentage(metric.compute(), task)
                for name, metric in _by_score_name(metrics).items()
            }
            figures |= task_scores
            scores.append(next(iter(task_scores.values())).float())
        for task, file, metrics in self.parts.values():
            by_name = {n: _percentage(metric.compute(), task) for n, metric in _by_score_name(metrics).items()}
            figures |= {f"{task}/{name}/{file}": score for name, score in by_name.items()}
        if scores:
            figures[OVERALL] = torch.stack(scores).mean()
        return figures | self.ranked.figures(partial) | self.losses.figures()

    def rows(self) -> ScoreRows:
        """Returns the values of held-out rows of all ranks, by score and file, after ``figures``.

        The order of rows is the same for any number of ranks. Scores of tasks have no rows.
        """
        pairs: dict[str, RowScores] = {}
        for name, parts in self._pair_rows.items():
            columns = [torch.cat(column) for column in zip(*parts, strict=True)]
            ids, *values = gather_all(columns, gather_sizes(len(columns[0]), columns[0].device))
            cosines, target = (column.cpu().double() for column in values)
            order = target.argsort(stable=True)
            order = order[ids.cpu()[order].argsort(stable=True)]
            pairs[name] = RowScores(cosines[order], target[order])
        scores = {"spearman": pairs} if pairs else {}
        return {**scores, **self.ranked.rows(), **self.losses.rows()}

    def log(self, module: pl.LightningModule, part: str) -> None:
        """Logs all scores under ``val`` or ``test``. Before the first step it also prints the main scores."""
        trainer = module.trainer
        at_start = trainer.sanity_checking and trainer.num_sanity_val_steps == math.inf  # set by -1
        trial = (trainer.sanity_checking and not at_start) or vars(trainer)["fast_dev_run"]
        losses = self.losses.figures()
        for name, figure in self.figures(partial=bool(trial)).items():
            # The metrics have already gathered over ranks; sync_dist only avoids a warning.
            is_main = name in ("spearman", OVERALL, RANK_SCORE, *losses)
            if at_start and is_main and trainer.is_global_zero:
                digits, kind = (
                    4 if name.endswith("/loss") else 2,
                    ", the mean over tasks" if name == OVERALL else "",
                )
                log_message(f"before the first step: {part}/{name} {float(figure):.{digits}f}{kind}")
            module.log(f"{part}/{name}", figure, prog_bar=is_main, sync_dist=True)


def _pair_metrics(marks: Iterable[str], device: torch.device) -> _Metrics:
    return {
        mark: {"spearman": SpearmanSimilarity().to(device), "pearson": PearsonSimilarity().to(device)}
        for mark in marks
    }


def _task_metrics(objective: Objective, device: torch.device) -> _Metrics:
    """Returns the metrics that compare an objective's predictions with its target, the main score first."""

    def metrics() -> dict[str, Metric]:
        assert objective.target is not None
        name, metric = objective.target.metric()
        all_metrics = {name: metric, **extra_metrics(objective.target)}
        return {name: metric_on_device.to(device) for name, metric_on_device in all_metrics.items()}

    return {mark: metrics() for mark in objective.predictors()}


def _by_score_name(metrics: _Metrics) -> dict[str, Metric]:
    """Returns a dictionary from full score names, with their suffixes, to metrics."""
    return {
        f"{kind}{mark}": metric
        for mark, metrics_of_width in metrics.items()
        for kind, metric in metrics_of_width.items()
    }


def _percentage(score: Tensor, task: str) -> Tensor:
    """Returns a held-out score times 100. An undefined score (NaN) gives 0 and a warning."""
    if score.isnan():
        warnings.warn(
            f"{task}: the score is not defined, for all predictions or all gold scores are equal: it counts 0",
            stacklevel=2,
        )
    return 100 * score.nan_to_num(nan=0.0)


def find_predictor(objectives: Mapping[str, Objective]) -> Objective:
    """Returns the first objective of a task that predicts labels.

    Raises:
        ValueError: No objective predicts labels.
    """
    for objective in objectives.values():
        if objective.predicts:
            return objective
    raise InvalidValueError(
        f"validation: expected an objective that predicts the task's labels, got {', '.join(objectives)}; remove "
        f"the task's held-out files"
    )


def encode_unaltered(
    batch: Batch, embedder: Embedder, *objectives: Objective, guides: Mapping[str, Guide] | None = None
) -> Encoded:
    """Encodes the slots of a batch that objectives read, without views.

    Args:
        batch: Ragged rows.
        embedder: Embedder of training, with which the objectives were trained.
        objectives: Objectives of the batch's task.
        guides: Name -> guide, to compute losses; None for predictions, which read no guides.
    """
    rows = read_slots(batch, ViewPlan(), objectives)
    vectors = embedder.pool(rows)
    guided = {} if guides is None else guide_vectors(guides, rows, objectives)
    target, scores = rows.target_for(vectors), rows.scores_for(vectors)
    ids, sizes = rows.text_ids, rows.rank_sizes
    return Encoded(vectors, rows.slots, ids, target=target, guides=guided, rank_sizes=sizes, scores=scores)


def predict(batch: Batch, embedder: Embedder, objectives: Mapping[str, Objective]) -> Tensor:
    """Returns the predictions of the first objective that predicts labels for a batch, in float32."""
    objective = find_predictor(objectives)
    return objective.predict(encode_unaltered(batch, embedder, objective)).float()
