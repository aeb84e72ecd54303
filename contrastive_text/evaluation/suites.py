"""Suites of tasks: reads their data, names missing data before a text is encoded, and scores models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.compare import check_some
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
from contrastive_text.metrics import FIGURES, pearson, spearman

Tasks = Mapping[str, Any]
"""Task -> its data, as the suite's ``find`` returns them, or text that says what is missing."""


@dataclass(frozen=True, slots=True)
class SuiteProtocol:
    """Options of the suites.

    Args:
        setting: How to combine the subsets of an STS year; see ``sts.aggregate``.
        protocol: Name of the classifiers' protocol, in ``PROTOCOLS``.
        classifier: Name of the classifier, in ``CLASSIFIERS``.
        corpus: File of further texts that retrieval ranks in addition to the positives of a file of pairs.
        tasks: Tasks of retrieval; all if empty.
        columns: Library column -> column of retrieval's file of pairs.
    """

    setting: str = "all"
    protocol: str = "standard"
    classifier: str = "torch"
    corpus: str | None = None
    tasks: Sequence[str] = ()
    columns: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks that are scored together.

    Args:
        title: Title of the table, with the fields of ``SuiteProtocol`` in braces.
        find: Reads and checks the data of each task in a folder.
        score: Scores a model on each task.
        averaged: Tasks that the papers average; None for all.
    """

    title: str
    find: Callable[[str | Path, SuiteProtocol], Tasks]
    score: Callable[[CachedEncoder, Tasks, SuiteProtocol], list[TaskScore]]
    averaged: Sequence[str] | None = None

    def table(self, embeds: Mapping[str, CachedEncoder], tasks: Tasks, protocol: SuiteProtocol) -> ScoreTable:
        """Returns the scores as a table, with a row for each model.

        Args:
            embeds: Name of a model -> its encoder.
            tasks: Data that ``find`` has read.
            protocol: Options of the suites.
        """
        scored = {name: self.score(embed, tasks, protocol) for name, embed in embeds.items()}
        return ScoreTable(self.title.format(**asdict(protocol)), scored, averaged=self.averaged)


def read_suites(
    folder: str | Path,
    suites: Sequence[str],
    protocol: SuiteProtocol = SuiteProtocol(),
    where: str = "--data",
) -> dict[str, Tasks]:
    """Reads and checks the data of suites, before minutes of encoding.

    Args:
        folder: Folder of the data sets. ``hub`` for STS and retrieval from the hub; for retrieval also a file.
        suites: Names of ``SUITES``.
        protocol: Options of the suites.
        where: The option that names the folder, for errors.

    Returns:
        Suite -> the data of its tasks.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: No task has data, a file is damaged, a class has fewer rows than folds, or the pairs lack the
            subsets that the setting reads.
    """
    data = {suite: SUITES[suite].find(folder, protocol) for suite in suites}
    check_some(where, {task: rows for tasks in data.values() for task, rows in tasks.items()})
    return data


def missing_data(tasks: Tasks) -> dict[str, str]:
    """Returns for each task what is missing of its data; empty if nothing is."""
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
    found = find_tasks(folder, tasks)
    check_folds(found, PROTOCOLS[protocol.protocol])
    return found


def _classified(name: str, tasks: Sequence[str], averaged: Sequence[str] | None) -> Suite:
    return Suite(
        title=f"{name} x 100, {{protocol}}, {{classifier}}",
        find=partial(_find_classified, tasks=tasks),
        score=lambda embed, found, protocol: scores(
            found, outcomes(embed, found, PROTOCOLS[protocol.protocol], CLASSIFIERS[protocol.classifier])
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
        title=f"{FIGURES[0]} x 100",
        find=lambda folder, protocol: find_retrieval(folder, protocol.corpus, protocol.tasks, protocol.columns),
        score=lambda embed, tasks, _: score_retrieval(embed, tasks),
    ),
}
"""Name in the shell -> suite."""
