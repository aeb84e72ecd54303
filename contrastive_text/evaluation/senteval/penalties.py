"""SentEval's three ways to choose the penalty of a classifier and to test it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.evaluation.senteval.classifiers import (
    Classifier,
    Protocol,
    Rows,
    Split,
    accuracies,
    predict,
)


class Outcome(NamedTuple):
    """What a classifier predicts of a task's test rows.

    Args:
        dev: Accuracy of the chosen penalty on the dev rows or the inner folds, times 100.
        predicted: A class for each test row, (n,).
        gold: Its true class, (n,).
    """

    dev: float
    predicted: Tensor
    gold: Tensor

    @property
    def correct(self) -> Tensor:
        """Whether each test row is predicted right, (n,), bool."""
        return self.predicted == self.gold


def stratified_folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """Returns the fold of each row, (N,): those of scikit-learn's shuffled ``StratifiedKFold`` of this seed.

    Folds differ by one row at most, and so does each class's share of them.

    Raises:
        ValueError: Fewer rows than folds.

    Example:
        >>> stratified_folds(torch.tensor([0, 0, 0, 1, 1, 1]), count=3, seed=1111)
        tensor([2, 1, 0, 0, 2, 1])
    """
    if len(labels) < count:
        raise InvalidValueError(f"stratified_folds: expected {count} rows or more, one a fold, got {len(labels)}")
    random = np.random.RandomState(seed)
    folds = torch.empty_like(labels)
    dealt = 0
    for label in dict.fromkeys(labels.tolist()):
        places = torch.nonzero(labels == label)[:, 0]
        own = np.sort(np.arange(dealt, dealt + len(places)) % count)
        random.shuffle(own)
        folds[places] = torch.from_numpy(own)
        dealt += len(places)
    return folds


def cross_validate(rows: Rows, classifier: Classifier, protocol: Protocol) -> Outcome:
    """Predicts every row once, by a model of the other folds; an inner cross-validation chooses its penalty.

    SentEval's way with MR, CR, SUBJ and MPQA. Differs: SentEval averages the accuracies of the folds, rounded;
    here every row counts the same.
    """
    outer = _splits(rows.labels, torch.arange(len(rows.labels)), protocol)
    chosen = [_choose(rows, _splits(rows.labels, train, protocol), classifier, protocol) for train, _ in outer]
    models = classifier.fit(
        rows, [Split(train, None) for train, _ in outer], [[penalty] for penalty, _ in chosen], protocol
    )
    predicted = torch.empty_like(rows.labels)
    for (_, test), model in zip(outer, models, strict=True):
        predicted[test] = predict(model[0], rows.features[test])
    return Outcome(float(np.mean([dev for _, dev in chosen])), predicted, rows.labels)


def choose_by_folds(
    rows: Rows, train: Tensor, test: Tensor, classifier: Classifier, protocol: Protocol
) -> Outcome:
    """Predicts the test rows; a cross-validation of the training rows chooses the penalty.

    SentEval's way with TREC and MRPC.
    """
    penalty, dev = _choose(rows, _splits(rows.labels, train, protocol), classifier, protocol)
    model = classifier.fit(rows, [Split(train, None)], [[penalty]], protocol)[0, 0]
    return Outcome(dev, predict(model, rows.features[test]), rows.labels[test])


def choose_by_dev(
    rows: Rows, train: Tensor, dev: Tensor, test: Tensor, classifier: Classifier, protocol: Protocol
) -> Outcome:
    """Predicts the test rows; the dev rows choose the penalty.

    SentEval's way with SST, SICK-E, SNLI and the probing tasks.
    """
    models = classifier.fit(rows, [Split(train, dev)], [classifier.penalties], protocol)[0]
    found = accuracies(models, rows, dev)
    predicted = predict(models[found.argmax()], rows.features[test])
    return Outcome(100 * float(found.max()), predicted, rows.labels[test])


def _choose(
    rows: Rows, splits: Sequence[tuple[Tensor, Tensor]], classifier: Classifier, protocol: Protocol
) -> tuple[float, float]:
    """Returns the penalty with the best mean accuracy on what the splits hold out, and that accuracy."""
    penalties = [classifier.penalties] * len(splits)
    models = classifier.fit(rows, [Split(*split) for split in splits], penalties, protocol)
    found = [accuracies(each, rows, dev) for each, (_, dev) in zip(models, splits, strict=True)]
    mean = torch.stack(found).mean(0)
    return classifier.penalties[int(mean.argmax())], 100 * float(mean.max())


def _splits(labels: Tensor, among: Tensor, protocol: Protocol) -> list[tuple[Tensor, Tensor]]:
    """Returns for each fold of some rows the places of the others, and its own."""
    folds = stratified_folds(labels[among], protocol.folds, protocol.seed)
    return [(among[folds != fold], among[folds == fold]) for fold in range(protocol.folds)]
