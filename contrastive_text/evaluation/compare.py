"""Comparison of models with a baseline: score differences with intervals, and agreement of vectors."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, text_id
from contrastive_text.core.terminal import as_markdown, html_list, html_table
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.cached import CachedEncoder, sample_texts
from contrastive_text.evaluation.results import AVERAGE, ScoreTable, TaskScore, as_json, in_columns, in_markdown
from contrastive_text.evaluation.retrieval import query_scores
from contrastive_text.evaluation.sts import check_setting, pair_cosines, score_tasks
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.metrics import RETRIEVAL_METRICS
from contrastive_text.metrics.bootstrap import (
    PairedBootstrap,
    check_resamples,
    holm,
    paired_bootstrap_mean,
    paired_bootstrap_spearman,
)
from contrastive_text.metrics.neighbors import linear_cka, neighbor_overlap

NEIGHBORS = 10
"""Number of nearest neighbors of a text that are compared between two models."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """Difference between a model's score and the baseline's score on a task, times 100.

    Args:
        model: Name of the model.
        task: Name of the task; ``Avg.`` for the mean over a suite.
        difference: Score of the model minus score of the baseline.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        p_value: Two-sided p value of the hypothesis that there is no difference.
        holm: P value adjusted by Holm's method for all models and tasks of the comparison; NaN for a mean.
    """

    model: str
    task: str
    difference: float
    low: float
    high: float
    p_value: float
    holm: float

    @property
    def excludes_zero(self) -> bool:
        """Returns whether the confidence interval of the score difference excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a model's vectors with the baseline's vectors of the same texts.

    Args:
        model: Name of the model.
        neighbors: Share of the 10 nearest neighbors that both models have in common, in [0, 1].
        cka: Debiased linear CKA. 1 if the vectors are equal except for rotation and scale, about 0 if they are
            unrelated, NaN if all vectors of a model are equal.
    """

    model: str
    neighbors: float
    cka: float


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Result of ``compare``: scores, their differences from the baseline, and agreement of the vectors.

    Args:
        baseline: Name of the model with which all other models are compared.
        tables: Table of each suite with the scores of all models.
        differences: Differences of the other models on each task, and on the mean over each suite.
        agreements: Agreement of each other model with the baseline; empty if there are too few texts.
        texts: Number of texts on which agreement was measured.
        resamples: Number of resamples of the test rows for each interval.
        notes: Further remarks.
    """

    baseline: str
    tables: tuple[ScoreTable, ...]
    differences: tuple[ScoreDifference, ...]
    agreements: tuple[Agreement, ...]
    texts: int
    resamples: int
    notes: tuple[str, ...]

    def text(self) -> str:
        """Returns the tables of the comparison with aligned columns for a terminal."""
        grids = [in_columns(grid) for grid in self._grids()]
        return "\n\n".join([*(table.text() for table in self.tables), *grids, "\n".join(self._remarks())])

    def markdown(self) -> str:
        """Returns the tables of the comparison in the Markdown of GitHub."""
        grids = [
            in_markdown([[as_markdown(cell.strip()) for cell in row] for row in grid]) for grid in self._grids()
        ]
        remarks = "\n".join(f"- {as_markdown(remark)}" for remark in self._remarks())
        return "\n\n".join([*(table.markdown() for table in self.tables), *grids, remarks])

    def _repr_html_(self) -> str:
        """Returns the tables of the comparison as HTML for a notebook."""
        captions = ("Differences, times 100", "Agreement of the vectors")
        grids = [
            html_table(caption, [[cell.strip() for cell in row] for row in grid])
            for caption, grid in zip(captions, self._grids(), strict=False)
        ]
        notes = html_list(self._remarks())
        return "\n".join([*(table._repr_html_() for table in self.tables), *grids, notes])

    def json(self) -> str:
        """Returns all scores and differences in full precision as JSON; ``null`` for a missing value."""
        content = {
            "baseline": self.baseline,
            "scores": [table.to_dict() for table in self.tables],
            "differences": [dataclasses.asdict(difference) for difference in self.differences],
            "agreements": [dataclasses.asdict(agreement) for agreement in self.agreements],
            "texts": self.texts,
            "resamples": self.resamples,
            "notes": self._remarks(),
        }
        return as_json(content)

    def _grids(self) -> list[list[list[str]]]:
        differences = [["against the first model", "task", "difference", "95 % interval  ", "p", "Holm p"]]
        for row in self.differences:
            interval = f"{row.low:+.2f} to {row.high:+.2f} {'*' if row.excludes_zero else ' '}"
            adjusted = "" if math.isnan(row.holm) else f"{row.holm:.4f}"
            cells = [f"{row.difference:+.2f}", interval, f"{row.p_value:.4f}", adjusted]
            differences.append([row.model, row.task, *cells])
        agreements = [["vectors against the first", f"{NEIGHBORS} neighbors in common", "linear CKA"]]
        for agreement in self.agreements:
            cka = "n/a" if math.isnan(agreement.cka) else f"{agreement.cka:.4f}"
            agreements.append([agreement.model, f"{agreement.neighbors:.1%}", cka])
        return [differences, *([agreements] if self.agreements else [])]

    def _remarks(self) -> list[str]:
        remarks = [
            "* the 95 % interval excludes 0; it is of other test rows, not of another training "
            f"({self.resamples:,} resamples, the same for all models)"
        ]
        comparisons = sum(not math.isnan(difference.holm) for difference in self.differences)
        if comparisons > 1:
            remarks.append(f"Holm p: adjusted for the {comparisons} comparisons made at once")
        if 2 * comparisons / (self.resamples + 1) > 0.05:
            remarks.append(
                f"no Holm p can be 0.05 or below with {self.resamples:,} resamples; "
                f"{40 * comparisons:,} are needed"
            )
        if self.agreements:
            remarks.append(f"vectors of {self.texts:,} different texts; CKA is debiased")
        return [*remarks, *self.notes]


