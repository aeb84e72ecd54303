"""DCL and DCLW: values of the sheet, the double loop, weights over all pairs, rows without negatives."""

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

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import DCL, DCLW, Loss, NTXent, SoftmaxLoss
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives import Contrastive, Duplicates, Queue, Siblings, SignedPairs

EXACT = 1e-9
# Logits of at most 20 in float64, sums of some ten terms.
ROUNDING = 1e-11


@pytest.fixture(scope="module")
def sides(methods: dict[str, Any]) -> tuple[Tensor, Tensor]:
    a, p = (torch.tensor(methods["inputs"][name], dtype=torch.float64) for name in "AP")
    return a, p


def terms_of(loss: Loss, every: Triples) -> list[float]:
    return loss.compare(loss.comparisons(every, every)).tolist()


def slow_terms(every: Triples, temperature: float, same_side: bool, weights: list[float] | None) -> list[float]:
    hard = every.negative
    rows = reference.rows(
        every.anchor.tolist(),
        every.positive.tolist(),
        [] if hard is None else hard.tolist(),
        same_side,
        every.anchor_ids.tolist(),
        every.positive_ids.tolist(),
        None if every.negative_ids is None else every.negative_ids.tolist(),
    )
    terms = []
    for i, (target, own, others) in enumerate(rows):
        weight = 1.0 if weights is None else weights[i % len(weights)]
        total = sum(math.exp(cosine / temperature) for cosine in (*own, *others))
        terms.append(math.log(total) - weight * target / temperature if total else 0.0)
    return terms


def slow_weights(anchors: list[list[float]], positives: list[list[float]], sigma: float) -> list[float]:
    masses = [math.exp(reference.cosine(a, p) / sigma) for a, p in zip(anchors, positives, strict=True)]
    return [2 - len(masses) * mass / sum(masses) for mass in masses]


def test_dcl_t0_1_mean2n(methods: dict[str, Any], sides: tuple[Tensor, Tensor]) -> None:
    assert float(DCL(temperature=0.1)(*sides)) == pytest.approx(methods["dcl_T0.1_mean2N"], abs=EXACT)
    # Beside it the loss whose target stays.
    assert float(NTXent(temperature=0.1)(*sides)) == pytest.approx(methods["ntxent_T0.1_mean2N"], abs=EXACT)


def test_dcl_t0_1_rows(methods: dict[str, Any], sides: tuple[Tensor, Tensor]) -> None:
    terms = terms_of(DCL(temperature=0.1), Triples.distinct(*sides))
    assert terms == pytest.approx(methods["dcl_T0.1_rows"], abs=EXACT)


def test_dcl_oneway_infonce_t0_1(methods: dict[str, Any], sides: tuple[Tensor, Tensor]) -> None:
    loss = DCL(temperature=0.1, same_side=False)
    assert float(loss(*sides)) == pytest.approx(methods["dcl_oneway_infonce_T0.1"], abs=EXACT)


def test_dclw_weights_sigma0_5(methods: dict[str, Any], sides: tuple[Tensor, Tensor]) -> None:
    weights = DCLW(sigma=0.5).weights(*sides)
    assert weights.tolist() == pytest.approx(methods["dclw_weights_sigma0.5"], abs=EXACT)


def test_dclw_t0_1_sigma0_5_mean2n(methods: dict[str, Any], sides: tuple[Tensor, Tensor]) -> None:
    loss = DCLW(temperature=0.1, sigma=0.5)
    assert float(loss(*sides)) == pytest.approx(methods["dclw_T0.1_sigma0.5_mean2N"], abs=EXACT)


