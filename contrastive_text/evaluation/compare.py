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
from contrastive_text.core.random import fold, text_id
from contrastive_text.core.terminal import as_markdown, html_list, html_table
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.cached import CachedEncoder, drawn_texts
from contrastive_text.evaluation.results import AVERAGE, ScoreTable, TaskScore, as_json, in_columns, in_markdown
from contrastive_text.evaluation.retrieval import query_scores
from contrastive_text.evaluation.sts import check_setting, pair_cosines, score_tasks
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.metrics import FIGURES
from contrastive_text.metrics.bootstrap import (
    PairedBootstrap,
    check_resamples,
    holm,
    paired_bootstrap_mean,
    paired_bootstrap_spearman,
)
from contrastive_text.metrics.neighbors import linear_cka, neighbor_overlap

NEIGHBORS = 10
"""Nearest neighbors of a text that two models may have in common."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """Difference of a model's score from the baseline's; figures times 100.

    Args:
        model: Name of the model.
        task: Name of the task; ``Avg.`` for the mean over a suite.
        difference: Score of the model minus the baseline's.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
        p_value: Two-sided p value of the hypothesis that there is no difference.
        holm: The p value adjusted by Holm's method for all models and tasks of the comparison; NaN for a mean.
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
        """Returns whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a model's vectors with the baseline's vectors of the same texts.

    Args:
        model: Name of the model.
        neighbors: Share of the 10 nearest neighbors that both models have in common, in [0, 1].
        cka: Debiased linear CKA: 1 if the vectors are equal except for rotation and scale, about 0 if they are
            unrelated; NaN if all vectors of a model are equal.
    """

    model: str
    neighbors: float
    cka: float


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Result of ``compare``: scores, their differences from the baseline, and agreement of the vectors.

    Args:
        baseline: Name of the model with which the others are compared.
        tables: Scores of all models, a table for each suite.
        differences: For each suite and each other model its tasks and their mean.
        agreements: One for each other model; empty if there were too few texts.
        texts: Number of texts that agreement was measured on.
        resamples: Resamples of the test rows behind each interval.
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
        """Returns the tables in columns, as a terminal shows them."""
        grids = [in_columns(grid) for grid in self._grids()]
        return "\n\n".join([*(table.text() for table in self.tables), *grids, "\n".join(self._remarks())])

    def markdown(self) -> str:
        """Returns the tables in GitHub's Markdown."""
        grids = [in_markdown([[cell.strip() for cell in row] for row in grid]) for grid in self._grids()]
        remarks = "\n".join(f"- {as_markdown(remark)}" for remark in self._remarks())
        return "\n\n".join([*(table.markdown() for table in self.tables), *grids, remarks])

    def _repr_html_(self) -> str:
        """Returns the tables as a notebook shows them."""
        captions = ("Differences, times 100", "Agreement of the vectors")
        grids = [
            html_table(caption, [[cell.strip() for cell in row] for row in grid])
            for caption, grid in zip(captions, self._grids(), strict=False)
        ]
        notes = html_list(self._remarks())
        return "\n".join([*(table._repr_html_() for table in self.tables), *grids, notes])

    def json(self) -> str:
        """Returns all figures in full precision; ``null`` where there is none."""
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
        for one in self.differences:
            interval = f"{one.low:+.2f} to {one.high:+.2f} {'*' if one.excludes_zero else ' '}"
            adjusted = "" if math.isnan(one.holm) else f"{one.holm:.4f}"
            cells = [f"{one.difference:+.2f}", interval, f"{one.p_value:.4f}", adjusted]
            differences.append([one.model, one.task, *cells])
        agreements = [["vectors against the first", f"{NEIGHBORS} neighbors in common", "linear CKA"]]
        for two in self.agreements:
            cka = "n/a" if math.isnan(two.cka) else f"{two.cka:.4f}"
            agreements.append([two.model, f"{two.neighbors:.1%}", cka])
        return [differences, *([agreements] if self.agreements else [])]

    def _remarks(self) -> list[str]:
        remarks = [
            "* the 95 % interval excludes 0; it is of other test rows, not of another training "
            f"({self.resamples:,} resamples, the same for all models)"
        ]
        questions = sum(not math.isnan(difference.holm) for difference in self.differences)
        if questions > 1:
            remarks.append(f"Holm p: adjusted for the {questions} comparisons made at once")
        if 2 * questions / (self.resamples + 1) > 0.05:
            remarks.append(
                f"no Holm p can be 0.05 or below with {self.resamples:,} resamples; {40 * questions:,} are needed"
            )
        if self.agreements:
            remarks.append(f"vectors of {self.texts:,} different texts; CKA is debiased")
        return [*remarks, *self.notes]


