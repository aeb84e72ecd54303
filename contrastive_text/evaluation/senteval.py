"""SentEval's transfer and probing tasks, and DeCLUTR's means over them."""

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
from contrastive_text.data.files.formats import listed, reading_error, short
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
    """Returns the accuracy of each task (Conneau and Kiela, 2018, https://arxiv.org/abs/1803.05449).

    MR, CR, SUBJ and MPQA are cross-validated; TREC and MRPC have a test part and choose the penalty by folds of
    the training part; SST2, SST5, SICK-E, SNLI and the probing tasks choose it by their dev part. A pair of
    vectors u, v is classified by [\\|u - v\\|, u * v], in SNLI by [u, v, \\|u - v\\|, u * v].

    Differs: SentEval fits SNLI without a penalty, here it is chosen like the others, the least of which is
    1e-5; it forms folds of rows sorted by length, here they stay as the files have them.

    Args:
        embed: The encoder.
        folder: Where the data sets are; see ``transfer_data`` and ``probing_data``.
        protocol: ``STANDARD`` for papers, ``FAST`` for prototypes.
        classifier: ``TorchClassifier()``, SentEval's own, where None.
        tasks: Which of ``TRANSFER_TASKS`` and ``PROBING_TASKS``.

    Returns:
        A score for each task in the order asked for; the part ``dev`` is the accuracy by which the penalty was
        chosen, MRPC's part ``F1`` is of the paraphrases. A task without files says what is missing.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A file that is not what it should be, too few rows for the folds, or vectors with NaN.
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
    """Returns for each task whether each test row is predicted right, (n,), bool; their mean is the accuracy.

    Rows have the order of the files, all of them where a task is cross-validated: two models' answers are in
    pairs. Tasks without files are left out. See ``transfer_scores``.
    """
    found = outcomes(embed, find_tasks(folder, tasks), protocol, classifier)
    return {task: outcome.correct for task, outcome in found.items()}


def find_tasks(folder: str | Path, tasks: Sequence[str]) -> dict[str, LabeledTexts | str]:
    """Returns the rows of each task, or what is missing of it; see ``transfer_data`` and ``probing_data``.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: Another task, or a file that is not what it should be.
    """
    known = (*TRANSFER_TASKS, *PROBING_TASKS)
    for task in tasks:
        if task not in known:
            raise reading_error("tasks", listed(known), short(task), "name one of these")
    return {
        task: transfer_data(task, folder) if task in TRANSFER_TASKS else probing_data(task, folder)
        for task in tasks
    }


def check_folds(data: Mapping[str, LabeledTexts | str], protocol: Protocol) -> None:
    """Checks that each class has as many training rows as folds, where there are folds (ValueError)."""
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
    """Returns what is predicted in each task that has rows; checks all of them before the first text is encoded.

    Args:
        embed: The encoder.
        data: Task -> rows, or what is missing.
        protocol: How to train.
        classifier: ``TorchClassifier()`` where None.

    Raises:
        ValueError: Too few rows for the folds, or vectors with NaN.
    """
    check_folds(data, protocol)
    there = {task: rows for task, rows in data.items() if isinstance(rows, LabeledTexts)}
    if empty := [f"{rows.empty:,} in {task}" for task, rows in there.items() if rows.empty]:
        warnings.warn(
            f"a full stop stands for each empty text, as in SentEval: {listed(empty)}", UserWarning, stacklevel=3
        )
    return {
        task: _outcome(embed, rows, protocol, classifier or TorchClassifier()) for task, rows in there.items()
    }


def scores(data: Mapping[str, LabeledTexts | str], found: Mapping[str, Outcome]) -> list[TaskScore]:
    """Returns a score for each task, or what is missing of it."""
    return [
        _score(rows, found[task]) if isinstance(rows, LabeledTexts) else TaskScore.absent(task, "accuracy", rows)
        for task, rows in data.items()
    ]


def f1(predicted: Tensor, gold: Tensor) -> float:
    """Returns the F1 of the rows that are or should be true, (n,) and (n,), bool, times 100; 0 if none is.

    Example:
        >>> f1(torch.tensor([True, True, False]), torch.tensor([True, False, False]))  # precision 1/2, recall 1
        66.66...
    """
    named = int(predicted.sum()) + int(gold.sum())
    return 200 * int((predicted & gold).sum()) / named if named else 0.0


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
    features = u.new_empty(len(u), blocks * u.shape[1])  # filled in place: of SNLI there are 7 GB
    *own, distance, product = features.chunk(blocks, dim=1)
    for block, vectors in zip(own, sides, strict=False):
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
"""The 18 tasks of the downstream mean."""
NO_IMAGES = (
    "its files of image features, which are pickles and could run code, are not read; measure it by SentEval and "
    "give Python declutr_scores(given=[image_retrieval(...)]), or take the means without COCO"
)
"""Reason why COCO is missing, and the remedy."""
WITHOUT_SNLI = tuple(task for task in DOWNSTREAM_TASKS if task != "SNLI")
"""The 17 of DeCLUTR's final tables: the models it is compared with were trained on SNLI."""
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
"""Name of a mean -> its tasks. The means of the paper include COCO; the others need no images."""