@pytest.mark.parametrize("same_side", [True, False])
@pytest.mark.parametrize("weighed", [False, True])
@given(n=st.integers(1, 5), hard=st.integers(0, 2), ids=st.sampled_from([None, 2, 8]), seed=st.integers(0, 2**31))
def test_any_texts_equal_the_double_loop(
    same_side: bool, weighed: bool, n: int, hard: int, ids: int | None, seed: int
) -> None:
    noise = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2 + hard, n, 4, generator=noise, dtype=torch.float64)
    every = Triples.distinct(drawn[0], drawn[1], drawn[2:].transpose(0, 1) if hard else None)
    if ids is not None:
        texts = torch.randint(ids, (n, 2 + hard), generator=noise)
        every = replace(every, anchor_ids=texts[:, 0], positive_ids=texts[:, 1])
        every = replace(every, negative_ids=texts[:, 2:] if hard else None)
    weights = slow_weights(drawn[0].tolist(), drawn[1].tolist(), sigma=0.3) if weighed else None
    loss = DCLW(0.2, same_side=same_side, sigma=0.3) if weighed else DCL(0.2, same_side=same_side)
    expected = slow_terms(every, 0.2, same_side, weights)
    assert terms_of(loss, every) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_weights_have_a_gradient_that_reaches_every_pair(sides: tuple[Tensor, Tensor]) -> None:
    a, p = (side.clone().requires_grad_() for side in sides)
    every = Triples.distinct(a, p)
    local = every.map(lambda rows: rows[:1])
    loss = DCLW(0.1, same_side=False)
    terms = loss.compare(loss.comparisons(local, every))
    (block,) = DCL(0.1, same_side=False).comparisons(local, every)
    plain = DCL(0.1, same_side=False).terms(block)
    of = [torch.autograd.grad(each.sum(), a, allow_unused=True, retain_graph=True)[0] for each in (terms, plain)]
    # Other anchors are neither row nor column: the weights alone move them.
    assert float(of[0][1:].abs().min()) > 1e-6
    assert float(of[1][1:].abs().max()) == 0


@pytest.mark.parametrize("make", [DCL, DCLW])
@pytest.mark.parametrize("same_side", [True, False])
def test_rows_that_see_no_negative_count_nothing(make: type[DCL], same_side: bool) -> None:
    noise = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4, generator=noise, dtype=torch.float64).requires_grad_()
    same = torch.zeros(3, dtype=torch.long)
    every = Triples(rows, rows.flip(1), None, same, same, None)
    loss = make(same_side=same_side)
    terms = loss.compare(loss.comparisons(every, every))
    assert terms.tolist() == [0.0] * len(terms)
    (gradient,) = torch.autograd.grad(terms.sum(), rows)
    assert torch.equal(gradient, torch.zeros_like(rows))


def test_a_found_positive_leaves_the_negatives_their_gradient() -> None:
    # NT-Xent's gradient vanishes there.
    a = torch.eye(3, dtype=torch.float64).requires_grad_()
    p = (torch.eye(3, dtype=torch.float64) + 0.05).requires_grad_()
    pushes = []
    for loss in (NTXent(0.1), DCL(0.1)):
        (gradient,) = torch.autograd.grad(loss(a, p), a)
        pushes.append(float(gradient.norm()))
    assert pushes[1] > 100 * pushes[0]


@pytest.mark.parametrize("make", [DCL, DCLW])
def test_what_makes_no_sense_is_refused_in_words(make: type[SoftmaxLoss]) -> None:
    with pytest.raises(ValueError, match=f"got {make.__name__}, which has one positive per row; take NTXent"):
        Contrastive(make(), columns=[Duplicates(), Siblings("positive")])
    if make is DCLW:
        with pytest.raises(ValueError, match="SignedPairs expects a loss whose terms can be maximized, got DCLW"):
            Contrastive(make(), columns=[Duplicates(), Siblings(), SignedPairs()])


def test_a_queue_adds_columns_and_the_summary_counts_them() -> None:
    objective = Contrastive(DCL(0.2, same_side=False), columns=[Duplicates(), Siblings(), Queue(10)])
    slots = (Slot("anchor", 0), Slot("positive", 0))
    noise = torch.Generator().manual_seed(1)
    steps = [
        Encoded(torch.randn(4, 3, generator=noise, dtype=torch.float64), slots, text_ids=torch.arange(4) + 4 * i)
        for i in range(2)
    ]
    objective(steps[0])
    objective.finish_step()
    (a, b), p = steps[1].embeddings[:2].tolist(), steps[1].embeddings[2:].tolist()
    past = steps[0].embeddings[2:].tolist()
    expected = 0.0
    for row, target, other in ((a, p[0], p[1]), (b, p[1], p[0])):
        total = sum(math.exp(reference.cosine(row, column) / 0.2) for column in (other, *past))
        expected += math.log(total) - reference.cosine(row, target) / 0.2
    assert float(objective(steps[1]).total) == pytest.approx(expected, abs=ROUNDING)
    said = Contrastive(DCL()).describe_negatives(64, positives=1, negatives=0)
    assert said.startswith("126 per anchor: 63 other positives, 63 texts of its own side")