MOST_TEXTS = 5000
"""Texts that agreement is measured on at most: time grows with their square."""


class _Suite(NamedTuple):
    table: ScoreTable
    paired: Mapping[str, Mapping[str, PairedBootstrap]]
    """Model -> task -> the baseline's score and its own, bootstrapped together."""


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
    """Compares models with the first one, task by task and vector by vector.

    The difference of two scores has a percentile interval from the paired bootstrap over test rows (see
    ``metrics.bootstrap``): all models are scored on the same resamples, and pairs are drawn within their subsets
    where the setting takes a mean over these. The mean over tasks takes these for independent. How alike vectors
    are (see ``metrics.neighbors``) needs no gold scores.

    Args:
        models: Name -> encoder; the first is the baseline.
        sts: Task -> scored pairs, or what is missing of it: as ``sts_data.find_sts`` gives them.
        correct: Model -> task -> whether it answers each test row right, (n,), as ``transfer.transfer_correct``
            gives them; or what is missing of the task.
        retrieval: Task -> queries and corpus, or what is missing of it, as ``find_retrieval`` gives them;
            compared by nDCG@10, query by query.
        texts: What to compare vectors on; None for the texts of the scored pairs and the queries. Of many, 5,000
            are drawn.
        setting: How the subsets of an STS task are joined: ``all``, ``mean`` or ``wmean``.
        resamples: Resamples of the test rows.
        seed: Of the resamples, and of the draw of texts.
        title: Of the table of accuracies: which protocol, for example.
        averaged: Tasks that the mean of the accuracies is over; None for all.

    Raises:
        ValueError: Fewer than two models, no task that can be scored, another setting, no resamples, a single
            pair in a task, or vectors of NaN or infinity.

    Example:
        >>> models = {"old": CachedEncoder(old), "new": CachedEncoder(new)}  # doctest: +SKIP
        >>> found = compare(models, find_sts("data"))  # doctest: +SKIP
        >>> [(one.task, one.difference, one.excludes_zero) for one in found.differences]  # doctest: +SKIP
        [('STS12', 1.8, True), ...]
    """
    if len(models) < 2:
        raise InvalidValueError(
            f"compare.models: expected two or more, got {len(models)}; the first is the baseline"
        )
    baseline, *others = models
    check_resamples(resamples)
    given: dict[str, Mapping[str, object] | None] = {
        "sts": sts, "correct": correct and correct[baseline], "retrieval": retrieval
    }  # fmt: skip
    if not any(tasks is not None for tasks in given.values()):
        raise InvalidValueError(
            "compare: expected tasks in sts, correct or retrieval, got none; give scored pairs, for example"
        )
    for kind, tasks in given.items():
        if tasks is not None:
            check_some(f"compare.{kind}", tasks)
    suites = []
    pooled: list[str] = []
    if sts is not None:
        check_pairs(sts, setting)
        pooled = [text for pairs in _present(sts).values() for text in (*pairs.first, *pairs.second)]
        for name, embed in models.items():
            with _naming(name):
                embed(pooled)  # all at once, by length; each task then finds its own
        suites.append(_sts(models, sts, setting, resamples, seed))
    if correct is not None:
        answers = {name: correct[name] for name in models}
        suites.append(_row_means("accuracy", answers, title, averaged, resamples, seed))
    if retrieval is not None:
        sets = [data for data in retrieval.values() if isinstance(data, RetrievalSet)]
        found = {}
        for name, embed in models.items():
            with _naming(name):
                found[name] = query_scores(embed, retrieval)
        suites.append(_row_means(FIGURES[0], found, f"{FIGURES[0]} x 100", None, resamples, seed))
        pooled += [text for data in sets for text in data.queries]
    distinct = dict.fromkeys(pooled if texts is None else texts)
    chosen, available = drawn_texts(distinct, MOST_TEXTS, seed), len(distinct)
    notes = [f"{len(chosen):,} of {available:,} different texts drawn"] if len(chosen) < available else []
    if len(chosen) > NEIGHBORS:
        agreements = _agreements(models, chosen)
    else:
        agreements = ()
        notes.append(f"vectors not compared: expected {NEIGHBORS + 1} different texts or more, got {len(chosen)}")
    return ModelComparison(
        baseline=baseline,
        tables=tuple(suite.table for suite in suites),
        differences=_differences(suites, others),
        agreements=agreements,
        texts=len(chosen),
        resamples=resamples,
        notes=tuple(notes),
    )


