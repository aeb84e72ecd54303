"""Suites of tasks: reads and checks their data before texts are encoded, and scores models on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.compare import check_any_data
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.evaluation.retrieval import find_retrieval, score_retrieval
from contrastive_text.evaluation.senteval import (
    SIMCSE_TASKS,
    check_folds,
    find_declutr,
    find_tasks,
    outcomes,
    score_declutr,
    scores,
)
from contrastive_text.evaluation.senteval_data import PROBING_TASKS, TRANSFER_TASKS
from contrastive_text.evaluation.sts import Correlation, check_setting, find_trained, score_tasks, score_trained
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.metrics import RETRIEVAL_METRICS, pearson, spearman

Tasks = Mapping[str, Any]
"""Data of each task, as ``find`` of a suite returns them, or a text that names the missing files."""


@dataclass(frozen=True, slots=True)
class SuiteProtocol:
    """Options of the evaluation suites.

    Args:
        setting: Way to combine the subsets of an STS year; see ``sts.aggregate``.
        protocol: Name of the classifiers' protocol, in ``PROTOCOLS``.
        classifier: Name of the classifier, in ``CLASSIFIERS``.
        corpus: File of further texts that retrieval ranks in addition to the positives of a file of pairs.
        tasks: Tasks of retrieval; all if empty.
        columns: Column of retrieval's file of pairs, by its name in the library.
    """

    setting: str = "all"
    protocol: str = "standard"
    classifier: str = "torch"
    corpus: str | None = None
    tasks: Sequence[str] = ()
    columns: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """Suite of tasks that are scored together.

    Args:
        title: Title of the table. Fields of ``SuiteProtocol`` in braces are replaced by their values.
        find: Function that reads and checks the data of each task in a folder.
        score: Function that scores a model on each task.
        averaged: Tasks that the papers average; None for all.
    """

    title: str
    find: Callable[[str | Path, SuiteProtocol], Tasks]
    score: Callable[[CachedEncoder, Tasks, SuiteProtocol], list[TaskScore]]
    averaged: Sequence[str] | None = None

    def table(self, embeds: Mapping[str, CachedEncoder], tasks: Tasks, protocol: SuiteProtocol) -> ScoreTable:
        """Scores models on the suite's tasks and returns a table with a row for each model.

        Args:
            embeds: Encoder of each model, by the model's name.
            tasks: Data that ``find`` returned.
            protocol: Options of the suites.
        """
        rows = {name: self.score(embed, tasks, protocol) for name, embed in embeds.items()}
        return ScoreTable(self.title.format(**asdict(protocol)), rows, averaged=self.averaged)


def read_suites(
    folder: str | Path,
    suites: Sequence[str],
    protocol: SuiteProtocol = SuiteProtocol(),
    where: str = "--data",
) -> dict[str, Tasks]:
    """Reads and checks the data of all tasks of suites.

    Args:
        folder: Folder that holds the data sets. ``hub`` loads STS and retrieval from the hub. Retrieval also
            accepts a file of pairs.
        suites: Names of suites in ``SUITES``.
        protocol: Options of the suites.
        where: Option of the folder, for error messages.

    Returns:
        Data of the tasks of each suite.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: No task has data, a file is damaged, a class has fewer rows than folds, or the pairs lack the
            subsets that the setting reads.
    """
    data = {suite: SUITES[suite].find(folder, protocol) for suite in suites}
    check_any_data(where, {task: rows for tasks in data.values() for task, rows in tasks.items()})
    return data


def missing_data(tasks: Tasks) -> dict[str, str]:
    """Returns the text that names the missing files of each task, empty for a task with data."""
    return {task: rows if isinstance(rows, str) else "" for task, rows in tasks.items()}


def _find_sts(folder: str | Path, protocol: SuiteProtocol) -> Tasks:
    tasks = find_sts(folder)
    check_setting(protocol.setting, [pairs for pairs in tasks.values() if isinstance(pairs, STSPairs)])
    return tasks


def _sts(title: str, correlation: Correlation) -> Suite:
    return Suite(
        title=title,
        find=_find_sts,
        score=lambda embed, tasks, protocol: score_tasks(embed, tasks, protocol.setting, correlation),
    )


def _find_classified(folder: str | Path, protocol: SuiteProtocol, tasks: Sequence[str]) -> Tasks:
    data = find_tasks(folder, tasks)
    check_folds(data, PROTOCOLS[protocol.protocol])
    return data


def _classified(name: str, tasks: Sequence[str], averaged: Sequence[str] | None) -> Suite:
    return Suite(
        title=f"{name} x 100, {{protocol}}, {{classifier}}",
        find=partial(_find_classified, tasks=tasks),
        score=lambda embed, data, protocol: scores(
            data, outcomes(embed, data, PROTOCOLS[protocol.protocol], CLASSIFIERS[protocol.classifier])
        ),
        averaged=averaged,
    )


def _find_declutr(folder: str | Path, protocol: SuiteProtocol) -> Tasks:
    tasks = find_declutr(folder)
    check_folds({task: tasks[task] for task in TRANSFER_TASKS}, PROTOCOLS[protocol.protocol])
    return tasks


SUITES: Mapping[str, Suite] = {
    "sts": _sts("Spearman x 100, {setting}", spearman),
    "sts-pearson": _sts("Pearson x 100, {setting}", pearson),
    "trained-sts": Suite(
        title="Spearman x 100, trained",
        find=lambda folder, _: find_trained(folder),
        score=lambda embed, tasks, _: score_trained(embed, tasks),
    ),
    "transfer": _classified("transfer", TRANSFER_TASKS, averaged=SIMCSE_TASKS),
    "probing": _classified("probing", PROBING_TASKS, averaged=None),
    "declutr": Suite(
        title="declutr x 100, {protocol}, {classifier}",
        find=_find_declutr,
        score=lambda embed, tasks, protocol: score_declutr(
            embed, tasks, PROTOCOLS[protocol.protocol], CLASSIFIERS[protocol.classifier]
        ),
        averaged=("Downstream (-SNLI)",),
    ),
    "retrieval": Suite(
        title=f"{RETRIEVAL_METRICS[0]} x 100",
        find=lambda folder, protocol: find_retrieval(folder, protocol.corpus, protocol.tasks, protocol.columns),
        score=lambda embed, tasks, _: score_retrieval(embed, tasks),
    ),
}
"""Name of a suite in ``--suite`` -> the suite."""
