"""Transfer and probing tasks of SentEval, and the means of DeCLUTR over 28 tasks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.files.formats import join_names, reading_error, short
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import (
    STANDARD,
    Classifier,
    Outcome,
    Protocol,
    Rows,
    TorchClassifier,
    choose_by_dev,
    choose_by_folds,
    cross_validate,
)
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.senteval_data import (
    DEV,
    PROBING_TASKS,
    TEST,
    TRAIN,
    TRANSFER_TASKS,
    LabeledTexts,
    naming,
    probing_data,
    transfer_data,
)
from contrastive_text.evaluation.sts import TRAINED_TASKS, check_setting, find_trained, score_tasks, score_trained
from contrastive_text.evaluation.sts_data import STSPairs, find_sts

SIMCSE_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
"""Tasks whose accuracies SimCSE averages (Gao, Yao and Chen, 2021, table 8)."""


def transfer_scores(
    embed: CachedEncoder,
    folder: str | Path,
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    tasks: Sequence[str] = TRANSFER_TASKS,
) -> list[TaskScore]:
    """Returns the accuracy of SentEval's tasks (Conneau and Kiela, 2018, https://arxiv.org/abs/1803.05449).

    MR, CR, SUBJ and MPQA are cross-validated. TREC and MRPC have a test part, and folds of the training part
    select the penalty. SST2, SST5, SICK-E, SNLI and the probing tasks select the penalty by their dev part. The
    features of a pair of vectors u, v are [\\|u - v\\|, u * v], for SNLI [u, v, \\|u - v\\|, u * v].

    Differs: SentEval fits SNLI without a penalty; here its penalty is selected as for other tasks, at least 1e-5.
    SentEval splits rows sorted by length into folds; here rows keep the order of the files.

    Args:
        embed: The encoder.
        folder: Folder that holds the data sets; see ``transfer_data`` and ``probing_data``.
        protocol: ``STANDARD`` for papers, ``FAST`` for prototypes.
        classifier: Classifier; None for ``TorchClassifier()``, as in SentEval.
        tasks: Names in ``TRANSFER_TASKS`` and ``PROBING_TASKS``.

    Returns:
        Score of each task, in the order of ``tasks``. The part ``dev`` is the accuracy that selected the penalty,
        and the part ``F1`` of MRPC is the F1 of the paraphrases. The score of a task without files names the
        missing files.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged, a class has fewer rows than folds, or a vector has NaN.
        ImportError: ``SklearnClassifier`` without scikit-learn.

    Example:
        >>> for score in transfer_scores(embed, "SentEval/data", protocol=FAST):  # doctest: +SKIP
        ...     print(score.task, score.score)
        MR 75.9
    """
    data = find_tasks(folder, tasks)
    return scores(data, outcomes(embed, data, protocol, classifier))


def transfer_correct(
    embed: CachedEncoder,
    folder: str | Path,
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    tasks: Sequence[str] = TRANSFER_TASKS,
) -> dict[str, Tensor]:
    """Returns a mask of the correctly classified test rows of each task, (n,), bool. Its mean is the accuracy.

    The rows have the order of the files, so the masks of two models can be compared row by row. Cross-validated
    tasks have a mask of all rows. Tasks without files are omitted. See ``transfer_scores``.
    """
    by_task = outcomes(embed, find_tasks(folder, tasks), protocol, classifier)
    return {task: outcome.correct for task, outcome in by_task.items()}


def find_tasks(folder: str | Path, tasks: Sequence[str]) -> dict[str, LabeledTexts | str]:
    """Returns the rows of each transfer or probing task, or a text that names the missing files.

    See ``transfer_data`` and ``probing_data``.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A task is unknown, or a file is damaged.
    """
    all_tasks = (*TRANSFER_TASKS, *PROBING_TASKS)
    for task in tasks:
        if task not in all_tasks:
            raise reading_error("tasks", join_names(all_tasks), short(task), "name one of these")
    return {
        task: transfer_data(task, folder) if task in TRANSFER_TASKS else probing_data(task, folder)
        for task in tasks
    }


def check_folds(data: Mapping[str, LabeledTexts | str], protocol: Protocol) -> None:
    """Checks that each class of a task with folds has at least one training row per fold.

    Raises:
        ValueError: A class has fewer rows than the protocol has folds.
    """
    for task, rows in data.items():
        if isinstance(rows, str) or DEV in rows.sizes:
            continue
        labels = rows.labels[: next(iter(rows.sizes.values()))]
        rarest, count = Counter(labels).most_common()[-1]
        if count < protocol.folds:
            expected = f"{protocol.folds} rows or more of each class for {protocol.folds} folds"
            todo = "add rows, or take a protocol with fewer folds"
            with naming(task):
                raise reading_error(rows.source, expected, f"{count} of {short(rarest)}", todo)


def outcomes(
    embed: CachedEncoder,
    data: Mapping[str, LabeledTexts | str],
    protocol: Protocol,
    classifier: Classifier | None,
) -> dict[str, Outcome]:
    """Trains a classifier for each task with rows and returns its predictions. Checks all tasks first.

    Args:
        embed: The encoder.
        data: Rows of each task, or a text that names the missing files.
        protocol: Settings of the training.
        classifier: Classifier; None for ``TorchClassifier()``.

    Raises:
        ValueError: A class has fewer rows than folds, or a vector has NaN.
    """
    check_folds(data, protocol)
    present = {task: rows for task, rows in data.items() if isinstance(rows, LabeledTexts)}
    if empty := [f"{rows.empty:,} in {task}" for task, rows in present.items() if rows.empty]:
        warnings.warn(
            f"a full stop stands for each empty text, as in SentEval: {join_names(empty)}",
            UserWarning,
            stacklevel=3,
        )
    return {
        task: _outcome(embed, rows, protocol, classifier or TorchClassifier()) for task, rows in present.items()
    }


def scores(data: Mapping[str, LabeledTexts | str], by_task: Mapping[str, Outcome]) -> list[TaskScore]:
    """Returns the score of each task from its predictions. The score of a task without rows names missing files.

    Args:
        data: Rows of each task, or a text that names the missing files.
        by_task: Predictions for each task with rows, as ``outcomes`` returns them.
    """
    return [
        _score(rows, by_task[task])
        if isinstance(rows, LabeledTexts)
        else TaskScore.absent(task, "accuracy", rows)
        for task, rows in data.items()
    ]


def f1(predicted: Tensor, gold: Tensor) -> float:
    """Returns the F1 of binary predictions and gold labels, both (n,) bool, times 100; 0 if all are false.

    Example:
        >>> f1(torch.tensor([True, True, False]), torch.tensor([True, False, False]))  # precision 1/2, recall 1
        66.66...
    """
    total = int(predicted.sum()) + int(gold.sum())
    return 200 * int((predicted & gold).sum()) / total if total else 0.0


def _outcome(embed: CachedEncoder, texts: LabeledTexts, protocol: Protocol, classifier: Classifier) -> Outcome:
    classes = {label: number for number, label in enumerate(sorted(set(texts.labels)))}
    labels = torch.tensor([classes[label] for label in texts.labels])
    rows = Rows(_features(embed, texts), labels)
    parts = dict(
        zip(texts.sizes, torch.split(torch.arange(len(labels)), list(texts.sizes.values())), strict=True)
    )
    if DEV in parts:
        return choose_by_dev(rows, parts[TRAIN], parts[DEV], parts[TEST], classifier, protocol)
    if TEST in parts:
        return choose_by_folds(rows, parts[TRAIN], parts[TEST], classifier, protocol)
    return cross_validate(rows, classifier, protocol)


def _features(embed: CachedEncoder, texts: LabeledTexts) -> Tensor:
    sides = [embed(side) for side in texts.sides]
    if len(sides) == 1:
        return sides[0]
    u, v = sides
    blocks = 4 if texts.task == "SNLI" else 2
    features = u.new_empty(len(u), blocks * u.shape[1])  # filled in place: SNLI has 7 GB of features
    *copies, distance, product = features.chunk(blocks, dim=1)
    for block, vectors in zip(copies, sides, strict=False):
        block.copy_(vectors)
    torch.sub(u, v, out=distance).abs_()
    torch.mul(u, v, out=product)
    return features


def _score(rows: LabeledTexts, outcome: Outcome) -> TaskScore:
    parts = {"dev": outcome.dev}
    if rows.task == "MRPC":
        paraphrase = sorted(set(rows.labels)).index("1")
        parts["F1"] = f1(outcome.predicted == paraphrase, outcome.gold == paraphrase)
    accuracy = 100 * float(outcome.correct.double().mean())
    return TaskScore(rows.task, "accuracy", accuracy, size=len(outcome.gold), parts=parts)


COCO = "COCO"
_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
DOWNSTREAM_TASKS = (*TRANSFER_TASKS, *TRAINED_TASKS, COCO, *_YEARS)
"""The 18 transfer tasks in the downstream mean of DeCLUTR."""
NO_IMAGES = (
    "its files of image features, which are pickles and could run code, are not read; measure it by SentEval and "
    "give Python declutr_scores(given=[image_retrieval(...)]), or take the means without COCO"
)
"""Reason why the score of COCO is missing, and the remedy."""
WITHOUT_SNLI = tuple(task for task in DOWNSTREAM_TASKS if task != "SNLI")
"""The 17 tasks of DeCLUTR's final tables, which omit SNLI because its baselines were trained on SNLI."""
_ALL = (*DOWNSTREAM_TASKS, *PROBING_TASKS)