def check_pairs(sts: Mapping[str, STSPairs | str], setting: str) -> None:
    """Checks that the pairs of each task have a correlation in a setting (ValueError)."""
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


def check_some(where: str, tasks: Mapping[str, object]) -> None:
    """Checks that not every task is missing: a text that says so stands in its place (ValueError)."""
    missing = [f"{task}: {said}" for task, said in tasks.items() if isinstance(said, str)]
    if len(missing) == len(tasks):
        said = missing[0] if missing else "no task is named"
        raise InvalidValueError(f"{where}: expected the data of one task or more, got none; {said}")


def _sts(
    models: Mapping[str, CachedEncoder],
    sts: Mapping[str, STSPairs | str],
    setting: str,
    resamples: int,
    seed: int,
) -> _Suite:
    rows = {name: score_tasks(embed, sts, setting) for name, embed in models.items()}
    baseline, *others = models
    paired: dict[str, dict[str, PairedBootstrap]] = {name: {} for name in others}
    for task, pairs in _present(sts).items():
        cosines = {name: pair_cosines(embed, pairs) for name, embed in models.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of collapsed vectors, which score_tasks has said with the task
            for name in others:
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
            for task, rows in of_task.items()
        ]
        for name, of_task in values.items()
    }
    baseline, *others = values
    paired = {
        name: {
            task: paired_bootstrap_mean(first, second, resamples, _generator(seed, task))
            for task, second in values[name].items()
            if isinstance(first := values[baseline][task], Tensor) and isinstance(second, Tensor)
        }
        for name in others
    }
    return _Suite(ScoreTable(title, scores, averaged), paired)


def _differences(suites: Sequence[_Suite], others: Sequence[str]) -> tuple[ScoreDifference, ...]:
    p_values = [found.p_value for suite in suites for name in others for found in suite.paired[name].values()]
    adjusted = iter(holm(p_values))
    differences = []
    for suite in suites:
        averaged = suite.table.averaged or suite.table.tasks
        for name in others:
            paired = suite.paired[name]
            differences += [_difference(name, task, found, next(adjusted)) for task, found in paired.items()]
            if len(averaged) > 1 and paired.keys() >= set(averaged):  # as in the table: all of them, or no mean
                mean = PairedBootstrap.mean([paired[task] for task in averaged])
                differences.append(_difference(name, AVERAGE, mean, math.nan))
    return tuple(differences)


def _difference(name: str, task: str, found: PairedBootstrap, adjusted: float) -> ScoreDifference:
    low, high = found.interval()
    return ScoreDifference(name, task, 100 * found.difference, 100 * low, 100 * high, found.p_value, adjusted)


def _agreements(models: Mapping[str, CachedEncoder], texts: Sequence[str]) -> tuple[Agreement, ...]:
    vectors = {}
    for name, embed in models.items():
        with _naming(name):
            vectors[name] = embed(texts)
    own, *others = vectors
    return tuple(
        Agreement(
            model=name,
            neighbors=float(neighbor_overlap(vectors[own], vectors[name], NEIGHBORS)),
            cka=float(linear_cka(vectors[own], vectors[name], debiased=True)),
        )
        for name in others
    )


@contextmanager
def _naming(model: str) -> Iterator[None]:
    """Adds the name of the model to the front of an error, such as one about NaN."""
    try:
        yield
    except ValueError as error:
        raise InvalidValueError(f"{model}: {error}") from error


def _generator(seed: int, task: str) -> torch.Generator:
    return torch.Generator().manual_seed(fold(seed, text_id(task)))
