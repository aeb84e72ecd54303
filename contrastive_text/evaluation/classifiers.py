"""Linear classifiers of frozen vectors, and SentEval's three ways to choose their penalty."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.core.setting import one_thread


@dataclass(frozen=True, slots=True)
class Protocol:
    """Parameters of SentEval that train a classifier and choose its penalty (Conneau and Kiela, 2018).

    ``TorchClassifier`` reads all parameters. ``SklearnClassifier`` has a unique solution and reads ``folds`` and
    ``seed``.

    Args:
        folds: Folds of the outer and of the inner cross-validation, at least 3.
        optimizer: Optimizer, which has its default learning rate.
        batch_size: Rows of a step.
        tenacity: Evaluations on the dev rows without a new best accuracy; one more ends the training.
        epoch_size: Epochs between two evaluations.
        max_epochs: Epochs after which no further round begins.
        seed: Seed of folds, initial weights and batches.
    """

    folds: int
    optimizer: type[torch.optim.Adam] | type[torch.optim.RMSprop]
    batch_size: int
    tenacity: int
    epoch_size: int
    max_epochs: int = 200
    seed: int = 1111


STANDARD = Protocol(folds=10, optimizer=torch.optim.Adam, batch_size=64, tenacity=5, epoch_size=4)
"""SentEval's setting for papers; SimCSE's and DeCLUTR's too."""
FAST = Protocol(folds=5, optimizer=torch.optim.RMSprop, batch_size=128, tenacity=3, epoch_size=2)
"""SentEval's setting for prototypes."""
PROTOCOLS = {"standard": STANDARD, "fast": FAST}
"""Name in the shell -> protocol."""


class Rows(NamedTuple):
    """Vectors and their classes.

    Args:
        features: (N, F), float32.
        labels: (N,), from 0 to the number of classes minus 1.
    """

    features: Tensor
    labels: Tensor


class Split(NamedTuple):
    """Places of rows to fit, and of dev rows that end the training; None to hold some of the former back."""

    train: Tensor
    dev: Tensor | None


class Classifier(ABC):
    """Fits linear models to rows.

    Attributes:
        penalties: Values to choose from, in order of preference. Each classifier defines their meaning.
    """

    penalties: tuple[float, ...]

    @abstractmethod
    def fit(
        self, rows: Rows, splits: Sequence[Split], penalties: Sequence[Sequence[float]], protocol: Protocol
    ) -> Tensor:
        """Returns a linear model for each split and each of its penalties.

        Args:
            rows: All rows.
            splits: S of them.
            penalties: S lists of P penalties.
            protocol: How to train.

        Returns:
            (S, P, K, F + 1) for K classes; the last of the F + 1 is the bias. See ``predict``.
        """


@dataclass(frozen=True)
class TorchClassifier(Classifier):
    """SentEval's own: softmax regression by small steps, ended by the accuracy of dev rows, kept at its best.

    All splits and penalties are trained side by side. Each model has the initial weights and the order of batches
    that it would have alone. If splits differ in length, the shorter ones repeat some rows in an epoch. The
    training runs in one thread, so the number of cores doesn't change the result.

    Differs: the loss is the mean over a batch. SentEval's code asks for the sum in a way that torch has
    ignored since 0.4.1, so that published figures are of the mean.
    """

    penalties: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)

    @one_thread()  # with 384 features and ten splits a step takes 30 times as long with two threads on busy cores
    def fit(
        self, rows: Rows, splits: Sequence[Split], penalties: Sequence[Sequence[float]], protocol: Protocol
    ) -> Tensor:
        features, labels = rows
        classes = int(labels.max()) + 1
        random = [torch.Generator().manual_seed(protocol.seed) for _ in splits]
        held = [_hold_back(split, each) for split, each in zip(splits, random, strict=True)]
        first = torch.rand(classes, features.shape[1] + 1, generator=torch.Generator().manual_seed(protocol.seed))
        first = (2 * first - 1) / features.shape[1] ** 0.5  # as nn.Linear begins
        decay = torch.tensor(penalties).repeat_interleave(classes, dim=1)[:, :, None]  # (S, P * K, 1)
        weights = nn.Parameter(first.repeat(len(splits), len(penalties[0]), 1), requires_grad=False)
        models = weights.view(len(splits), -1, classes, features.shape[1] + 1)
        optimizer = protocol.optimizer([weights])
        best, kept = torch.full(models.shape[:2], -1.0, dtype=torch.float64), models.clone()
        failures = torch.zeros_like(best)
        epochs = 0
        while (failures <= protocol.tenacity).any() and epochs <= protocol.max_epochs:
            for _ in range(protocol.epoch_size):
                order = _epoch([train for train, _ in held], random)
                for batch in torch.split(order, protocol.batch_size, dim=1):
                    wanted = nn.functional.one_hot(labels[batch], classes)
                    weights.grad = _gradient(models, _rows(features, batch), wanted)
                    weights.grad += decay * weights
                    optimizer.step()
            epochs += protocol.epoch_size
            accuracy = torch.stack(
                [accuracies(each, rows, dev) for each, (_, dev) in zip(models, held, strict=True)]
            )
            better = (accuracy > best) & (failures <= protocol.tenacity)
            best, kept[better] = torch.where(better, accuracy, best), models[better]
            failures += ~better
        return kept