def _without_coco(tasks: Sequence[str]) -> tuple[str, ...]:
    return tuple(task for task in tasks if task != COCO)


MEANS: Mapping[str, Sequence[str]] = {
    "Downstream": DOWNSTREAM_TASKS,
    "Downstream (-SNLI)": WITHOUT_SNLI,
    "Downstream without COCO": _without_coco(DOWNSTREAM_TASKS),
    "Downstream (-SNLI) without COCO": _without_coco(WITHOUT_SNLI),
    "Probing": PROBING_TASKS,
    "All 28": _ALL,
    "All 27 without COCO": _without_coco(_ALL),
}
"""Name of a mean of DeCLUTR -> its tasks. The means without COCO need no images."""


def declutr_scores(
    embed: CachedEncoder,
    folder: str | Path,
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    extra_scores: Sequence[TaskScore] = (),
) -> list[TaskScore]:
    """Returns the scores of the 28 tasks of DeCLUTR that its means average, followed by the means.

    Source: Giorgi et al., 2021, https://aclanthology.org/2021.acl-long.72, table 2, and the authors'
    ``scripts/run_senteval.py``.

    Args:
        embed: The encoder.
        folder: Folder that holds the data sets; see ``transfer_data``, ``probing_data`` and ``find_pairs``.
        protocol: Settings to train the classifiers.
        classifier: Classifier; None for ``TorchClassifier()``, as in SentEval.
        extra_scores: Scores of tasks that were measured elsewhere, such as ``image_retrieval``. They replace
            scores measured here.

    Returns:
        28 tasks and seven means, as ``contributions`` and ``aggregate`` return them.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged, a class has fewer rows than folds, or a vector has NaN.
        ImportError: ``SklearnClassifier`` without scikit-learn.
    """
    return score_declutr(embed, find_declutr(folder), protocol, classifier, extra_scores)


