"""SigLIP: values of the sheet, the double loop, what is learned, what adds nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import SigLIP
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives import Contrastive, Duplicates, Siblings, SignedPairs

ROUNDING = 1e-11


def exact(temperature: float, bias: float) -> SigLIP:
    """The loss in float64, whose parameters are those numbers to the last digit."""
    loss = SigLIP(temperature, bias).double()
    assert loss.learned is not None
    with torch.no_grad():
        loss.learned.log_scale.fill_(-math.log(temperature))
        loss.learned_bias.fill_(bias)
    return loss


@pytest.mark.parametrize(("bias", "key"), [(-10.0, "siglip_t10_b-10"), (-2.71, "siglip_t10_b-2.71")])
def test_siglip_t10_b_10_and_b_2_71(methods: dict[str, Any], bias: float, key: str) -> None:
    a, p = (torch.tensor(methods["inputs"][name], dtype=torch.float64) for name in "AP")
    assert float(exact(0.1, bias)(a, p).detach()) == pytest.approx(methods[key], abs=1e-9)
    # Symmetric, and as float32 keeps its parameters.
    assert float(exact(0.1, bias)(p, a).detach()) == pytest.approx(methods[key], abs=1e-9)
    assert float(SigLIP(0.1, bias)(a, p).detach()) == pytest.approx(methods[key], rel=1e-5)


@given(n=st.integers(1, 5), hard=st.integers(0, 2), ids=st.sampled_from([None, 2, 8]), seed=st.integers(0, 2**31))
def test_any_texts_equal_the_double_loop(n: int, hard: int, ids: int | None, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2 + hard, n, 4, generator=noise, dtype=torch.float64)
    every = Triples.distinct(drawn[0], drawn[1], drawn[2:].transpose(0, 1) if hard else None)
    if ids is not None:
        texts = torch.randint(ids, (n, 2 + hard), generator=noise)
        every = replace(every, anchor_ids=texts[:, 0], positive_ids=texts[:, 1])
        every = replace(every, negative_ids=texts[:, 2:] if hard else None)
    rows = reference.rows(
        drawn[0].tolist(),
        drawn[1].tolist(),
        drawn[2:].transpose(0, 1).tolist() if hard else [],
        False,
        every.anchor_ids.tolist(),
        every.positive_ids.tolist(),
        None if every.negative_ids is None else every.negative_ids.tolist(),
    )
    expected = [
        math.log1p(math.exp(-(target / 0.2 - 3)))
        + sum(math.log1p(math.exp(cosine / 0.2 - 3)) for cosine in (*own, *others))
        for target, own, others in rows
    ]
    loss = exact(0.2, -3.0)
    terms = loss.compare(loss.comparisons(every, every)).tolist()
    assert terms == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_hidden_columns_add_nothing_and_no_gradient() -> None:
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    same = torch.zeros(3, dtype=torch.long)
    every = Triples(rows, rows.detach().flip(1), None, same, same, None)
    loss = exact(0.2, -3.0)
    terms = loss.compare(loss.comparisons(every, every))
    cosines = torch.cosine_similarity(rows, rows.detach().flip(1))
    expected = torch.nn.functional.softplus(-(cosines / 0.2 - 3))
    torch.testing.assert_close(terms, expected)
    (gradient,) = torch.autograd.grad(terms.sum(), rows, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), rows)[0])


def test_order_of_examples_does_not_matter_and_the_divisor_is_the_anchors() -> None:
    noise = torch.Generator().manual_seed(2)
    a, p = torch.randn(2, 6, 4, generator=noise, dtype=torch.float64)
    loss, order = exact(0.1, -10.0).requires_grad_(False), torch.tensor([3, 1, 5, 0, 2, 4])
    assert float(loss(a[order], p[order])) == pytest.approx(float(loss(a, p)), abs=ROUNDING)
    every = Triples.distinct(a, p)
    assert float(loss.compare(loss.comparisons(every, every)).sum() / 6) == pytest.approx(float(loss(a, p)))


def test_scale_and_bias_are_learned_logged_and_never_decayed() -> None:
    objective = Contrastive(SigLIP(temperature=0.1, bias=-10.0))
    parameters = dict(objective.named_parameters())
    assert parameters.keys() == {"loss.learned.log_scale", "loss.learned_bias"}
    assert all(each.shape == (1,) for each in parameters.values())  # decay spares those
    slots = (Slot("anchor", 0), Slot("positive", 0))
    vectors = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    terms = objective(Encoded(vectors, slots, text_ids=torch.arange(4)))
    assert float(terms.logs["temperature"]) == pytest.approx(0.1)
    assert float(terms.logs["bias"]) == -10.0
    terms.total.backward()
    assert all(each.grad is not None and float(each.grad.abs()) > 1e-3 for each in parameters.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"columns": [Duplicates(), Siblings("positive")]},
            "got SigLIP, which has one positive per row; take NTX",
        ),
        ({"columns": [SignedPairs()]}, "terms can be maximized, got SigLIP; take NegativesAsHard"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Contrastive(SigLIP(), **options)