def declutr_scores(
    embed: CachedEncoder,
    folder: str | Path,
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    given: Sequence[TaskScore] = (),
) -> list[TaskScore]:
    """Returns what each of the 28 tasks adds to DeCLUTR's means, then the means.

    Giorgi et al., 2021, https://aclanthology.org/2021.acl-long.72, table 2; the rules are those of the authors'
    ``scripts/run_senteval.py``.

    Args:
        embed: The encoder.
        folder: Where the data sets are; see ``transfer_data``, ``probing_data`` and ``find_pairs``.
        protocol: How the classifiers are trained.
        classifier: ``TorchClassifier()``, SentEval's own, where None.
        given: What tasks that were measured elsewhere add, in place of ours: ``image_retrieval``.

    Returns:
        28 tasks and seven means, as ``contributions`` and ``aggregate`` give them.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A file that is not what it should be, too few rows for the folds, or vectors with NaN.
        ImportError: ``SklearnClassifier`` without scikit-learn.
    """
    return score_declutr(embed, find_declutr(folder), protocol, classifier, given)


def find_declutr(folder: str | Path) -> dict[str, Any]:  # Any: data of several kinds
    """Returns the data of each of the 28 tasks, and the tasks of each mean, or what is missing.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A damaged file, or STS pairs without subsets.
    """
    sts = find_sts(folder)
    check_setting("mean", [pairs for pairs in sts.values() if isinstance(pairs, STSPairs)])
    found = {
        **find_tasks(folder, (*TRANSFER_TASKS, *PROBING_TASKS)),
        **find_trained(folder),
        **sts,
        COCO: NO_IMAGES,
    }
    gone = {task for task in _ALL if isinstance(found[task], str)}
    means = {name: _lacks(tasks, gone) or tasks for name, tasks in MEANS.items()}
    return {**{task: found[task] for task in _ALL}, **means}


def score_declutr(
    embed: CachedEncoder,
    data: Mapping[str, Any],  # Any: as above
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    given: Sequence[TaskScore] = (),
) -> list[TaskScore]:
    """Scores data that ``find_declutr`` has found; see ``declutr_scores``."""
    classified = {task: data[task] for task in (*TRANSFER_TASKS, *PROBING_TASKS)}
    found = [
        *scores(classified, outcomes(embed, classified, protocol, classifier)),
        *score_trained(embed, {task: data[task] for task in TRAINED_TASKS}),
        *score_tasks(embed, {year: data[year] for year in _YEARS}, "mean"),
    ]
    here = {score.task: score for score in (*contributions(found), *given)}
    tasks = [here.get(task) or TaskScore.absent(task, "mean recall", NO_IMAGES) for task in _ALL]
    return [*tasks, *aggregate(tasks)]


def contributions(scores: Sequence[TaskScore]) -> list[TaskScore]:
    """Returns what tasks add to the means: ``score`` on test, the part ``dev`` on dev.

    - MRPC: the mean of accuracy and F1 on test, the accuracy alone on dev.
    - STS-B and SICK-R with a trained regressor: Spearman on test, Pearson on dev.
    - STS12 to STS16, which have no dev part: their score, the mean over subsets, for both.
    - The others: accuracy.

    Args:
        scores: Of ``transfer_scores``, ``trained_sts_scores`` and ``sts_scores``; tasks that are not
            DeCLUTR's, such as STS-B without training, are left out.

    Example:
        >>> mrpc = TaskScore("MRPC", "accuracy", 75.0, parts={"dev": 74.0, "F1": 83.0})
        >>> [(score.score, score.parts["dev"]) for score in contributions([mrpc])]
        [(79.0, 74.0)]
    """
    wanted = set(_ALL)
    return [score if score.missing else _contribution(score) for score in scores if score.task in wanted]


def image_retrieval(image_to_text: Sequence[float], text_to_image: Sequence[float], dev_sum: float) -> TaskScore:
    """Returns what COCO adds: the mean of R@1, R@5 and R@10 in both directions.

    Args:
        image_to_text: The three on test, times 100.
        text_to_image: The three on test, times 100.
        dev_sum: SentEval's figure on dev, which is the sum of the six; a sixth of it is added.

    Raises:
        ValueError: Not three figures.

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


def aggregate(contributed: Sequence[TaskScore]) -> list[TaskScore]:
    """Returns the means over the downstream tasks, these without SNLI, the probing tasks, all, and without COCO.

    A mean is over all its tasks or there is none, and the reason names what is missing.

    Args:
        contributed: What the tasks add, as ``contributions`` gives it.

    Returns:
        The means of ``MEANS``: ``score`` on test, the part ``dev`` on dev.

    Example:
        >>> scores = [TaskScore(task, "accuracy", 70.0, parts={"dev": 80.0}) for task in PROBING_TASKS]
        >>> [(mean.task, mean.score) for mean in aggregate(scores) if not mean.missing]
        [('Probing', 70.0)]
    """
    here = {score.task: score for score in contributed if not score.missing}
    means = []
    for name, tasks in MEANS.items():
        if missing := _lacks(tasks, set(tasks) - here.keys()):
            means.append(TaskScore.absent(name, "mean", missing))
            continue
        dev = fmean(here[task].parts["dev"] for task in tasks)
        means.append(TaskScore(name, "mean", fmean(here[task].score for task in tasks), parts={"dev": dev}))
    return means


def _lacks(tasks: Sequence[str], gone: Set[str]) -> str:
    """Returns which tasks of a mean are missing, as text; empty if none is."""
    if not (missing := [task for task in tasks if task in gone]):
        return ""
    return f"expected {len(tasks)} tasks, got none of {', '.join(missing)}; no mean over the others is given"


def _contribution(score: TaskScore) -> TaskScore:
    if score.task == "MRPC":
        both = fmean([score.score, score.parts["F1"]])
        parts = {**score.parts, "accuracy": score.score}
        return replace(score, metric="mean of accuracy and F1", score=both, parts=parts)
    if score.task in TRAINED_TASKS:
        return replace(score, parts={**score.parts, "dev": score.parts["dev pearson"]})
    return replace(score, parts={**score.parts, "dev": score.score}) if score.task in _YEARS else score
