"""Whitening and the removal of components: what they do to the fitted vectors, and in a saved model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from covering import crossed
from torch import Tensor, nn

from contrastive_text import SentenceEncoder
from contrastive_text.inference.postprocessing import (
    fit_component_removal,
    fit_whitening,
    with_layer,
    without_normalization,
)
from contrastive_text.poolers import MeanPooler


def spread(n: int = 200, width: int = 12, seed: int = 0) -> Tensor:
    """Vectors far from the origin, with spreads from 1 to 0.01 along turned axes."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q
    scales = torch.logspace(0, -2, width, dtype=torch.float64)
    return 3 + torch.randn(n, width, generator=generator, dtype=torch.float64) * scales @ axes


def model(folder: Path, head: nn.Sequential | None = None, normalize: bool = False) -> SentenceEncoder:
    made = SentenceEncoder.from_pretrained(tiny.save_bert(folder, seed=1), pooler=MeanPooler(), device="cpu")
    return SentenceEncoder(made.encoder, made.pooler, head=head, normalize=normalize).eval()


# The maps


@pytest.mark.parametrize("features", [None, 12, 5])
def test_whitened_vectors_have_mean_zero_and_covariance_one(features: int | None) -> None:
    vectors = spread()
    layer = fit_whitening(vectors, features)
    white = layer(vectors)
    width = features or 12
    one, zero = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    # 1e-6 and 1e-4: the smallest spread is 0.003 of the length, so rounding grows by 300, twice in a covariance.
    torch.testing.assert_close(torch.cov(white.T), one, atol=1e-6, rtol=0)
    torch.testing.assert_close(white.mean(dim=0), zero, atol=1e-6, rtol=0)
    rough = layer.float()(vectors.float())
    torch.testing.assert_close(torch.cov(rough.T), one.float(), atol=1e-4, rtol=0)


def test_whitening_is_the_authors_kernel_but_for_signs() -> None:
    vectors = spread(60, 4)
    covariance = np.cov(vectors.numpy().T)
    u, s, _ = np.linalg.svd(covariance)
    kernel = u @ np.diag(1 / np.sqrt(s))
    expected = (vectors.numpy() - vectors.numpy().mean(axis=0)) @ kernel[:, :3]
    white = fit_whitening(vectors, features=3)(vectors).numpy()
    signs = np.sign((expected * white).sum(axis=0))
    # float64; the eigenvalues of a covariance keep half the digits of singular values
    np.testing.assert_allclose(white * signs, expected, atol=1e-8)


def test_equal_vectors_give_an_equal_map_whatever_their_order() -> None:
    vectors = spread()
    there, back = fit_whitening(vectors), fit_whitening(vectors.flip(0))
    torch.testing.assert_close(
        there.weight, back.weight, atol=1e-8, rtol=1e-8
    )  # order of sums, grown by 1 / 0.01


@pytest.mark.parametrize("components", [None, 1, 3])
def test_nothing_is_left_along_the_removed_components_and_all_else_stays(components: int | None) -> None:
    vectors = spread()
    layer = fit_component_removal(vectors, components)
    centered = (vectors - vectors.mean(dim=0)).numpy()
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    count = components or 1  # 12 / 100, and one at least
    removed = layer(vectors).numpy()
    assert np.abs(removed @ axes[:count].T).max() < 1e-12  # float64, of vectors of length 1
    np.testing.assert_allclose(removed @ axes[count:].T, centered @ axes[count:].T, atol=1e-12)


def test_one_component_of_a_hundred_features_is_the_rule_of_thumb() -> None:
    layer = fit_component_removal(spread(400, 300))
    assert int(torch.linalg.matrix_rank(layer.weight)) == 297


def test_a_direction_without_any_spread_is_left_out_of_a_whitening() -> None:
    vectors = torch.cat([spread(), torch.full((200, 1), 2.0, dtype=torch.float64)], dim=1)
    vectors[:, 3] = vectors[:, :3].sum(dim=1)
    rounded = vectors.float()
    assert fit_whitening(rounded).out_features == 11  # of 13: a constant and a sum of others
    assert fit_component_removal(rounded, 10).out_features == 13
    with pytest.raises(ValueError, match="at most 11, the directions in which these 200 texts differ, got 12"):
        fit_whitening(rounded, features=12)
    with pytest.raises(ValueError, match="components: expected 1 to 10"):
        fit_component_removal(rounded, 11)


