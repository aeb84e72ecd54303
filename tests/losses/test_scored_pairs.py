"""Losses of scored pairs against loops, finite differences and sentence-transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import CoSENT, cosent_loss

# Exponents up to 2 / 0.02 = 100 in float64, sums of at most some 40.
ROUNDING = 1e-11
TEMPERATURES = st.floats(0.02, 5.0)


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def cosent_by_hand(cosines: Sequence[float], scores: Sequence[float], temperature: float) -> float:
    """log(1 + sum exp), pair of pairs by pair of pairs, the largest exponent taken out first."""
    exponents = [0.0]
    for i in range(len(cosines)):
        for j in range(len(cosines)):
            if scores[i] > scores[j]:
                exponents.append((cosines[j] - cosines[i]) / temperature)
    largest = max(exponents)
    total = 0.0
    for exponent in exponents:
        total += math.exp(exponent - largest)
    return largest + math.log(total)


@st.composite
def scored(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    """Cosines and scores of one to eight pairs; with six scores, ties are common."""
    n = draw(st.integers(1, 8))
    cosines = draw(st.lists(st.floats(-1, 1), min_size=n, max_size=n))
    scores = draw(st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), min_size=n, max_size=n))
    return cosines, scores


@given(case=scored(), temperature=TEMPERATURES)
def test_cosent_equals_the_double_loop(case: tuple[list[float], list[float]], temperature: float) -> None:
    cosines, scores = case
    expected = cosent_by_hand(cosines, scores, temperature)
    reached = CoSENT(temperature=temperature)(double(*cosines), double(*scores))
    assert float(reached) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def cosent_of_all_pairs(cosines: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """The matrix of all pairs of pairs, for its gradient."""
    exponents = (cosines.unsqueeze(0) - cosines.unsqueeze(1)) / temperature
    compared = scores.unsqueeze(1) > scores.unsqueeze(0)
    return torch.cat([exponents.new_zeros(1), exponents[compared]]).logsumexp(dim=0)


@given(
    n=st.integers(1, 40),
    levels=st.sampled_from([1, 2, 5, 1000]),
    temperature=st.floats(0.002, 5.0),
    seed=st.integers(0, 2**31),
)
def test_the_gradient_of_cosent_is_that_of_all_pairs(n: int, levels: int, temperature: float, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (n,), generator=noise).double()
    found = []
    for compute in (cosent_of_all_pairs, cosent_loss):
        cosines = (2 * torch.rand(n, generator=noise.manual_seed(seed), dtype=torch.float64) - 1).requires_grad_()
        value = compute(cosines, scores, temperature)
        value.backward()
        assert cosines.grad is not None
        found.append((value.detach(), cosines.grad))
    (expected, gradient), (reached, streamed) = found
    torch.testing.assert_close(reached, expected, rtol=1e-10, atol=1e-12)
    # The promise of every way to compute a step: 1e-10 of the largest entry, in float64.
    torch.testing.assert_close(streamed, gradient, rtol=0, atol=1e-10 * float(gradient.abs().max()))


@pytest.mark.slow
def test_cosent_of_many_pairs_keeps_float32s_digits_and_no_matrix() -> None:
    noise = torch.Generator().manual_seed(1)
    cosines = (2 * torch.rand(3000, generator=noise) - 1).requires_grad_()
    scores, sizes = torch.rand(3000, generator=noise), [0]

    def note(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        value = cosent_loss(cosines, scores, temperature=0.05)
    value.backward()
    exact = cosines.detach().double().requires_grad_()
    expected = cosent_of_all_pairs(exact, scores, 0.05)
    expected.backward()
    assert value.dtype == torch.float32
    assert cosines.grad is not None
    assert exact.grad is not None
    # The value is rounded once, at 1e-7 of it; so is each entry of the gradient.
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    torch.testing.assert_close(
        cosines.grad.double(), exact.grad, rtol=0, atol=1e-6 * float(exact.grad.abs().max())
    )
    assert max(sizes) <= 3001


def test_cosent_of_no_pairs_is_zero() -> None:
    cosines = torch.zeros(0, requires_grad=True)
    value = cosent_loss(cosines, torch.zeros(0), temperature=0.05)
    value.backward()
    assert float(value.detach()) == 0.0


def test_cosent_equals_sentence_transformers() -> None:
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    noise = torch.Generator().manual_seed(0)
    u, v = (torch.randn(9, 5, generator=noise, dtype=torch.float64) for _ in range(2))
    scores = torch.randint(0, 6, (9,), generator=noise).double() / 5
    theirs = CoSENTLoss(model=torch.nn.Identity(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([u, v], scores)
    cosines = torch.nn.functional.cosine_similarity(u, v)
    assert float(CoSENT(temperature=0.05)(cosines, scores)) == pytest.approx(float(expected), abs=ROUNDING)


@given(case=scored())
def test_cosent_knows_only_the_order_of_the_scores(case: tuple[list[float], list[float]]) -> None:
    cosines, scores = double(*case[0]), double(*case[1])
    assert torch.equal(CoSENT()(cosines, scores), CoSENT()(cosines, 7 * scores.exp() - 3))


def test_cosent_of_equal_scores_is_zero_with_a_gradient_of_zero() -> None:
    cosines = double(0.3, -0.2).requires_grad_()
    loss = CoSENT()(cosines, double(0.4, 0.4))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert cosines.grad is not None
    assert torch.equal(cosines.grad, torch.zeros_like(cosines))