def find_declutr(folder: str | Path) -> dict[str, Any]:  # Any: data of several kinds
    """Returns the data of the 28 tasks and the tasks of each mean, or a text that names missing files or tasks.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged, or STS pairs have no subsets.
    """
    sts = find_sts(folder)
    check_setting("mean", [pairs for pairs in sts.values() if isinstance(pairs, STSPairs)])
    data = {
        **find_tasks(folder, (*TRANSFER_TASKS, *PROBING_TASKS)),
        **find_trained(folder),
        **sts,
        COCO: NO_IMAGES,
    }
    missing = {task for task in _ALL if isinstance(data[task], str)}
    means = {name: _lacks(tasks, missing) or tasks for name, tasks in MEANS.items()}
    return {**{task: data[task] for task in _ALL}, **means}


def score_declutr(
    embed: CachedEncoder,
    data: Mapping[str, Any],  # Any: data of several kinds
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    extra_scores: Sequence[TaskScore] = (),
) -> list[TaskScore]:
    """Scores the data that ``find_declutr`` returns; see ``declutr_scores``."""
    classified = {task: data[task] for task in (*TRANSFER_TASKS, *PROBING_TASKS)}
    measured = [
        *scores(classified, outcomes(embed, classified, protocol, classifier)),
        *score_trained(embed, {task: data[task] for task in TRAINED_TASKS}),
        *score_tasks(embed, {year: data[year] for year in _YEARS}, "mean"),
    ]
    by_task = {score.task: score for score in (*contributions(measured), *extra_scores)}
    tasks = [by_task.get(task) or TaskScore.absent(task, "mean recall", NO_IMAGES) for task in _ALL]
    return [*tasks, *aggregate(tasks)]