# In a model


@pytest.mark.parametrize(("headed", "normalize"), crossed([False, True], [True, False]))
def test_a_model_is_saved_with_its_map_and_loads_equal_here_and_in_sentence_transformers(
    tmp_path: Path, headed: bool, normalize: bool
) -> None:
    from sentence_transformers import SentenceTransformer

    with torch.random.fork_rng():
        torch.manual_seed(3)
        head = nn.Sequential(nn.Linear(16, 14), nn.Tanh(), nn.Linear(14, 12)) if headed else None
    before = model(tmp_path / "bert", head, normalize)
    vectors = torch.as_tensor(without_normalization(before).encode(tiny.TEXTS))
    after = with_layer(before, fit_whitening(vectors, features=8))
    by_hand = fit_whitening(vectors, features=8).float()(vectors)
    expected = nn.functional.normalize(by_hand, dim=1) if normalize else by_hand
    found = torch.as_tensor(after.encode(tiny.TEXTS))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)  # float32, of values near 1
    after.save_pretrained(tmp_path / "white")
    again = SentenceEncoder.from_pretrained(tmp_path / "white", device="cpu")
    np.testing.assert_allclose(again.encode(tiny.TEXTS), found, atol=1e-6)  # the same weights
    theirs = SentenceTransformer(str(tmp_path / "white"), device="cpu").encode(list(tiny.TEXTS))
    # They pad, which sums in another order; the map multiplies that by one over the smallest spread.
    np.testing.assert_allclose(theirs, found, atol=5e-5)
    kinds = [
        part["type"].rpartition(".")[2] for part in json.loads((tmp_path / "white/modules.json").read_text())
    ]
    assert kinds == ["Transformer", "Pooling", *["Dense"] * (3 if headed else 1), *["Normalize"] * normalize]


def test_the_model_itself_stays_as_it_is(tmp_path: Path) -> None:
    before = model(tmp_path, nn.Sequential(nn.Linear(16, 10)), normalize=True)
    identity, vectors = before.identity, before.encode(tiny.TEXTS)
    layer = fit_component_removal(torch.as_tensor(without_normalization(before).encode(tiny.TEXTS)))
    after = with_layer(before, layer)
    assert before.identity == identity != after.identity
    assert np.array_equal(before.encode(tiny.TEXTS), vectors)
    assert layer.weight.dtype == torch.float64  # the copy in the model is float32
    assert after.head is not None and after.head[-1].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("fit", "vectors", "number", "words"),
    [
        (fit_whitening, spread(12), None, r"more than 12 texts for 12 features, got 12; .*\(some 120.*below 12"),
        (fit_whitening, spread(1), None, "two texts or more, got"),
        (fit_whitening, spread() * torch.nan, None, "got NaN or infinity"),
        (fit_whitening, spread(), 0, "expected 1 to 12.*got 0"),
        (fit_whitening, spread(), 13, "expected 1 to 12.*got 13"),
        (fit_component_removal, spread(), 0, "expected 1 to 11.*got 0"),
        (fit_component_removal, spread(), 13, "expected 1 to 11.*got 13"),
        (fit_component_removal, torch.ones(4, 3), None, "differ in 2 or more directions, got 4 that differ in 0"),
    ],
)
def test_vectors_or_a_number_that_give_no_map_are_refused(
    fit: Callable[..., nn.Linear], vectors: Tensor, number: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        fit(vectors, number)


def test_a_map_of_other_vectors_and_a_model_that_drops_features_are_refused(tmp_path: Path) -> None:
    plain = model(tmp_path)
    with pytest.raises(ValueError, match="the model's 16 features, got 12"):
        with_layer(plain, fit_whitening(spread()))
    plain.truncate_dim = 4
    with pytest.raises(ValueError, match="keeps its 16 features, got truncate_dim: 4"):
        without_normalization(plain)
