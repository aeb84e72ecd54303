"""Linear classifiers of frozen vectors, and the three ways to choose their penalty and to test them."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import rest_slow
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from contrastive_text.evaluation.classifiers import (
    CLASSIFIERS,
    FAST,
    STANDARD,
    Classifier,
    Outcome,
    Protocol,
    Rows,
    SklearnClassifier,
    Split,
    TorchClassifier,
    choose_by_dev,
    choose_by_folds,
    cross_validate,
    predict,
    stratified_folds,
)

SMALL = replace(FAST, folds=3, max_epochs=12, batch_size=32)
ENGINES = pytest.mark.parametrize("classifier", CLASSIFIERS.values(), ids=CLASSIFIERS)


def rows(count: int = 120, classes: int = 3, features: int = 5, apart: float = 1.0, seed: int = 0) -> Rows:
    """Gaussian classes of unequal size whose centers are so far apart."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes + 1, (count,), generator=random) % classes
    centers = apart * torch.randn(classes, features, generator=random)
    return Rows(centers[labels] + torch.randn(count, features, generator=random), labels)


def outcomes(found: Rows, classifier: Classifier, protocol: Protocol) -> list[Outcome]:
    """Returns what the three ways predict; two thirds of the rows train where there is a test part."""
    places = torch.arange(len(found.labels))
    train, dev, test = places[places % 3 == 0], places[places % 3 == 1], places[places % 3 == 2]
    return [
        cross_validate(found, classifier, protocol),
        choose_by_folds(found, torch.cat([train, dev]), test, classifier, protocol),
        choose_by_dev(found, train, dev, test, classifier, protocol),
    ]


def accuracy(outcome: Outcome) -> float:
    return 100 * float(outcome.correct.double().mean())


def one_by_one(found: Rows, split: Split, penalty: float, protocol: Protocol) -> Tensor:
    """SentEval's loop in its plainest form: one model, one penalty, autograd and torch's weight decay."""
    random = torch.Generator().manual_seed(protocol.seed)
    train, dev = split
    if dev is None:
        mixed = train[torch.randperm(len(train), generator=random)]
        dev, train = mixed[: len(train) // 20], mixed[len(train) // 20 :]
    classes, features = int(found.labels.max()) + 1, found.features.shape[1]
    layer = nn.Linear(features, classes)
    first = torch.rand(classes, features + 1, generator=torch.Generator().manual_seed(protocol.seed))
    with torch.no_grad():
        layer.weight.copy_((2 * first[:, :-1] - 1) / features**0.5)
        layer.bias.copy_((2 * first[:, -1] - 1) / features**0.5)
    optimizer = protocol.optimizer(layer.parameters(), weight_decay=penalty)
    best, kept, failures, epochs = -1.0, torch.empty(0), 0, 0
    while epochs <= protocol.max_epochs:
        for _ in range(protocol.epoch_size):
            order = train[torch.randperm(len(train), generator=random)]
            for start in range(0, len(order), protocol.batch_size):
                batch = order[start : start + protocol.batch_size]
                optimizer.zero_grad()
                nn.functional.cross_entropy(layer(found.features[batch]), found.labels[batch]).backward()
                optimizer.step()
        epochs += protocol.epoch_size
        reached = float((layer(found.features[dev]).argmax(1) == found.labels[dev]).double().mean())
        if reached > best:
            best, kept = reached, torch.column_stack([layer.weight, layer.bias]).detach()
        elif failures >= protocol.tenacity:
            break
        else:
            failures += 1
    return kept


@pytest.mark.parametrize(
    "protocol", [replace(STANDARD, max_epochs=30), replace(FAST, max_epochs=40, tenacity=0)], ids=["all", "ended"]
)
@pytest.mark.parametrize("held_back", [False, True])
def test_side_by_side_training_is_the_plain_loop_of_each_model(protocol: Protocol, held_back: bool) -> None:
    found = rows(count=150)
    splits = [
        Split(places[:100], None if held_back else places[100:])
        for places in (torch.arange(150), torch.arange(150).roll(70))
    ]
    penalties = [(1e-5, 1e-2), (1e-1, 1e-3)]
    models = TorchClassifier().fit(found, splits, penalties, protocol)
    assert models.shape == (2, 2, 3, 6)
    for split, values, fitted in zip(splits, penalties, models, strict=True):
        for penalty, model in zip(values, fitted, strict=True):
            # float32: some 100 steps of 1e-2 at most, whose sums have another order
            torch.testing.assert_close(model, one_by_one(found, split, penalty, protocol), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("penalty", [1e-4, 1.0])
def test_the_sklearn_classifier_is_a_logistic_regression_on_standardized_features(penalty: float) -> None:
    for classes in (2, 3):
        found = rows(classes=classes)
        train, test = torch.arange(80), torch.arange(80, 120)
        model = SklearnClassifier().fit(found, [Split(train, test)], [(penalty,)], STANDARD)[0, 0]
        reference = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000, tol=1e-8))
        reference.fit(found.features[train].double().numpy(), found.labels[train].numpy())
        scores = found.features[test] @ model[:, :-1].T + model[:, -1]
        chances = reference.predict_proba(found.features[test].double().numpy())
        # the standard deviations are over n - 1 and n; the fit ends at a gradient of 1e-4
        np.testing.assert_allclose(scores.softmax(1).numpy(), chances, atol=5e-3)


