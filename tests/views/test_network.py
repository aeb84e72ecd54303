"""The step along a gradient, and where gradients of embeddings come from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ROWS, encoder_of, ragged
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.random import RowRandom
from contrastive_text.losses import NTXent
from contrastive_text.poolers import MeanPooler
from contrastive_text.views import (
    Adversarial,
    ViewPlan,
)
from contrastive_text.views.embeddings import fgv_perturbation

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def loss_of(vectors: Tensor) -> Tensor:
    anchor, positive = vectors.chunk(2)
    value: Tensor = NTXent(temperature=0.1)(anchor, positive)
    return value


def test_k9_the_perturbation_is_the_unit_gradient_of_each_token_and_zero_without_one(
    vectors: dict[str, Any],
) -> None:
    vector = vectors["fgv"]
    gradient = torch.tensor(vector["grad_per_token"])
    noise = fgv_perturbation(gradient, norm=vector["noise_norm"])
    # The vector is printed with 8 digits after the point.
    torch.testing.assert_close(noise, torch.tensor(vector["noise"]), rtol=0, atol=5e-9 + 1e-7 * 0.8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.0, 1e-7, 1.0, 1e4])
def test_k9_a_perturbation_has_its_norm_or_is_zero_in_every_precision(dtype: torch.dtype, size: float) -> None:
    gradient = torch.full((2, 3, 4), size, dtype=dtype)
    noise = fgv_perturbation(gradient, norm=0.5)
    length = noise.norm(dim=2)
    # 1e-10 beside a norm of 2e-7, and the roundings of float32.
    torch.testing.assert_close(length, torch.full_like(length, 0.5 * bool(size)), rtol=6e-4, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(norm=st.floats(0, 3), rows=st.integers(0, 3), seed=st.integers(0, 99))
def test_the_adversarial_view_moves_each_token_by_its_own_gradient_and_no_padding(
    dtype: torch.dtype, norm: float, rows: int, seed: int
) -> None:
    noise = torch.Generator().manual_seed(seed)
    embeddings, gradient = (torch.randn(rows, 4, 3, generator=noise).to(dtype) for _ in range(2))
    mask, rng = torch.arange(4) < torch.arange(2, 2 + rows).unsqueeze(1), RowRandom(torch.arange(rows))
    before = embeddings.clone(), gradient.clone(), mask.clone()
    view = Adversarial(norm)(embeddings, gradient, mask, rng)
    assert all(torch.equal(*pair) for pair in zip((embeddings, gradient, mask), before, strict=True))
    assert view.dtype == dtype
    assert torch.equal(view[~mask], embeddings[~mask])
    for i in range(rows):
        for place in range(int(mask[i].sum())):
            step = fgv_perturbation(gradient[i, place], norm).to(dtype)
            assert torch.equal(view[i, place], embeddings[i, place] + step)


def test_the_adversarial_step_raises_the_loss_by_the_gradient_s_length() -> None:
    encoder, batch = encoder_of("bert"), ragged(*ROWS)
    entered: list[Tensor] = []

    def enter(embeddings: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG001  # the contract
        entered.append(embeddings.detach().requires_grad_())
        return entered[-1]

    clean = loss_of(MeanPooler()(encoder(batch, alter=enter)))
    (gradient,) = torch.autograd.grad(clean, entered)
    norm = 1e-6
    plan = ViewPlan({"positive": [Adversarial(norm)]})
    raised = loss_of(MeanPooler()(encoder(batch, alter=plan.alter_embeddings(batch, gradient))))
    expected = norm * gradient[3:].norm(dim=2).sum()
    assert float(expected) > 1e-7
    # The second order adds 0.4 times the norm here (measured for norms of 1e-4 to 1e-6), relative to the first.
    torch.testing.assert_close(raised - clean, expected, rtol=norm, atol=0)