def contributions(scores: Sequence[TaskScore]) -> list[TaskScore]:
    """Converts the scores of tasks to the values that DeCLUTR's means average.

    ``score`` is the figure on test data, and the part ``dev`` the figure on dev data:

    - MRPC: mean of accuracy and F1 on test, accuracy on dev.
    - STS-B and SICK-R with a trained regressor: Spearman on test, Pearson on dev.
    - STS12 to STS16, which have no dev part: mean over subsets, for both.
    - All other tasks: accuracy.

    Args:
        scores: Scores of ``transfer_scores``, ``trained_sts_scores`` and ``sts_scores``. Tasks that DeCLUTR
            doesn't average, such as STS-B without training, are omitted.

    Example:
        >>> mrpc = TaskScore("MRPC", "accuracy", 75.0, parts={"dev": 74.0, "F1": 83.0})
        >>> [(score.score, score.parts["dev"]) for score in contributions([mrpc])]
        [(79.0, 74.0)]
    """
    names = set(_ALL)
    return [score if score.missing else _contribution(score) for score in scores if score.task in names]


def image_retrieval(image_to_text: Sequence[float], text_to_image: Sequence[float], dev_sum: float) -> TaskScore:
    """Returns the score of COCO for DeCLUTR's means: the mean of R@1, R@5 and R@10 in both directions.

    Args:
        image_to_text: R@1, R@5 and R@10 on test data, times 100.
        text_to_image: R@1, R@5 and R@10 on test data, times 100.
        dev_sum: SentEval's figure on dev data, which is the sum of six recalls. The part ``dev`` is a sixth of
            it.

    Raises:
        ValueError: A direction has other than three figures.

    Example:
        >>> coco = image_retrieval((30.0, 60.0, 75.0), (25.0, 55.0, 70.0), dev_sum=318.0)
        >>> coco.score, coco.parts["dev"]
        (52.5, 53.0)
    """
    for name, recalls in (("image_to_text", image_to_text), ("text_to_image", text_to_image)):
        if len(recalls) != 3:
            got = f"{len(recalls)}; leave the median rank out"
            raise InvalidValueError(f"image_retrieval.{name}: expected R@1, R@5 and R@10, got {got}")
    return TaskScore(COCO, "mean recall", fmean([*image_to_text, *text_to_image]), parts={"dev": dev_sum / 6})


def aggregate(scores: Sequence[TaskScore]) -> list[TaskScore]:
    """Returns the means of ``MEANS`` (DeCLUTR's) over the scores of tasks.

    A mean is over all its tasks. If a task has no score, the mean has none either and names the missing tasks.

    Args:
        scores: Scores of tasks, as ``contributions`` returns them.

    Returns:
        Means with ``score`` on test data and the part ``dev`` on dev data.

    Example:
        >>> scores = [TaskScore(task, "accuracy", 70.0, parts={"dev": 80.0}) for task in PROBING_TASKS]
        >>> [(mean.task, mean.score) for mean in aggregate(scores) if not mean.missing]
        [('Probing', 70.0)]
    """
    present = {score.task: score for score in scores if not score.missing}
    means = []
    for name, tasks in MEANS.items():
        if problem := _lacks(tasks, set(tasks) - present.keys()):
            means.append(TaskScore.absent(name, "mean", problem))
            continue
        dev = fmean(present[task].parts["dev"] for task in tasks)
        means.append(TaskScore(name, "mean", fmean(present[task].score for task in tasks), parts={"dev": dev}))
    return means


def _lacks(tasks: Sequence[str], missing: Set[str]) -> str:
    """Returns an error text that names the missing tasks of a mean, or an empty text if no task is missing."""
    if not (names := [task for task in tasks if task in missing]):
        return ""
    return f"expected the scores of {len(tasks)} tasks, got no score of {', '.join(names)}; no mean is given"


def _contribution(score: TaskScore) -> TaskScore:
    if score.task == "MRPC":
        mean = fmean([score.score, score.parts["F1"]])
        parts = {**score.parts, "accuracy": score.score}
        return replace(score, metric="mean of accuracy and F1", score=mean, parts=parts)
    if score.task in TRAINED_TASKS:
        return replace(score, parts={**score.parts, "dev": score.parts["dev pearson"]})
    return replace(score, parts={**score.parts, "dev": score.score}) if score.task in _YEARS else score
