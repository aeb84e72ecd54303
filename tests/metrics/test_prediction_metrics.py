"""Metrics of predictions: equal to scikit-learn's and scipy's, over batches too, and where nothing is defined."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from contrastive_text.core.targets import Classes, Scores
from contrastive_text.metrics import extra_metrics, matthews

NUMBERS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)


@given(rows=NUMBERS)
def test_accuracy_f1_and_matthews_are_those_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predicted, true = (torch.tensor(numbers) for numbers in zip(*rows, strict=True))
    target = Classes(("no", "yes"))
    metrics = dict([target.metric()]) | extra_metrics(target)
    for metric in metrics.values():
        metric.update(torch.eye(2)[predicted], true)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs: nothing is predicted or true
        theirs = {
            "accuracy": accuracy_score(true, predicted),
            "f1": f1_score(true, predicted, zero_division=0.0),
            "matthews": matthews_corrcoef(true, predicted),
        }
    # torchmetrics' accuracy is in float32, ours in float64.
    assert {name: float(metric.compute()) for name, metric in metrics.items()} == pytest.approx(theirs, abs=1e-6)


@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_matthews_of_several_classes_is_scikit_learn_s(rows: list[tuple[int, int]]) -> None:
    predicted, true = zip(*rows, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = matthews_corrcoef(true, predicted)
    assert float(matthews(torch.tensor(predicted), torch.tensor(true))) == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 2**31), count=st.integers(3, 40))
def test_correlations_of_scores_are_those_of_scipy(seed: int, count: int) -> None:
    predicted, further = torch.rand(2, count, generator=torch.Generator().manual_seed(seed))
    gold = (5 * predicted + further).round() / 6  # with ties
    gold[0], gold[1] = 0.0, 1.0
    target = Scores()
    metrics = dict([target.metric()]) | extra_metrics(target)
    for metric in metrics.values():
        metric.update(predicted, gold)
    theirs = {
        "pearson": pearsonr(predicted.double(), gold.double()).statistic,
        "spearman": spearmanr(predicted, gold).statistic,
    }
    # float32
    assert {name: float(metric.compute()) for name, metric in metrics.items()} == pytest.approx(theirs, abs=1e-4)


def test_classes_that_are_more_than_two_have_no_further_metrics() -> None:
    assert extra_metrics(Classes(("a", "b", "c"))) == {}
