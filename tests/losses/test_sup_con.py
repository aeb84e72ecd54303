"""SupCon against the double loop, hand-computed values and NTXent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import Comparison, NTXent, Reduction, SameId, SupCon, reduce_terms
from contrastive_text.losses.comparison import Group, Triples

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
# Logits of at most 5 to 50 in float64, sums of some twenty terms.
ROUNDING = 1e-11
ANCHORS = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
POSITIVES = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)


def slow_terms(triples: Triples, temperature: float) -> list[float]:
    """Khosla et al. 2020, eq. 2, text by text; texts with the id of the row or of its partner left out."""
    n = len(triples.anchor)
    texts = [*triples.anchor.tolist(), *triples.positive.tolist()]
    ids = [*triples.anchor_ids.tolist(), *triples.positive_ids.tolist()]
    assert triples.target is not None
    classes = triples.target.tolist() * 2
    hard: list[list[float]] = []
    hard_ids: list[int] = []
    if triples.negative is not None and triples.negative_ids is not None:
        hard = triples.negative.flatten(0, 1).tolist()
        hard_ids = triples.negative_ids.flatten().tolist()
    terms = []
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        own = {ids[i], ids[partner]}
        others = [j for j in range(2 * n) if j == partner or (j != i and ids[j] not in own)]
        logits = [reference.cosine(texts[i], texts[j]) / temperature for j in others]
        further = [
            reference.cosine(texts[i], text) / temperature
            for text, its_id in zip(hard, hard_ids, strict=True)
            if its_id not in own
        ]
        pulled = [logit for j, logit in zip(others, logits, strict=True) if classes[j] == classes[i]]
        each = [reference.cross_entropy(logit, [*logits, *further]) for logit in pulled]
        terms.append(sum(each) / len(each))
    return terms


def terms_of(loss: SupCon, local: Triples, every: Triples, offset: int = 0) -> list[float]:
    return [float(term) for term in loss.compare(loss.comparisons(local, every, offset))]


@st.composite
def examples(draw: st.DrawFn, few_ids: bool = True) -> Triples:
    """Random vectors of at most three classes; most batches hold equal texts, some hard negatives."""
    n, k = draw(st.integers(1, 5)), draw(st.integers(0, 2))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def vectors(*shape: int) -> Tensor:
        return torch.randn(*shape, 3, generator=noise, dtype=torch.float64)

    triples = Triples.distinct(vectors(n), vectors(n), vectors(n, k) if k else None)
    classes = torch.tensor(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    triples = replace(triples, target=classes, groups={"classes": Group.of(classes, effect="mean")})
    if not few_ids:
        return triples
    modulus = draw(st.integers(2, 12))
    return replace(
        triples,
        anchor_ids=triples.anchor_ids % modulus,
        positive_ids=triples.positive_ids % modulus,
        negative_ids=None if triples.negative_ids is None else triples.negative_ids % modulus,
    )


@given(triples=examples(), temperature=st.floats(0.02, 5.0))
def test_sup_con_equals_the_double_loop(triples: Triples, temperature: float) -> None:
    reached = terms_of(SupCon(temperature), triples, triples)
    assert reached == pytest.approx(slow_terms(triples, temperature), abs=ROUNDING, rel=ROUNDING)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(triples=examples(few_ids=False))
def test_the_face_of_three_arguments_and_classes_reduces_the_same_terms(
    reduction: Reduction, triples: Triples
) -> None:
    loss = SupCon(temperature=0.2, reduction=reduction)
    reached = float(loss(triples.anchor, triples.positive, triples.negative, classes=triples.target))
    expected = torch.tensor(slow_terms(triples, 0.2), dtype=torch.float64)
    assert reached == pytest.approx(
        float(reduce_terms(expected.sum(), len(expected), reduction)), abs=ROUNDING, rel=ROUNDING
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(triples=examples(few_ids=False))
def test_without_classes_or_with_a_class_each_it_is_nt_xent(reduction: Reduction, triples: Triples) -> None:
    texts = (triples.anchor, triples.positive, triples.negative)
    expected = float(NTXent(temperature=0.2, reduction=reduction)(*texts))
    loss = SupCon(temperature=0.2, reduction=reduction)
    each = torch.arange(len(triples.anchor))
    assert float(loss(*texts)) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)
    assert float(loss(*texts, classes=each)) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


@given(triples=examples())
def test_terms_without_classes_are_those_of_nt_xent_with_duplicates(triples: Triples) -> None:
    alone = replace(triples, target=None, groups={})
    blocks = NTXent(temperature=0.2).comparisons(alone, alone)
    expected = NTXent(temperature=0.2).compare(blocks).tolist()
    assert terms_of(SupCon(temperature=0.2), alone, alone) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)
    (block,) = blocks
    terms = SupCon(temperature=0.2).terms(replace(block, positives=None))
    assert terms.tolist() == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_the_four_by_two_example_as_one_class_by_hand() -> None:
    # Cosines over 0.5 of each text with the three others.
    logits = [(0.0, 1.6, -1.2), (0.0, 1.2, 1.6), (1.6, 1.2, 0.0), (-1.2, 1.6, 0.0)]
    expected = [math.log(sum(map(math.exp, row))) - sum(row) / 3 for row in logits]
    loss = SupCon(temperature=0.5)
    reached = loss(ANCHORS, POSITIVES, classes=torch.tensor([1, 1]))
    # Sums of three terms in float64.
    assert float(reached) == pytest.approx(sum(expected) / 4, abs=1e-14)


@pytest.mark.parametrize(("temperature", "expected"), [(0.1, 2.4662557997), (0.5, 1.4399135012)])
def test_the_six_by_three_example_equals_pytorch_metric_learning(
    vectors: dict[str, Any], temperature: float, expected: float
) -> None:
    case = vectors["loss_with_gradients_6x3"]
    texts = (torch.tensor(case[side], dtype=torch.float64) for side in ("anchors", "positives"))
    # SupConLoss of pytorch-metric-learning 2.9.0 on both sides one after the other, printed with ten digits.
    reached = float(SupCon(temperature)(*texts, classes=torch.tensor([0, 1, 0])))
    assert reached == pytest.approx(expected, abs=1e-9)


def test_a_hard_negative_stands_in_the_denominator_and_is_of_no_class() -> None:
    same = torch.ones(3, 2, dtype=torch.float64)
    loss = SupCon()
    classes = torch.tensor([0, 0, 1])
    # Collapsed: every term is the logarithm of the columns: 5 other texts, and 3 hard negatives.
    assert float(loss(same, same, classes=classes)) == pytest.approx(math.log(5), abs=1e-14)
    assert float(loss(same, same, same, classes=classes)) == pytest.approx(math.log(8), abs=1e-14)


def test_a_column_without_a_class_is_no_rows_and_a_target_always_is() -> None:
    classes = SameId(rows=torch.tensor([[0], [2]]), columns=torch.tensor([0, -1, 2, 0]))
    block = Comparison(torch.ones(2, 1), torch.ones(4, 1), torch.tensor([1, 0]), positives=classes)
    assert block.positive_columns().tolist() == [
        [True, True, False, True],
        [True, False, True, False],
    ]


@given(triples=examples(few_ids=False), order=st.randoms(use_true_random=False))
def test_order_of_examples_and_names_of_classes_do_not_matter(triples: Triples, order: object) -> None:
    places = list(range(len(triples.anchor)))
    order.shuffle(places)  # type: ignore[attr-defined]  # hypothesis draws a random.Random
    assert triples.target is not None
    before = float(SupCon(0.1)(triples.anchor, triples.positive, triples.negative, classes=triples.target))
    moved = triples.map(lambda rows: rows[places])
    assert moved.target is not None
    after = float(SupCon(0.1)(moved.anchor, moved.positive, moved.negative, classes=7 - moved.target))
    assert after == pytest.approx(before, abs=ROUNDING, rel=ROUNDING)
