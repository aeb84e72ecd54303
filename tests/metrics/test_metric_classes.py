"""The torchmetrics classes: batches, resets and ranks give the value of all pairs together."""

import pytest
import torch

from contrastive_text.metrics import (
    Alignment,
    SpearmanSimilarity,
    Uniformity,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


U, V, TARGET = normal(11, 4, seed=1), normal(11, 4, seed=2), normal(11, seed=3)


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