MOST_TEXTS = 5000
"""Largest number of texts on which the agreement of two models' vectors is measured.

Time grows with its square.
"""


class _Suite(NamedTuple):
    table: ScoreTable
    paired: Mapping[str, Mapping[str, PairedBootstrap]]
    """Scores of the baseline and of a model on the same bootstrap resamples, by model and task."""


def compare(
    models: Mapping[str, CachedEncoder],
    sts: Mapping[str, STSPairs | str] | None = None,
    correct: Mapping[str, Mapping[str, Tensor | str]] | None = None,
    retrieval: Mapping[str, RetrievalSet | str] | None = None,
    texts: Sequence[str] | None = None,
    setting: str = "all",
    resamples: int = 1000,
    seed: int = 42,
    title: str = "accuracy x 100",
    averaged: Sequence[str] | None = None,
) -> ModelComparison:
    """Compares the scores and the vectors of models with the first model.

    Each difference of scores has a percentile interval from the paired bootstrap over test rows (see
    ``metrics.bootstrap``). All models are scored on the same resamples. If the setting averages over subsets,
    pairs are resampled within their subsets. The interval of a mean assumes that tasks are independent. The
    agreement of vectors (see ``metrics.neighbors``) needs no gold scores.

    Args:
        models: Encoders by name. The first model is the baseline.
        sts: Scored pairs by task, or the reason why a task is missing, as ``sts_data.find_sts`` returns them.
        correct: Mask of the test rows that a model classifies correctly, (n,), by model and task, or the reason
            why a task is missing. See ``senteval.transfer_correct``.
        retrieval: Queries and corpus by task, or the reason why a task is missing, as ``find_retrieval`` returns
            them. Models are compared by the nDCG@10 of each query.
        texts: Texts whose vectors are compared; None for the texts of the scored pairs and the queries. At most
            5,000 of them are drawn.
        setting: Way to combine the subsets of an STS task: ``all``, ``mean`` or ``wmean``.
        resamples: Number of resamples of the test rows.
        seed: Seed of the resamples and of the drawn texts.
        title: Title of the table of accuracies, such as the protocol.
        averaged: Tasks over which the mean accuracy is taken; None for all.

    Raises:
        ValueError: There are fewer than two models, no task with data, no resamples, or a task with a single
            pair; the setting is unknown; or a vector has NaN or infinity.

    Example:
        >>> models = {"old": CachedEncoder(old), "new": CachedEncoder(new)}  # doctest: +SKIP
        >>> result = compare(models, find_sts("data"))  # doctest: +SKIP
        >>> [(row.task, row.difference, row.excludes_zero) for row in result.differences]  # doctest: +SKIP
        [('STS12', 1.8, True), ...]
    """
    if len(models) < 2:
        raise InvalidValueError(
            f"compare.models: expected two or more, got {len(models)}; the first is the baseline"
        )
    baseline, *compared = models
    check_resamples(resamples)
    arguments: dict[str, Mapping[str, object] | None] = {
        "sts": sts, "correct": correct and correct[baseline], "retrieval": retrieval
    }  # fmt: skip
    if not any(tasks is not None for tasks in arguments.values()):
        raise InvalidValueError(
            "compare: expected tasks in sts, correct or retrieval, got no tasks; give scored pairs, for example"
        )
    for kind, tasks in arguments.items():
        if tasks is not None:
            check_any_data(f"compare.{kind}", tasks)
    suites = []
    pooled: list[str] = []
    if sts is not None:
        check_pairs(sts, setting)
        pooled = [text for pairs in _present(sts).values() for text in (*pairs.first, *pairs.second)]
        for name, embed in models.items():
            with _naming(name):
                embed(pooled)  # encodes the texts of all tasks together, sorted by length
        suites.append(_sts(models, sts, setting, resamples, seed))
    if correct is not None:
        answers = {name: correct[name] for name in models}
        suites.append(_row_means("accuracy", answers, title, averaged, resamples, seed))
    if retrieval is not None:
        sets = [data for data in retrieval.values() if isinstance(data, RetrievalSet)]
        by_query = {}
        for name, embed in models.items():
            with _naming(name):
                by_query[name] = query_scores(embed, retrieval)
        suites.append(
            _row_means(RETRIEVAL_METRICS[0], by_query, f"{RETRIEVAL_METRICS[0]} x 100", None, resamples, seed)
        )
        pooled += [text for data in sets for text in data.queries]
    distinct = dict.fromkeys(pooled if texts is None else texts)
    sample, available = sample_texts(distinct, MOST_TEXTS, seed), len(distinct)
    notes = [f"{len(sample):,} of {available:,} different texts drawn"] if len(sample) < available else []
    if len(sample) > NEIGHBORS:
        agreements = _agreements(models, sample)
    else:
        agreements = ()
        notes.append(f"vectors not compared: expected {NEIGHBORS + 1} different texts or more, got {len(sample)}")
    return ModelComparison(
        baseline=baseline,
        tables=tuple(suite.table for suite in suites),
        differences=_differences(suites, compared),
        agreements=agreements,
        texts=len(sample),
        resamples=resamples,
        notes=tuple(notes),
    )


