"""Properties that every public metric has: functions of vectors, other functions, and torchmetrics classes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torchmetrics import Metric

from contrastive_text import metrics
from contrastive_text.core.targets import Classes


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


N = 15
LABELS = torch.arange(N) % 3
# Functions of vectors that are paired or alone, (N, D): name -> the figure, a number or a row of numbers.
OF_VECTORS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "alignment": metrics.alignment,
    "uniformity": lambda x, _: metrics.uniformity(x),
    "effective_rank": lambda x, _: metrics.effective_rank(x),
    "spectrum": lambda x, _: metrics.spectrum(x),
    "mean_cosine": lambda x, _: metrics.mean_cosine(x),
    "iso_score": lambda x, _: metrics.iso_score(x),
    "hubness": lambda x, _: torch.tensor(metrics.hubness(x, k=3)),
    "k_occurrences": lambda x, _: metrics.k_occurrences(x, k=3).sort().values,
    "nearest_similarity": lambda x, _: metrics.nearest_similarity(x).sort().values,
    "nearest_neighbor_accuracy": lambda x, _: torch.tensor(
        metrics.nearest_neighbor_accuracy(x, LABELS[: len(x)], k=1)
    ),
    "neighbor_overlap": lambda x, y: metrics.neighbor_overlap(x, y, k=3),
    "linear_cka": metrics.linear_cka,
    "pair_similarity": lambda x, y: metrics.pair_similarity(x, y).sort().values,
    "exact_similarity": lambda x, y: metrics.exact_similarity(x, y).sort().values,
    "answer_ranks": lambda x, y: metrics.answer_ranks(x, y, torch.arange(len(x))).sort().values,
    "in_batch_accuracy": lambda x, y: metrics.in_batch_accuracy(x, y, torch.arange(len(x))),
    "paired_retrieval": lambda x, y: torch.tensor(metrics.paired_retrieval(x, y)),
    "off_diagonal": lambda x, _: metrics.off_diagonal(x),
}
U, V, TARGET = normal(11, 4, seed=1), normal(11, 4, seed=2), normal(11, seed=3)
CLASSES, SCORES = torch.arange(11) % 2, normal(11, 2, seed=4)
# Other functions: name -> their inputs.
OF_VALUES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "spearman": (metrics.spearman, (U[:, 0], V[:, 0])),
    "pearson": (metrics.pearson, (U[:, 0], V[:, 0])),
    "average_ranks": (metrics.average_ranks, (TARGET.round(),)),
    "positive_pairs": (metrics.positive_pairs, (TARGET,)),
    "f1": (metrics.f1, (SCORES.argmax(dim=1), CLASSES)),
    "matthews": (metrics.matthews, (SCORES.argmax(dim=1), CLASSES)),
    "guide_agreement": (metrics.guide_agreement, (U, V, torch.eye(11, 4) > 0)),
    "ranking_scores": (metrics.ranking_scores, (torch.arange(100).expand(2, 100), [{3: 1.0}, {0: 2.0, 9: 1.0}])),
    "holm": (metrics.holm, ([0.01, 0.04, 0.03],)),
    "extra_metrics": (lambda target: [*metrics.extra_metrics(target)], (Classes(("no", "yes")),)),
    "paired_bootstrap_mean": (
        lambda *values: metrics.paired_bootstrap_mean(
            *values, resamples=20, generator=torch.Generator().manual_seed(0)
        ),
        (U[:, 0], V[:, 0]),
    ),
    "paired_bootstrap_spearman": (
        lambda *values: metrics.paired_bootstrap_spearman(
            *values, resamples=20, generator=torch.Generator().manual_seed(0)
        ),
        (U[:, 0], V[:, 0], TARGET),
    ),
}
POSITIVE = metrics.positive_pairs(TARGET)
# Classes: a metric, its inputs, and its value from the function under it.
CLASSES_OF_METRICS: dict[str, tuple[Metric, tuple[Tensor, ...], Tensor]] = {
    "Alignment": (metrics.Alignment(), (U, V), metrics.alignment(U, V)),
    "Alignment, power 1": (metrics.Alignment(alpha=1.0), (U, V), metrics.alignment(U, V, alpha=1.0)),
    "PositiveAlignment": (
        metrics.PositiveAlignment(),
        (U, V, TARGET),
        metrics.alignment(U[POSITIVE], V[POSITIVE]),
    ),
    "EffectiveRank": (metrics.EffectiveRank(), (U,), metrics.effective_rank(U)),
    "IsoScore": (metrics.IsoScore(), (U,), metrics.iso_score(U)),
    "MeanCosine": (metrics.MeanCosine(), (U,), metrics.mean_cosine(U)),
    "Uniformity": (metrics.Uniformity(), (U,), metrics.uniformity(U)),
    "Uniformity, t 3": (metrics.Uniformity(t=3.0), (U,), metrics.uniformity(U, t=3.0)),
    "PearsonSimilarity": (
        metrics.PearsonSimilarity(),
        (U, V, TARGET),
        100 * metrics.pearson(metrics.exact_similarity(U, V), TARGET),
    ),
    "SpearmanSimilarity": (
        metrics.SpearmanSimilarity(),
        (U, V, TARGET),
        100 * metrics.spearman(metrics.exact_similarity(U, V), TARGET),
    ),
    "F1": (metrics.F1(), (SCORES, CLASSES), metrics.f1(SCORES.argmax(dim=1), CLASSES)),
    "Matthews": (metrics.Matthews(), (SCORES, CLASSES), metrics.matthews(SCORES.argmax(dim=1), CLASSES)),
    "Spearman": (metrics.Spearman(), (SCORES[:, 0], TARGET), metrics.spearman(SCORES[:, 0], TARGET)),
}
of_vectors = pytest.mark.parametrize("name", OF_VECTORS)
every_class = pytest.mark.parametrize("name", CLASSES_OF_METRICS)
RECORDS = {"Hubs", "PairedBootstrap", "RetrievalScores"}
"""Results of functions."""


def test_every_public_metric_has_an_entry() -> None:
    public = {name for name in metrics.__all__ if callable(vars(metrics)[name])} - RECORDS
    classes = {name.partition(",")[0] for name in CLASSES_OF_METRICS}
    assert public == {*OF_VECTORS, *OF_VALUES} | classes
    assert all(type(each[0]).__name__ == name.partition(",")[0] for name, each in CLASSES_OF_METRICS.items())
    assert all(">>> " in str(vars(metrics)[name].__doc__) for name in public)


# Functions


def close(one: Any, other: Any) -> None:  # Any: a number, or numbers
    """Both are equal up to rounding, in whatever floating type."""
    torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), check_dtype=False)


@of_vectors
def test_a_rotation_and_another_order_change_nothing(name: str) -> None:
    figure, x, y = OF_VECTORS[name], normal(N, 4) + 0.2, normal(N, 4, seed=1)
    rotation = torch.linalg.qr(normal(4, 4, seed=2)).Q
    # Labels of vectors, three in turn, stay those of their places.
    order = torch.randperm(5, generator=torch.Generator().manual_seed(3)).repeat_interleave(3) * 3
    order = order + torch.arange(3).repeat(5)
    if name not in ("off_diagonal", "spectrum"):
        close(figure(x @ rotation, y @ rotation), figure(x, y))
    close(figure(x[order], y[order]), figure(x, y))


@of_vectors
def test_the_length_of_vectors_changes_nothing_that_reads_directions(name: str) -> None:
    figure, x, y = OF_VECTORS[name], normal(N, 4) + 0.2, normal(N, 4, seed=1)
    lengths = torch.linspace(0.1, 10, N, dtype=torch.float64).unsqueeze(1)
    if name in ("linear_cka", "off_diagonal"):
        lengths = torch.full_like(lengths, 3.0)  # one length for all
    close(figure(x * lengths, y), figure(x, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@of_vectors
def test_half_precision_and_autocast_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    figure, x, y = OF_VECTORS[name], normal(N, 8).to(dtype), normal(N, 8, seed=1).to(dtype)
    plain = figure(x.float(), y.float())
    close(figure(x, y), plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(figure(x.float(), y.float()), plain)


@of_vectors
def test_blocks_of_rows_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, x, y = OF_VECTORS[name], normal(N, 4), normal(N, 4, seed=1)
    whole = figure(x, y)
    for values in (1, 40):  # a row at a time; some
        monkeypatch.setattr(metrics.geometry, "_BLOCK_VALUES", values)
        close(figure(x, y), whole)


def plain(result: Any) -> Any:  # Any: of a metric
    """The result as numbers that can be compared."""
    if isinstance(result, metrics.PairedBootstrap):
        return result.difference, result.resample_differences.tolist()
    if isinstance(result, dict):
        return {name: plain(each) for name, each in result.items()}
    return result.tolist() if isinstance(result, Tensor) else result


@pytest.mark.parametrize("name", [*OF_VECTORS, *OF_VALUES])
def test_a_function_leaves_its_inputs_as_they_are_and_has_one_value(name: str) -> None:
    sides = (normal(N, 4), normal(N, 4, seed=1))
    function, inputs = (OF_VECTORS[name], sides) if name in OF_VECTORS else OF_VALUES[name]
    before = copy.deepcopy(inputs)
    one, other = (function(*inputs) for _ in range(2))
    assert plain(one) == plain(other)
    for each, was in zip(inputs, before, strict=True):
        assert torch.equal(each, was) if isinstance(each, Tensor) else each == was


# Classes


def case(name: str) -> tuple[Metric, tuple[Tensor, ...], Tensor]:
    metric, inputs, expected = CLASSES_OF_METRICS[name]
    return copy.deepcopy(metric), inputs, expected


@every_class
def test_uneven_batches_give_the_value_of_the_whole(name: str) -> None:
    metric, inputs, expected = case(name)
    for part in zip(*(tensor.split([5, 1, 5]) for tensor in inputs), strict=True):
        metric.update(*part)
    close(metric.compute(), expected)


@every_class
def test_a_reset_forgets_all_batches(name: str) -> None:
    metric, inputs, expected = case(name)
    metric.update(*(tensor.flip(0) for tensor in inputs[:1]), *inputs[1:])
    metric.reset()
    metric.update(*inputs)
    close(metric.compute(), expected)


@every_class
def test_two_ranks_give_the_value_of_the_whole(name: str) -> None:
    # As torchmetrics synchronizes: "sum" states are added, "cat" states concatenated in rank order.
    metric, inputs, expected = case(name)
    other = copy.deepcopy(metric)
    metric.update(*(tensor[:4] for tensor in inputs))
    other.update(*(tensor[4:] for tensor in inputs))
    for state, reduction in metric._reductions.items():
        mine, theirs = getattr(metric, state), getattr(other, state)
        both = torch.cat(mine + theirs) if isinstance(mine, list) else reduction(torch.stack([mine, theirs]))  # type: ignore[operator,misc]  # torchmetrics' own
        setattr(metric, state, both)
    close(metric.compute(), expected)


@every_class
def test_a_pickled_metric_has_the_same_value_and_states_hold_no_graph(name: str) -> None:
    metric, inputs, expected = case(name)
    metric.update(*(each.clone().requires_grad_(each.is_floating_point()) for each in inputs))
    value = pickle.loads(pickle.dumps(metric)).compute()
    assert not metric.compute().requires_grad
    close(value, expected)
