"""SentEval's transfer and probing tasks: how well a linear classifier of a model's frozen vectors does."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from contrastive_text.data.files.formats import listed, reading_error, short
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.senteval.classifiers import STANDARD, Classifier, Protocol, Rows, TorchClassifier
from contrastive_text.evaluation.senteval.labelled_texts import DEV, TEST, TRAIN, LabelledTexts, naming
from contrastive_text.evaluation.senteval.penalties import Outcome, choose_by_dev, choose_by_folds, cross_validate
from contrastive_text.evaluation.senteval.probing import PROBING_TASKS, probing_data
from contrastive_text.evaluation.senteval.transfer_data import TRANSFER_TASKS, transfer_data

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


def find_tasks(folder: str | Path, tasks: Sequence[str]) -> dict[str, LabelledTexts | str]:
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


def check_folds(data: Mapping[str, LabelledTexts | str], protocol: Protocol) -> None:
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
    data: Mapping[str, LabelledTexts | str],
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
    there = {task: rows for task, rows in data.items() if isinstance(rows, LabelledTexts)}
    if empty := [f"{rows.empty:,} in {task}" for task, rows in there.items() if rows.empty]:
        warnings.warn(
            f"a full stop stands for each empty text, as in SentEval: {listed(empty)}", UserWarning, stacklevel=3
        )
    return {
        task: _outcome(embed, rows, protocol, classifier or TorchClassifier()) for task, rows in there.items()
    }


def scores(data: Mapping[str, LabelledTexts | str], found: Mapping[str, Outcome]) -> list[TaskScore]:
    """Returns a score for each task, or what is missing of it."""
    return [
        _score(rows, found[task]) if isinstance(rows, LabelledTexts) else TaskScore.absent(task, "accuracy", rows)
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


def _outcome(embed: CachedEncoder, texts: LabelledTexts, protocol: Protocol, classifier: Classifier) -> Outcome:
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


def _features(embed: CachedEncoder, texts: LabelledTexts) -> Tensor:
    sides = [embed(side) for side in texts.sides]
    for vectors, side in zip(sides, texts.sides, strict=True):
        if not (finite := vectors.isfinite().all(-1)).all():
            text = side[int(finite.int().argmin())]
            got = f"NaN or infinity in the vector of {short(text)}"
            raise reading_error(
                f"{texts.task}: {texts.source}", "finite vectors", got, "check the model's weights"
            )
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


def _score(rows: LabelledTexts, outcome: Outcome) -> TaskScore:
    parts = {"dev": outcome.dev}
    if rows.task == "MRPC":
        paraphrase = sorted(set(rows.labels)).index("1")
        parts["F1"] = f1(outcome.predicted == paraphrase, outcome.gold == paraphrase)
    accuracy = 100 * float(outcome.correct.double().mean())
    return TaskScore(rows.task, "accuracy", accuracy, size=len(outcome.gold), parts=parts)