def check_pairs(sts: Mapping[str, STSPairs | str], setting: str) -> None:
    """Checks that each task, or each subset that the setting averages, has two pairs or more.

    Raises:
        ValueError: A task or subset has one pair, or the setting is unknown or needs named subsets.
    """
    tasks = _present(sts)
    check_setting(setting, tasks.values())
    for task, pairs in tasks.items():
        sizes = {"": len(pairs)} if setting == "all" else Counter(pairs.subsets)
        for subset, size in sizes.items():
            if size < 2:
                place = f"{task}, {subset}" if subset else task
                raise InvalidValueError(
                    f"{place}: expected two pairs or more, got {size}; leave it out, or add pairs"
                )


def _present(sts: Mapping[str, STSPairs | str]) -> dict[str, STSPairs]:
    return {task: pairs for task, pairs in sts.items() if isinstance(pairs, STSPairs)}


def check_any_data(where: str, tasks: Mapping[str, object]) -> None:
    """Checks that at least one task has data. The value of a missing task is the reason why it is missing.

    Raises:
        ValueError: All tasks are missing.
    """
    missing = [f"{task}: {data}" for task, data in tasks.items() if isinstance(data, str)]
    if len(missing) == len(tasks):
        reason = missing[0] if missing else "no task is named"
        raise InvalidValueError(f"{where}: expected the data of one task or more, got no data; {reason}")


