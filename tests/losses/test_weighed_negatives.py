"""Negatives that weigh by their hardness, and those that are expected to be positives (debiased)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import DebiasedNTXent, InfoNCE, NTXent
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives import Contrastive, Duplicates, Siblings

EXACT = 1e-9
ROUNDING = 1e-11
CASES = st.tuples(
    st.integers(1, 5), st.integers(0, 2), st.sampled_from([None, 2, 8]), st.integers(0, 2**31)
)  # examples, hard negatives each, ids, seed


@pytest.fixture(scope="module")
def texts(methods: dict[str, Any]) -> list[Tensor]:
    return [torch.tensor(methods["inputs"][name], dtype=torch.float64) for name in "APH"]


def examples(n: int, hard: int, ids: int | None, seed: int) -> Triples:
    noise = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2 + hard, n, 4, generator=noise, dtype=torch.float64)
    every = Triples.distinct(drawn[0], drawn[1], drawn[2:].transpose(0, 1) if hard else None)
    if ids is None:
        return every
    known = torch.randint(ids, (n, 2 + hard), generator=noise)
    return replace(
        every,
        anchor_ids=known[:, 0],
        positive_ids=known[:, 1],
        negative_ids=known[:, 2:] if hard else None,
    )


def slow_rows(every: Triples, same_side: bool) -> list[tuple[float, list[float], list[float]]]:
    return reference.rows(
        every.anchor.tolist(),
        every.positive.tolist(),
        [] if every.negative is None else every.negative.tolist(),
        same_side,
        every.anchor_ids.tolist(),
        every.positive_ids.tolist(),
        None if every.negative_ids is None else every.negative_ids.tolist(),
    )


# Hardness


def test_hardness_hard5_t0_05(methods: dict[str, Any], texts: list[Tensor]) -> None:
    # In this value only a row's own hard negative is a candidate beside the positives.
    a, p, h = texts
    loss = InfoNCE(temperature=0.05, hard_negative_hardness=5.0)
    every = Triples.distinct(a, p, h)
    (block,) = loss.comparisons(every, every)
    assert float(loss.terms(block).mean()) == pytest.approx(methods["hardness_hard5_T0.05"], abs=EXACT)


def test_hardness_inbatch9_t0_05(methods: dict[str, Any], texts: list[Tensor]) -> None:
    loss = InfoNCE(temperature=0.05, in_batch_hardness=9.0)
    assert float(loss(*texts)) == pytest.approx(methods["hardness_inbatch9_T0.05"], abs=EXACT)


@given(case=CASES)
@pytest.mark.parametrize(("in_batch", "own_alpha"), [(9.0, 0.0), (0.0, 5.0), (2.0, 3.0)])
def test_hardness_equals_the_double_loop(
    in_batch: float, own_alpha: float, case: tuple[int, int, int | None, int]
) -> None:
    every = examples(*case)
    expected = []
    for target, own, others in slow_rows(every, same_side=False):
        logits = [target / 0.2, *(c / 0.2 + own_alpha * c + 0.7 for c in own)]
        logits += [c / 0.2 + in_batch * c for c in others]
        expected.append(reference.cross_entropy(target / 0.2, logits))
    loss = InfoNCE(
        0.2, hard_negative_log_weight=0.7, in_batch_hardness=in_batch, hard_negative_hardness=own_alpha
    )
    terms = loss.compare(loss.comparisons(every, every)).tolist()
    assert terms == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_hardness_weighs_negatives_and_has_no_gradient_of_its_own() -> None:
    every = examples(3, 0, None, seed=1)
    a = every.anchor.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(InfoNCE(0.2, in_batch_hardness=4.0)(a, every.positive), a)
    units = torch.nn.functional.normalize(every.positive, dim=1)
    cosines = torch.nn.functional.normalize(a, dim=1) @ units.T
    raised = 4.0 * cosines.detach() * (1 - torch.eye(3))
    loss = torch.nn.functional.cross_entropy(cosines / 0.2 + raised, torch.arange(3))
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, a)[0])


def test_hardness_reaches_the_negatives_of_every_direction_but_never_the_pair() -> None:
    every = examples(3, 0, None, seed=2)
    loss = InfoNCE(0.2, in_batch_hardness=4.0, directions=["query_to_doc", "doc_to_query"])
    expected = []
    a, p = every.anchor.tolist(), every.positive.tolist()
    for i in range(3):
        target = reference.cosine(a[i], p[i]) / 0.2
        others = [reference.cosine(*pair) for j in range(3) if j != i for pair in ((a[i], p[j]), (p[i], a[j]))]
        logits = [target, target, *(cosine / 0.2 + 4.0 * cosine for cosine in others)]
        expected.append(reference.cross_entropy(target, logits))
    assert loss.compare(loss.comparisons(every, every)).tolist() == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("loss", [InfoNCE(in_batch_hardness=9.0), DebiasedNTXent()])
def test_losses_of_one_target_do_not_attract(loss: InfoNCE | DebiasedNTXent) -> None:
    with pytest.raises(ValueError, match="which has one positive per row; take NTXent"):
        Contrastive(loss, columns=[Duplicates(), Siblings("positive")])


# Debiased


def test_debiased_t0_5_tau0_1(methods: dict[str, Any], texts: list[Tensor]) -> None:
    loss = DebiasedNTXent(temperature=0.5, tau_plus=0.1)
    assert float(loss(*texts[:2])) == pytest.approx(methods["debiased_T0.5_tau0.1"], abs=EXACT)


@given(case=CASES, tau_plus=st.sampled_from([0.05, 0.3, 0.8]), temperature=st.sampled_from([0.05, 0.5]))
def test_debiased_equals_the_double_loop(
    case: tuple[int, int, int | None, int], tau_plus: float, temperature: float
) -> None:
    every = examples(*case)
    expected = []
    for target, own, others in slow_rows(every, same_side=True):
        negatives, n = [*own, *others], len(own) + len(others)
        e_t = math.exp(target / temperature)
        total = sum(math.exp(c / temperature) for c in negatives)
        kept = max((total - n * tau_plus * e_t) / (1 - tau_plus), n * math.exp(-1 / temperature))
        expected.append(math.log(e_t + kept) - target / temperature)
    loss = DebiasedNTXent(temperature, tau_plus=tau_plus)
    terms = loss.compare(loss.comparisons(every, every)).tolist()
    assert terms == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_without_bias_it_is_nt_xent() -> None:
    every = examples(4, 1, None, seed=3)
    texts = (every.anchor, every.positive, every.negative)
    assert float(DebiasedNTXent(0.2, tau_plus=0.0)(*texts)) == pytest.approx(float(NTXent(0.2)(*texts)))


@pytest.mark.parametrize("temperature", [0.05, 0.005])
def test_low_temperatures_neither_overflow_nor_lose_the_gradient(temperature: float) -> None:
    every = examples(4, 0, None, seed=4)
    a = every.anchor.float().requires_grad_()
    value = DebiasedNTXent(temperature)(a, every.positive.float())
    expected = DebiasedNTXent(temperature)(every.anchor, every.positive)
    assert float(value.detach()) == pytest.approx(float(expected), rel=1e-4)
    assert torch.isfinite(torch.autograd.grad(value, a)[0]).all()