@dataclass(frozen=True)
class SklearnClassifier(Classifier):
    """scikit-learn's ``LogisticRegression`` to convergence, on standardized features; penalties are its C.

    Each feature has mean 0 and standard deviation 1 over the rows that are fitted: neither the length of a
    model's vectors nor their common part then changes its score. Dev rows only choose the penalty.

    Differs: SentEval leaves the features as they are, with C from 2^-1 to 2^5 for TREC and MRPC (its
    ``KFoldClassifier``), and from 2^-2 to 2^3 for the others.
    """

    penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

    def fit(
        self, rows: Rows, splits: Sequence[Split], penalties: Sequence[Sequence[float]], protocol: Protocol
    ) -> Tensor:
        linear = require("sklearn.linear_model", "SklearnClassifier")
        classes = int(rows.labels.max()) + 1
        fitted = []
        for (train, _), values in zip(splits, penalties, strict=True):
            x, y = rows.features[train], rows.labels[train]
            mean, spread = x.mean(0), x.std(0)
            spread[spread <= 1e-6 * spread.max()] = 1.0  # a constant feature but for rounding
            standard = ((x - mean) / spread).numpy()
            for value in values:
                model = linear.LogisticRegression(C=value, max_iter=1000, random_state=protocol.seed)
                model.fit(standard, y.numpy())
                slopes, bias = (torch.from_numpy(each).float() for each in (model.coef_, model.intercept_))
                if len(slopes) == 1:  # of two classes it has the second's alone
                    slopes, bias = (torch.cat([torch.zeros_like(each), each]) for each in (slopes, bias))
                slopes = slopes / spread
                weights = torch.zeros(classes, x.shape[1] + 1)
                weights[:, -1] = -torch.inf  # a class without rows
                weights[torch.from_numpy(model.classes_)] = torch.column_stack([slopes, bias - slopes @ mean])
                fitted.append(weights)
        return torch.stack(fitted).view(len(splits), -1, *fitted[0].shape)


CLASSIFIERS: dict[str, Classifier] = {"torch": TorchClassifier(), "sklearn": SklearnClassifier()}
"""Name in the shell -> classifier."""


def predict(weights: Tensor, features: Tensor) -> Tensor:
    """Returns the classes that linear models predict: (..., K, F + 1) and (N, F) -> (..., N).

    Example:
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]])  # the second class has a head start
        >>> predict(weights, torch.tensor([[1.0, 0.0], [1.0, 0.8]])).tolist()
        [0, 1]
    """
    return (features @ weights[..., :-1].mT + weights[..., None, :, -1]).argmax(-1)


def accuracies(models: Tensor, rows: Rows, places: Tensor) -> Tensor:
    """Returns the accuracy of each model, (P, K, F + 1) -> (P,)."""
    return (predict(models, rows.features[places]) == rows.labels[places]).double().mean(-1)


def _rows(values: Tensor, places: Tensor) -> Tensor:
    """Returns rows by place, (N, F) and (S, B) -> (S, B, F), in less than half the time of plain indexing."""
    return values.index_select(0, places.flatten()).view(*places.shape, -1)


def _gradient(models: Tensor, x: Tensor, wanted: Tensor) -> Tensor:
    """Returns the gradient of the mean cross-entropy of each model over a batch of its split.

    Args:
        models: (S, P, K, F + 1).
        x: (S, B, F).
        wanted: One-hot classes, (S, B, K).

    Returns:
        (S, P * K, F + 1).
    """
    weights = models.flatten(1, 2)
    scores = torch.baddbmm(weights[:, None, :, -1], x, weights[..., :-1].mT)
    chances = scores.view(*scores.shape[:2], *models.shape[1:3]).softmax(-1)
    error = (chances - wanted[:, :, None]).flatten(2).mT / x.shape[1]  # (S, P * K, B)
    return torch.cat([error @ x, error.sum(-1, keepdim=True)], dim=-1)


def _hold_back(split: Split, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns training and dev rows; without dev rows a twentieth of the others, as SentEval does."""
    if split.dev is not None:
        return split.train, split.dev
    mixed = split.train[torch.randperm(len(split.train), generator=random)]
    size = max(1, len(mixed) // 20)
    return mixed[size:], mixed[:size]


def _epoch(splits: Sequence[Tensor], random: Sequence[torch.Generator]) -> Tensor:
    """Returns the rows of each split in a new order, (S, n); shorter splits begin again."""
    longest = max(map(len, splits))
    orders = [rows[torch.randperm(len(rows), generator=each)] for rows, each in zip(splits, random, strict=True)]
    return torch.stack([torch.cat([order, order[: longest - len(order)]]) for order in orders])


class Outcome(NamedTuple):
    """Predictions of a classifier for the test rows of a task.

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
        """True for each test row that is predicted right, (n,), bool."""
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
