"""Linear classifiers of frozen vectors, and SentEval's three protocols to select their penalty."""

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
from contrastive_text.core.machine import one_thread


@dataclass(frozen=True, slots=True)
class Protocol:
    """Settings of SentEval to train a classifier and to select its penalty (Conneau and Kiela, 2018).

    ``TorchClassifier`` reads all settings. ``SklearnClassifier`` has a unique solution and reads ``folds`` and
    ``seed``.

    Args:
        folds: Number of folds of the outer and of the inner cross-validation, at least 3.
        optimizer: Optimizer, used with its default learning rate.
        batch_size: Number of rows per step.
        tenacity: Number of evaluations on dev rows without a new best accuracy that are tolerated. One more ends
            the training.
        epoch_size: Number of epochs between two evaluations.
        max_epochs: Number of epochs after which no further round begins.
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
"""Protocol of SentEval for papers, which SimCSE and DeCLUTR use too."""
FAST = Protocol(folds=5, optimizer=torch.optim.RMSprop, batch_size=128, tenacity=3, epoch_size=2)
"""Training protocol of SentEval for prototypes, which is faster."""
PROTOCOLS = {"standard": STANDARD, "fast": FAST}
"""Value of ``--protocol`` -> training protocol of classifiers."""


class Rows(NamedTuple):
    """Vectors of N texts and their classes.

    Args:
        features: Vectors, (N, F), float32.
        labels: Classes from 0 to K - 1, (N,).
    """

    features: Tensor
    labels: Tensor


class Split(NamedTuple):
    """Split of a classifier: indices of training rows and dev rows. Training rows may serve as dev rows."""

    train: Tensor
    dev: Tensor | None


class Classifier(ABC):
    """Base class of classifiers, which fit linear models to rows.

    Attributes:
        penalties: Penalties to select from, in order of preference. Each classifier defines their meaning.
    """

    penalties: tuple[float, ...]

    @abstractmethod
    def fit(
        self, rows: Rows, splits: Sequence[Split], penalties: Sequence[Sequence[float]], protocol: Protocol
    ) -> Tensor:
        """Fits a linear model for each split of the rows and each penalty of the split.

        Args:
            rows: Rows of all splits.
            splits: S splits.
            penalties: P penalties for each split.
            protocol: Settings of the training.

        Returns:
            Weights, (S, P, K, F + 1) for K classes. The last column is the bias. See ``predict``.
        """


@dataclass(frozen=True)
class TorchClassifier(Classifier):
    """Softmax regression of SentEval, trained by gradient steps with early stopping on dev rows.

    The result has the weights of the best dev accuracy. All splits and penalties are trained together. Each model
    has the initial weights and the order of batches that it would have alone. If splits differ in length, shorter
    splits repeat some rows in an epoch. The training runs in one thread, so the number of cores doesn't change
    the result.

    Differs: the loss is the mean over a batch. SentEval's code requests the sum with an argument that torch
    ignores since 0.4.1, so published figures use the mean too.
    """

    penalties: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)

    @one_thread()  # with 384 features and ten splits a step takes 30 times as long with two threads on busy cores
    def fit(
        self, rows: Rows, splits: Sequence[Split], penalties: Sequence[Sequence[float]], protocol: Protocol
    ) -> Tensor:
        features, labels = rows
        classes = int(labels.max()) + 1
        generators = [torch.Generator().manual_seed(protocol.seed) for _ in splits]
        pairs = [_with_dev_rows(split, random) for split, random in zip(splits, generators, strict=True)]
        start = torch.rand(classes, features.shape[1] + 1, generator=torch.Generator().manual_seed(protocol.seed))
        start = (2 * start - 1) / features.shape[1] ** 0.5  # initialization of nn.Linear
        decay = torch.tensor(penalties).repeat_interleave(classes, dim=1)[:, :, None]  # (S, P * K, 1)
        weights = nn.Parameter(start.repeat(len(splits), len(penalties[0]), 1), requires_grad=False)
        models = weights.view(len(splits), -1, classes, features.shape[1] + 1)
        optimizer = protocol.optimizer([weights])
        best, best_models = torch.full(models.shape[:2], -1.0, dtype=torch.float64), models.clone()
        failures = torch.zeros_like(best)
        epochs = 0
        while (failures <= protocol.tenacity).any() and epochs <= protocol.max_epochs:
            for _ in range(protocol.epoch_size):
                order = _epoch([train for train, _ in pairs], generators)
                for batch in torch.split(order, protocol.batch_size, dim=1):
                    targets = nn.functional.one_hot(labels[batch], classes)
                    weights.grad = _gradient(models, _rows(features, batch), targets)
                    weights.grad += decay * weights
                    optimizer.step()
            epochs += protocol.epoch_size
            accuracy = torch.stack(
                [accuracies(model, rows, dev) for model, (_, dev) in zip(models, pairs, strict=True)]
            )
            better = (accuracy > best) & (failures <= protocol.tenacity)
            best, best_models[better] = torch.where(better, accuracy, best), models[better]
            failures += ~better
        return best_models


@dataclass(frozen=True)
class SklearnClassifier(Classifier):
    """``LogisticRegression`` of scikit-learn, fitted to convergence on standardized features.

    The penalties are its ``C``. Each feature has mean 0 and standard deviation 1 over the training rows, so the
    scale and the mean of a model's vectors don't change its score. Dev rows only select the penalty.

    Differs: SentEval doesn't standardize features. Its C is from 2^-1 to 2^5 for TREC and MRPC (its
    ``KFoldClassifier``), and from 2^-2 to 2^3 for the other tasks.
    """

    penalties: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)

    def fit(
        self, rows: Rows, splits: Sequence[Split], penalties: Sequence[Sequence[float]], protocol: Protocol
    ) -> Tensor:
        linear = require("sklearn.linear_model", "SklearnClassifier")
        classes = int(rows.labels.max()) + 1
        models = []
        for (train, _), values in zip(splits, penalties, strict=True):
            x, y = rows.features[train], rows.labels[train]
            mean, scale = x.mean(0), x.std(0)
            scale[scale <= 1e-6 * scale.max()] = 1.0  # the feature is constant up to rounding
            standardized = ((x - mean) / scale).numpy()
            for value in values:
                model = linear.LogisticRegression(C=value, max_iter=1000, random_state=protocol.seed)
                model.fit(standardized, y.numpy())
                slopes, bias = (torch.from_numpy(array).float() for array in (model.coef_, model.intercept_))
                if len(slopes) == 1:  # for two classes scikit-learn stores the second class only
                    slopes, bias = (torch.cat([torch.zeros_like(part), part]) for part in (slopes, bias))
                slopes = slopes / scale
                weights = torch.zeros(classes, x.shape[1] + 1)
                weights[:, -1] = -torch.inf  # a class without rows
                weights[torch.from_numpy(model.classes_)] = torch.column_stack([slopes, bias - slopes @ mean])
                models.append(weights)
        return torch.stack(models).view(len(splits), -1, *models[0].shape)


CLASSIFIERS: dict[str, Classifier] = {"torch": TorchClassifier(), "sklearn": SklearnClassifier()}
"""Value of ``--classifier`` -> classifier."""


def predict(weights: Tensor, features: Tensor) -> Tensor:
    """Returns the classes that linear models predict: weights (..., K, F + 1) and features (N, F) -> (..., N).

    Example:
        >>> weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.5]])  # the second class has bias 0.5
        >>> predict(weights, torch.tensor([[1.0, 0.0], [1.0, 0.8]])).tolist()
        [0, 1]
    """
    return (features @ weights[..., :-1].mT + weights[..., None, :, -1]).argmax(-1)


def accuracies(models: Tensor, rows: Rows, places: Tensor) -> Tensor:
    """Returns the accuracy of each linear model on the rows at some indices, (P, K, F + 1) -> (P,)."""
    return (predict(models, rows.features[places]) == rows.labels[places]).double().mean(-1)


def _rows(values: Tensor, indices: Tensor) -> Tensor:
    """Gathers rows by index, (N, F) and (S, B) -> (S, B, F), in less than half the time of plain indexing."""
    return values.index_select(0, indices.flatten()).view(*indices.shape, -1)


def _gradient(models: Tensor, x: Tensor, targets: Tensor) -> Tensor:
    """Returns the gradient of the mean cross-entropy of each model over a batch of its split.

    Args:
        models: Weights, (S, P, K, F + 1).
        x: Features of a batch of each split, (S, B, F).
        targets: One-hot classes, (S, B, K).

    Returns:
        Gradients, (S, P * K, F + 1).
    """
    weights = models.flatten(1, 2)
    scores = torch.baddbmm(weights[:, None, :, -1], x, weights[..., :-1].mT)
    probabilities = scores.view(*scores.shape[:2], *models.shape[1:3]).softmax(-1)
    error = (probabilities - targets[:, :, None]).flatten(2).mT / x.shape[1]  # (S, P * K, B)
    return torch.cat([error @ x, error.sum(-1, keepdim=True)], dim=-1)


def _with_dev_rows(split: Split, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns training and dev rows of a split. Without dev rows, uses a twentieth of the training rows."""
    if split.dev is not None:
        return split.train, split.dev
    shuffled = split.train[torch.randperm(len(split.train), generator=random)]
    size = max(1, len(shuffled) // 20)
    return shuffled[size:], shuffled[:size]


def _epoch(splits: Sequence[Tensor], generators: Sequence[torch.Generator]) -> Tensor:
    """Returns the rows of each split in a random order, (S, n). Shorter splits repeat their first rows."""
    longest = max(map(len, splits))
    orders = [
        rows[torch.randperm(len(rows), generator=random)] for rows, random in zip(splits, generators, strict=True)
    ]
    return torch.stack([torch.cat([order, order[: longest - len(order)]]) for order in orders])


class Outcome(NamedTuple):
    """Predictions of a classifier for n test rows of a task.

    Args:
        dev: Accuracy of the selected penalty on the dev rows or the inner folds, times 100.
        predicted: Predicted class of each test row, (n,).
        gold: True class of each test row, (n,).
    """

    dev: float
    predicted: Tensor
    gold: Tensor

    @property
    def correct(self) -> Tensor:
        """Mask of the test rows whose predicted class is the true class, (n,), bool."""
        return self.predicted == self.gold


def stratified_folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """Returns the fold of each row, (N,), as scikit-learn's shuffled ``StratifiedKFold`` of the same seed.

    Sizes of folds differ by at most one row, and so do the numbers of rows of each class per fold.

    Raises:
        ValueError: There are fewer rows than folds.

    Example:
        >>> stratified_folds(torch.tensor([0, 0, 0, 1, 1, 1]), count=3, seed=1111)
        tensor([2, 1, 0, 0, 2, 1])
    """
    if len(labels) < count:
        raise InvalidValueError(f"stratified_folds: expected {count} rows or more, one a fold, got {len(labels)}")
    random = np.random.RandomState(seed)
    folds = torch.empty_like(labels)
    assigned = 0
    for label in dict.fromkeys(labels.tolist()):
        indices = torch.nonzero(labels == label)[:, 0]
        class_folds = np.sort(np.arange(assigned, assigned + len(indices)) % count)
        random.shuffle(class_folds)
        folds[indices] = torch.from_numpy(class_folds)
        assigned += len(indices)
    return folds


def cross_validate(rows: Rows, classifier: Classifier, protocol: Protocol) -> Outcome:
    """Predicts each row with a model of the other folds, whose penalty an inner cross-validation selects.

    SentEval uses this protocol for MR, CR, SUBJ and MPQA. Differs: SentEval averages the rounded accuracies of
    the folds; here all rows have the same weight.
    """
    outer = _splits(rows.labels, torch.arange(len(rows.labels)), protocol)
    selections = [
        _select(rows, _splits(rows.labels, train, protocol), classifier, protocol) for train, _ in outer
    ]
    models = classifier.fit(
        rows, [Split(train, None) for train, _ in outer], [[penalty] for penalty, _ in selections], protocol
    )
    predicted = torch.empty_like(rows.labels)
    for (_, test), model in zip(outer, models, strict=True):
        predicted[test] = predict(model[0], rows.features[test])
    return Outcome(float(np.mean([dev for _, dev in selections])), predicted, rows.labels)


def choose_by_folds(
    rows: Rows, train: Tensor, test: Tensor, classifier: Classifier, protocol: Protocol
) -> Outcome:
    """Predicts the test rows with the penalty that a cross-validation of the training rows selects.

    SentEval uses this protocol for TREC and MRPC.
    """
    penalty, dev = _select(rows, _splits(rows.labels, train, protocol), classifier, protocol)
    model = classifier.fit(rows, [Split(train, None)], [[penalty]], protocol)[0, 0]
    return Outcome(dev, predict(model, rows.features[test]), rows.labels[test])


def choose_by_dev(
    rows: Rows, train: Tensor, dev: Tensor, test: Tensor, classifier: Classifier, protocol: Protocol
) -> Outcome:
    """Predicts the test rows with the penalty that the dev rows select.

    SentEval uses this protocol for SST, SICK-E, SNLI and the probing tasks.
    """
    models = classifier.fit(rows, [Split(train, dev)], [classifier.penalties], protocol)[0]
    dev_accuracies = accuracies(models, rows, dev)
    predicted = predict(models[dev_accuracies.argmax()], rows.features[test])
    return Outcome(100 * float(dev_accuracies.max()), predicted, rows.labels[test])


def _select(
    rows: Rows, splits: Sequence[tuple[Tensor, Tensor]], classifier: Classifier, protocol: Protocol
) -> tuple[float, float]:
    """Returns the penalty with the best mean accuracy on the dev rows of all splits, and its accuracy x 100."""
    penalties = [classifier.penalties] * len(splits)
    models = classifier.fit(rows, [Split(*split) for split in splits], penalties, protocol)
    by_split = [accuracies(model, rows, dev) for model, (_, dev) in zip(models, splits, strict=True)]
    mean = torch.stack(by_split).mean(0)
    return classifier.penalties[int(mean.argmax())], 100 * float(mean.max())


def _splits(labels: Tensor, indices: Tensor, protocol: Protocol) -> list[tuple[Tensor, Tensor]]:
    """Splits the rows at some indices into folds. Returns the indices outside and inside of each fold."""
    folds = stratified_folds(labels[indices], protocol.folds, protocol.seed)
    return [(indices[folds != fold], indices[folds == fold]) for fold in range(protocol.folds)]
