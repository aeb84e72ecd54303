"""DeCLUTR's aggregate of SentEval: means over 18 downstream tasks, over 10 probing tasks, over all 28."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.senteval.classifiers import STANDARD, Classifier, Protocol
from contrastive_text.evaluation.senteval.labelled_texts import LabelledTexts
from contrastive_text.evaluation.senteval.probing import PROBING_TASKS
from contrastive_text.evaluation.senteval.transfer import check_folds, find_tasks, outcomes, scores
from contrastive_text.evaluation.senteval.transfer_data import TRANSFER_TASKS
from contrastive_text.evaluation.sts.cosine import check_setting, score_tasks
from contrastive_text.evaluation.sts.data import STSPairs, find_sts
from contrastive_text.evaluation.sts.trained import TRAINED_TASKS, find_trained, score_trained

COCO = "COCO"
_YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
DOWNSTREAM_TASKS = (*TRANSFER_TASKS, *TRAINED_TASKS, COCO, *_YEARS)
"""The 18 tasks of the downstream mean."""
NO_IMAGES = (
    "its files of image features, which are pickles and could run code, are not read; measure it by SentEval and "
    "give Python declutr_scores(given=[image_retrieval(...)]), or take the means without COCO"
)
"""What is said where COCO is missing."""
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
"""Name of a mean -> the tasks in it. The paper's have COCO in them, those without it need no images."""


class SuiteData(NamedTuple):
    """What the suites read: task -> its rows, or what is missing of it.

    Args:
        sts: As ``find_sts`` gives it.
        trained: As ``find_trained`` gives it.
        transfer: As ``find_tasks`` gives it.
        probing: As ``find_tasks`` gives it.
        retrieval: As ``find_retrieval`` gives it.
    """

    sts: Mapping[str, STSPairs | str]
    trained: Mapping[str, Mapping[str, STSPairs | str]]
    transfer: Mapping[str, LabelledTexts | str]
    probing: Mapping[str, LabelledTexts | str]
    retrieval: Mapping[str, RetrievalSet | str] = MappingProxyType({})


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
    classified = find_tasks(folder, TRANSFER_TASKS), find_tasks(folder, PROBING_TASKS)
    data = SuiteData(find_sts(folder), find_trained(folder), *classified)
    return score_declutr(embed, data, protocol, classifier, given)


def check_declutr(data: SuiteData, protocol: Protocol) -> None:
    """Checks that sub-sets of STS pairs are known, and that each class has rows for the folds (ValueError)."""
    check_setting("mean", [pairs for pairs in data.sts.values() if isinstance(pairs, STSPairs)])
    check_folds(data.transfer, protocol)


def score_declutr(
    embed: CachedEncoder,
    data: SuiteData,
    protocol: Protocol = STANDARD,
    classifier: Classifier | None = None,
    given: Sequence[TaskScore] = (),
) -> list[TaskScore]:
    """Returns what ``declutr_scores`` does, of data already read; checks them before it encodes a text."""
    check_declutr(data, protocol)
    found = [
        *scores(data.transfer, outcomes(embed, data.transfer, protocol, classifier)),
        *score_trained(embed, data.trained),
        *score_tasks(embed, data.sts, "mean"),
        *scores(data.probing, outcomes(embed, data.probing, protocol, classifier)),
    ]
    added = contributions(found)
    here = {score.task: score for score in (*added, *given)}
    tasks = [here.get(task) or TaskScore.absent(task, "mean recall", NO_IMAGES) for task in _ALL]
    return [*tasks, *aggregate(tasks)]


def contributions(scores: Sequence[TaskScore]) -> list[TaskScore]:
    """Returns what tasks add to the means: ``score`` on test, the part ``dev`` on dev.

    - MRPC: the mean of accuracy and F1 on test, the accuracy alone on dev.
    - STS-B and SICK-R with a trained regressor: Spearman on test, Pearson on dev.
    - STS12 to STS16, which have no dev part: their score, the mean over sub-sets, for both.
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
        if gone := [task for task in tasks if task not in here]:
            missing = (
                f"expected {len(tasks)} tasks, got none of {', '.join(gone)}; no mean over the others is given"
            )
            means.append(TaskScore.absent(name, "mean", missing))
            continue
        dev = fmean(here[task].parts["dev"] for task in tasks)
        means.append(TaskScore(name, "mean", fmean(here[task].score for task in tasks), parts={"dev": dev}))
    return means


def _contribution(score: TaskScore) -> TaskScore:
    if score.task == "MRPC":
        both = fmean([score.score, score.parts["F1"]])
        parts = {**score.parts, "accuracy": score.score}
        return replace(score, metric="mean of accuracy and F1", score=both, parts=parts)
    if score.task in TRAINED_TASKS:
        return replace(score, parts={**score.parts, "dev": score.parts["dev pearson"]})
    return replace(score, parts={**score.parts, "dev": score.score}) if score.task in _YEARS else score
