"""The torchmetrics classes: batches, resets and ranks give the value of all pairs together."""

import copy
import pickle

import pytest
import torch

from contrastive_text.metrics import (
    Alignment,
    EffectiveRank,
    IsoScore,
    MeanCosine,
    PearsonSimilarity,
    PositiveAlignment,
    SpearmanSimilarity,
    Uniformity,
    alignment,
    effective_rank,
    exact_similarity,
    iso_score,
    mean_cosine,
    pearson,
    positive_pairs,
    spearman,
    uniformity,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


U, V, TARGET = normal(11, 4, seed=1), normal(11, 4, seed=2), normal(11, seed=3)
POSITIVE = positive_pairs(TARGET)
CASES = {
    "alignment": (Alignment(), (U, V), alignment(U, V)),
    "alignment, power 1": (Alignment(alpha=1.0), (U, V), alignment(U, V, alpha=1.0)),
    "alignment of positives": (PositiveAlignment(), (U, V, TARGET), alignment(U[POSITIVE], V[POSITIVE])),
    "effective rank": (EffectiveRank(), (U,), effective_rank(U)),
    "iso score": (IsoScore(), (U,), iso_score(U)),
    "mean cosine": (MeanCosine(), (U,), mean_cosine(U)),
    "pearson": (PearsonSimilarity(), (U, V, TARGET), 100 * pearson(exact_similarity(U, V), TARGET)),
    "spearman": (SpearmanSimilarity(), (U, V, TARGET), 100 * spearman(exact_similarity(U, V), TARGET)),
    "uniformity": (Uniformity(), (U,), uniformity(U)),
    "uniformity, t 3": (Uniformity(t=3.0), (U,), uniformity(U, t=3.0)),
}


@pytest.fixture(params=CASES, name="case")
def fixture_case(request):
    metric, inputs, expected = CASES[request.param]
    return copy.deepcopy(metric), inputs, expected


def test_uneven_batches_give_the_value_of_the_whole(case):
    metric, inputs, expected = case
    for part in zip(*(tensor.split([5, 1, 5]) for tensor in inputs), strict=True):
        metric.update(*part)
    torch.testing.assert_close(metric.compute(), expected)


def test_a_reset_forgets_all_batches(case):
    metric, inputs, expected = case
    metric.update(*(tensor * 2 + 1 for tensor in inputs))
    metric.reset()
    metric.update(*inputs)
    torch.testing.assert_close(metric.compute(), expected)


def test_two_ranks_give_the_value_of_the_whole(case):
    # As torchmetrics synchronises: "sum" states are added, "cat" states concatenated in rank order.
    metric, inputs, expected = case
    other = copy.deepcopy(metric)
    metric.update(*(tensor[:4] for tensor in inputs))
    other.update(*(tensor[4:] for tensor in inputs))
    for name, reduction in metric._reductions.items():
        mine, theirs = getattr(metric, name), getattr(other, name)
        both = torch.cat(mine + theirs) if isinstance(mine, list) else reduction(torch.stack([mine, theirs]))
        setattr(metric, name, both)
    torch.testing.assert_close(metric.compute(), expected)


def test_a_pickled_metric_gives_the_same_value(case):
    metric, inputs, expected = case
    metric.update(*inputs)
    torch.testing.assert_close(pickle.loads(pickle.dumps(metric)).compute(), expected)


def test_states_hold_no_graph(case):
    metric, inputs, _ = case
    metric.update(*(tensor.clone().requires_grad_() for tensor in inputs))
    assert not metric.compute().requires_grad


def test_e2_ties_take_average_ranks():
    # Unit vectors at these cosines to (1, 0): system scores .5, .5, .2, .9
    cosines = torch.tensor([0.5, 0.5, 0.2, 0.9], dtype=torch.float64)
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    v = torch.stack([cosines, (1 - cosines.square()).sqrt()], dim=1)
    metric = SpearmanSimilarity()
    metric.update(u, v, target=torch.tensor([3, 1, 1, 5]))
    assert metric.compute().item() == pytest.approx(83.33333333, abs=1e-7)


def test_e3_a_zero_vector_counts_as_similarity_zero():
    u = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    v = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    metric = SpearmanSimilarity()
    metric.update(u, v, target=torch.tensor([5.0, 3.0, 1.0]))
    assert metric.compute().item() == pytest.approx(100.0)


def test_a_collapsed_encoder_scores_zero_with_a_warning():
    metric = SpearmanSimilarity()
    metric.update(torch.ones(3, 2), torch.ones(3, 2), target=torch.arange(3.0))
    with pytest.warns(UserWarning, match="collapsed"):
        assert metric.compute().item() == 0


def test_nan_vectors_are_refused():
    metric = SpearmanSimilarity()
    metric.update(torch.full((3, 2), torch.nan), torch.ones(3, 2), target=torch.arange(3.0))
    with pytest.raises(ValueError, match="NaN or infinity"):
        metric.compute()


def test_a_target_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"SpearmanSimilarity\.target"):
        SpearmanSimilarity().update(U, V, target=TARGET.unsqueeze(1))


def test_settings_out_of_range_are_refused_at_construction():
    with pytest.raises(ValueError, match=r"Alignment\.alpha"):
        Alignment(alpha=0.0)
    with pytest.raises(ValueError, match=r"Uniformity\.t"):
        Uniformity(t=-2.0)


def test_one_vector_has_no_uniformity():
    metric = Uniformity()
    metric.update(torch.ones(1, 2))
    with pytest.raises(ValueError, match="n >= 2"):
        metric.compute()