def _sts(
    models: Mapping[str, CachedEncoder],
    sts: Mapping[str, STSPairs | str],
    setting: str,
    resamples: int,
    seed: int,
) -> _Suite:
    rows = {name: score_tasks(embed, sts, setting) for name, embed in models.items()}
    baseline, *compared = models
    paired: dict[str, dict[str, PairedBootstrap]] = {name: {} for name in compared}
    for task, pairs in _present(sts).items():
        cosines = {name: pair_cosines(embed, pairs) for name, embed in models.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # score_tasks has warned of collapsed vectors already
            for name in compared:
                paired[name][task] = paired_bootstrap_spearman(
                    cosines[baseline],
                    cosines[name],
                    target=pairs.gold,
                    subsets=None if setting == "all" else pairs.subsets,
                    weighted=setting == "wmean",
                    resamples=resamples,
                    generator=_generator(seed, task),
                )
    return _Suite(ScoreTable(f"Spearman x 100, setting {setting}", rows), paired)


def _row_means(
    metric: str,
    values: Mapping[str, Mapping[str, Tensor | str]],
    title: str,
    averaged: Sequence[str] | None,
    resamples: int,
    seed: int,
) -> _Suite:
    scores = {
        name: [
            TaskScore.absent(task, metric, rows)
            if isinstance(rows, str)
            else TaskScore(task, metric, 100 * float(rows.double().mean()), size=len(rows))
            for task, rows in by_task.items()
        ]
        for name, by_task in values.items()
    }
    baseline, *compared = values
    paired = {
        name: {
            task: paired_bootstrap_mean(first, second, resamples, _generator(seed, task))
            for task, second in values[name].items()
            if isinstance(first := values[baseline][task], Tensor) and isinstance(second, Tensor)
        }
        for name in compared
    }
    return _Suite(ScoreTable(title, scores, averaged), paired)


def _differences(suites: Sequence[_Suite], names: Sequence[str]) -> tuple[ScoreDifference, ...]:
    """Returns the differences of the named models on all tasks, with Holm's adjustment over all of them."""
    p_values = [pair.p_value for suite in suites for name in names for pair in suite.paired[name].values()]
    adjusted = iter(holm(p_values))
    differences = []
    for suite in suites:
        averaged = suite.table.averaged or suite.table.tasks
        for name in names:
            paired = suite.paired[name]
            differences += [_difference(name, task, pair, next(adjusted)) for task, pair in paired.items()]
            if len(averaged) > 1 and paired.keys() >= set(averaged):  # as in the table, no mean over some tasks
                mean = PairedBootstrap.mean([paired[task] for task in averaged])
                differences.append(_difference(name, AVERAGE, mean, math.nan))
    return tuple(differences)


def _difference(name: str, task: str, pair: PairedBootstrap, adjusted: float) -> ScoreDifference:
    low, high = pair.interval()
    return ScoreDifference(name, task, 100 * pair.difference, 100 * low, 100 * high, pair.p_value, adjusted)


def _agreements(models: Mapping[str, CachedEncoder], texts: Sequence[str]) -> tuple[Agreement, ...]:
    vectors = {}
    for name, embed in models.items():
        with _naming(name):
            vectors[name] = embed(texts)
    baseline, *compared = vectors
    return tuple(
        Agreement(
            model=name,
            neighbors=float(neighbor_overlap(vectors[baseline], vectors[name], NEIGHBORS)),
            cka=float(linear_cka(vectors[baseline], vectors[name], debiased=True)),
        )
        for name in compared
    )


@contextmanager
def _naming(model: str) -> Iterator[None]:
    """Puts the name of a model before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise InvalidValueError(f"{model}: {error}") from error


def _generator(seed: int, task: str) -> torch.Generator:
    return torch.Generator().manual_seed(fold_key(seed, text_id(task)))