def test_folds_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    for count, classes, seed in ((10, 2, 1111), (5, 6, 1111), (3, 3, 7), (7, 1, 0)):
        for size in (classes * count, 101, 500):
            labels = random.permutation(
                np.concatenate([np.arange(size) % classes, np.zeros(size // 2, dtype=int)])
            )
            folds = stratified_folds(torch.from_numpy(labels), count, seed).numpy()
            theirs = StratifiedKFold(count, shuffle=True, random_state=seed).split(labels, labels)
            for fold, (_, held_out) in enumerate(theirs):
                np.testing.assert_array_equal(np.flatnonzero(folds == fold), held_out)


def test_fewer_rows_than_folds_have_none() -> None:
    with pytest.raises(ValueError, match="stratified_folds: expected 10 rows or more, one a fold, got 9"):
        stratified_folds(torch.arange(9) % 2, 10, 0)


class Watching(Classifier):
    """Notes what it is fitted to, and predicts with one bias per call."""

    penalties = (1.0, 2.0)

    def __init__(self) -> None:
        self.fits: list[tuple[list[Split], list[list[float]]]] = []

    def fit(self, rows: Rows, splits, penalties, protocol):  # type: ignore[no-untyped-def]  # the base's types
        del protocol
        self.fits.append((list(splits), [list(values) for values in penalties]))
        classes = int(rows.labels.max()) + 1
        models = torch.zeros(len(splits), len(penalties[0]), classes, rows.features.shape[1] + 1)
        models[..., 0, -1] = 1.0  # always the first class
        return models


def test_every_row_is_held_out_once_from_models_that_never_saw_it() -> None:
    found, watching = rows(count=103), Watching()
    outcome = cross_validate(found, watching, SMALL)
    *inner, (finals, chosen) = watching.fits
    assert len(inner) == SMALL.folds == len(finals)
    everything = set(range(103))
    held_out = [everything - set(train.tolist()) for train, _ in finals]
    assert sorted(place for fold in held_out for place in fold) == list(range(103))
    for (splits, values), (train, dev), fold in zip(inner, finals, held_out, strict=True):
        assert dev is None and values == [[1.0, 2.0]] * SMALL.folds
        seen = [sorted([*split.train.tolist(), *split.dev.tolist()]) for split in splits]
        assert all(places == sorted(train.tolist()) for places in seen) and not fold & set(seen[0])
        assert sorted(place for split in splits for place in split.dev.tolist()) == sorted(train.tolist())
    assert chosen == [[1.0]] * SMALL.folds  # of equals the first
    assert torch.equal(outcome.gold, found.labels) and not outcome.predicted.any()
    share = float((found.labels == 0).double().mean())
    assert accuracy(outcome) == pytest.approx(100 * share)


def test_the_test_rows_choose_nothing() -> None:
    found, watching = rows(count=90), Watching()
    places = torch.arange(90)
    choose_by_folds(found, places[:60], places[60:], watching, SMALL)
    choose_by_dev(found, places[:30], places[30:60], places[60:], watching, SMALL)
    seen = {
        place
        for splits, _ in watching.fits
        for split in splits
        for part in split
        if part is not None
        for place in part.tolist()
    }
    assert seen == set(range(60))


@pytest.mark.parametrize("classifier", rest_slow(reversed(CLASSIFIERS.values())), ids=[*reversed(CLASSIFIERS)])
def test_separable_rows_are_all_right_and_the_same_twice(classifier: Classifier) -> None:
    found = rows(count=300, apart=30.0)  # a twentieth of 200 rows ends the training
    threads = torch.get_num_threads()
    first = outcomes(found, classifier, replace(SMALL, max_epochs=40))
    torch.set_num_threads(threads + 1)
    try:
        again = outcomes(found, classifier, replace(SMALL, max_epochs=40))
    finally:
        torch.set_num_threads(threads)
    assert [accuracy(outcome) for outcome in first] == [100.0] * 3
    assert [outcome.dev for outcome in first] == [outcome.dev for outcome in again]
    assert [len(outcome.gold) for outcome in first] == [300, 100, 100]  # all, a third, a third


def test_a_class_that_no_fitted_row_has_is_never_predicted_by_sklearn() -> None:
    found = rows(classes=3)
    train = torch.nonzero(found.labels != 1)[:, 0]
    model = SklearnClassifier().fit(found, [Split(train, None)], [(1.0,)], STANDARD)[0, 0]
    predicted = predict(model, found.features)
    assert not (predicted == 1).any() and (predicted == 0).any() and (predicted == 2).any()


def test_only_the_sklearn_classifier_needs_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    found = rows(count=300, apart=30.0)
    assert accuracy(cross_validate(found, TorchClassifier(), SMALL)) > 90
    with pytest.raises(ImportError, match=r"SklearnClassifier: .*pip install 'contrastive-text\[evaluation\]'"):
        cross_validate(found, SklearnClassifier(), SMALL)
