"""Suites of tasks: the data that they read, what is checked before a text is encoded, and what a model scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.compare import check_some
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.evaluation.retrieval import find_retrieval, score_retrieval
from contrastive_text.evaluation.senteval import (
    DOWNSTREAM_TASKS,
    NO_IMAGES,
    SIMCSE_TASKS,
    SuiteData,
    aggregate,
    check_declutr,
    check_folds,
    find_tasks,
    outcomes,
    score_declutr,
    scores,
)
from contrastive_text.evaluation.senteval_data import PROBING_TASKS, TRANSFER_TASKS, LabelledTexts
from contrastive_text.evaluation.sts import check_setting, find_trained, score_tasks, score_trained
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.metrics import FIGURES, pearson


@dataclass(frozen=True, slots=True)
class SuiteProtocol:
    """How the suites measure.

    Args:
        setting: How the sub-sets of a year of STS are joined: see ``sts.aggregate``.
        protocol: Name of the classifiers' protocol, in ``PROTOCOLS``.
        classifier: Name of what trains them, in ``CLASSIFIERS``.
        corpus: A file of further texts that retrieval ranks beside the positives of a file of pairs.
        tasks: Which tasks of retrieval; all where empty.
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
        title: Of its table, with the fields of ``SuiteProtocol`` in braces.
        missing: Returns each task, and what is missing of its data; empty where nothing is.
        score: Returns what a model scores on each of them.
        averaged: Tasks that the papers average; None for all.
    """

    title: str
    missing: Callable[[SuiteData], dict[str, str]]
    score: Callable[[CachedEncoder, SuiteData, SuiteProtocol], list[TaskScore]]
    averaged: Sequence[str] | None = None

    def table(self, embeds: Mapping[str, CachedEncoder], data: SuiteData, protocol: SuiteProtocol) -> ScoreTable:
        """Returns the scores as a table, with a row for each model.

        Args:
            embeds: Name of a model -> what gives its vectors.
            data: What ``read_suites`` has read.
            protocol: How to measure.
        """
        scored = {name: self.score(embed, data, protocol) for name, embed in embeds.items()}
        return ScoreTable(self.title.format(**asdict(protocol)), scored, averaged=self.averaged)


def read_suites(
    folder: str | Path,
    suites: Sequence[str],
    protocol: SuiteProtocol = SuiteProtocol(),
    where: str = "--data",
) -> SuiteData:
    """Reads and checks what suites need, before minutes of encoding.

    Args:
        folder: Where the data sets are; ``hub`` for STS and retrieval from the hub, for retrieval also a file.
        suites: Names, of ``SUITES``.
        protocol: How they will measure.
        where: The option that named the folder, for errors.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: No data of any task, a file that is not what it should be, too few rows for the folds, or a
            setting that the pairs don't allow.
    """
    asked = set(suites)
    data = SuiteData(
        sts=find_sts(folder) if asked & {"sts", "sts-pearson", "declutr"} else {},
        trained=find_trained(folder) if asked & {"trained-sts", "declutr"} else {},
        transfer=find_tasks(folder, TRANSFER_TASKS) if asked & {"transfer", "declutr"} else {},
        probing=find_tasks(folder, PROBING_TASKS) if asked & {"probing", "declutr"} else {},
        retrieval=find_retrieval(folder, protocol.corpus, protocol.tasks, protocol.columns)
        if "retrieval" in asked
        else {},
    )
    check_some(where, {**data.sts, **trained_splits(data), **data.transfer, **data.probing, **data.retrieval})
    if asked & {"sts", "sts-pearson"}:
        check_setting(protocol.setting, [pairs for pairs in data.sts.values() if isinstance(pairs, STSPairs)])
    if "declutr" in asked:
        check_declutr(data, PROTOCOLS[protocol.protocol])
    check_folds(data.transfer, PROTOCOLS[protocol.protocol])
    return data


def task_scores(
    suite: str, embed: CachedEncoder, data: SuiteData, protocol: SuiteProtocol, tasks: Sequence[str]
) -> list[TaskScore]:
    """Returns what a model scores on some tasks of a suite, without scoring others where that can be done.

    Args:
        suite: Its name, of ``SUITES``.
        embed: Gives the model's vectors.
        data: What ``read_suites`` has read.
        protocol: How to measure.
        tasks: Names, of those that ``Suite.missing`` gives.
    """
    only = SuiteData(
        sts={task: pairs for task, pairs in data.sts.items() if task in tasks},
        trained={task: splits for task, splits in data.trained.items() if task in tasks},
        transfer={task: rows for task, rows in data.transfer.items() if task in tasks},
        probing={task: rows for task, rows in data.probing.items() if task in tasks},
        retrieval={task: rows for task, rows in data.retrieval.items() if task in tasks},
    )
    alone = sum(map(len, only)) == len(tasks)  # a mean of the suite, such as DeCLUTR's, needs all of it
    scored = SUITES[suite].score(embed, only if alone else data, protocol)
    return [score for score in scored if score.task in tasks]


def trained_splits(data: SuiteData) -> dict[str, STSPairs | str]:
    """Returns the pairs of each split of the trained tasks, or what is missing, under one name."""
    return {f"{task}, {split}": pairs for task, splits in data.trained.items() for split, pairs in splits.items()}


def _missing(found: Mapping[str, object]) -> dict[str, str]:
    return {task: rows if isinstance(rows, str) else "" for task, rows in found.items()}


def _missing_trained(data: SuiteData) -> dict[str, str]:
    return {
        task: next((pairs for pairs in splits.values() if isinstance(pairs, str)), "")
        for task, splits in data.trained.items()
    }


def _missing_declutr(data: SuiteData) -> dict[str, str]:
    known = {
        **_missing(data.transfer), **_missing_trained(data), **_missing(data.sts), **_missing(data.probing)
    }  # fmt: skip
    tasks = [
        TaskScore(task, "", math.nan, parts={"dev": math.nan}, missing=known.get(task, NO_IMAGES))
        for task in (*DOWNSTREAM_TASKS, *PROBING_TASKS)
    ]
    return {score.task: score.missing for score in (*tasks, *aggregate(tasks))}


def _score_declutr(embed: CachedEncoder, data: SuiteData, protocol: SuiteProtocol) -> list[TaskScore]:
    return score_declutr(embed, data, PROTOCOLS[protocol.protocol], CLASSIFIERS[protocol.classifier])


def _classified(
    found: Mapping[str, LabelledTexts | str], embed: CachedEncoder, protocol: SuiteProtocol
) -> list[TaskScore]:
    classifier = CLASSIFIERS[protocol.classifier]
    return scores(found, outcomes(embed, found, PROTOCOLS[protocol.protocol], classifier))


SUITES: Mapping[str, Suite] = {
    "sts": Suite(
        title="Spearman x 100, {setting}",
        missing=lambda data: _missing(data.sts),
        score=lambda embed, data, protocol: score_tasks(embed, data.sts, protocol.setting),
    ),
    "sts-pearson": Suite(
        title="Pearson x 100, {setting}",
        missing=lambda data: _missing(data.sts),
        score=lambda embed, data, protocol: score_tasks(embed, data.sts, protocol.setting, pearson),
    ),
    "trained-sts": Suite(
        title="Spearman x 100, trained",
        missing=_missing_trained,
        score=lambda embed, data, _: score_trained(embed, data.trained),
    ),
    "transfer": Suite(
        title="transfer x 100, {protocol}, {classifier}",
        missing=lambda data: _missing(data.transfer),
        score=lambda embed, data, protocol: _classified(data.transfer, embed, protocol),
        averaged=SIMCSE_TASKS,
    ),
    "probing": Suite(
        title="probing x 100, {protocol}, {classifier}",
        missing=lambda data: _missing(data.probing),
        score=lambda embed, data, protocol: _classified(data.probing, embed, protocol),
    ),
    "declutr": Suite(
        title="declutr x 100, {protocol}, {classifier}",
        missing=_missing_declutr,
        score=_score_declutr,
        averaged=("Downstream (-SNLI)",),
    ),
    "retrieval": Suite(
        title=f"{FIGURES[0]} x 100",
        missing=lambda data: _missing(data.retrieval),
        score=lambda embed, data, _: score_retrieval(embed, data.retrieval),
    ),
}
"""Name in the shell -> suite."""
