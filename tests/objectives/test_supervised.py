"""Supervised objectives: classes and scores of texts and of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import parts
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.heads import MLPHead, TanhHead, pair_features
from contrastive_text.losses import CoSENT
from contrastive_text.objectives import (
    BilinearScorer,
    ConcatenationScorer,
    CosineScorer,
    Objective,
    PairClassification,
    PairRegression,
    Scorer,
    TextClassification,
    TextRegression,
)

PAIR = (Slot("anchor", 0), Slot("positive", 0))
TWO_VIEWS = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))
# Sums of some ten values of order 1 in float64.
ROUNDING = 1e-12
EXACT = 1e-6
"""Tolerance of the sheet's printed values."""
"""The promise in float64: max |dg| <= 1e-10 max |g|."""


def double(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def pairs(vectors: Tensor, target: list[float] | None, slots: tuple[Slot, ...] = PAIR) -> Encoded:
    labels = None if target is None else torch.tensor(target)
    return Encoded(vectors, slots, text_ids=torch.arange(len(vectors)), target=labels)


def some(n: int, width: int = 4, seed: int = 0, slots: int = 2) -> Tensor:
    return torch.randn(slots * n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(objective: Objective, features: int = 4) -> Any:  # Any: the class that came
    torch.manual_seed(0)
    objective.build(features)
    return objective.double()


# Scorers.


def test_k10_features_of_the_paper_and_of_the_scripts(vectors: dict[str, Any]) -> None:
    case = vectors["consert_pair_features"]
    u, v = double(case["u"]), double(case["v"])
    assert pair_features(u, v).tolist() == [case["paper_u_v_absdiff"]]
    assert pair_features(u, v, max_squared=True).tolist() == [case["scripts_u_v_absdiff_maxsq"]]


def bilinear(case: dict[str, Any]) -> PairClassification:
    objective: PairClassification = built(PairClassification(2, scorer=BilinearScorer()), features=2)
    assert isinstance(objective.scorer, BilinearScorer) and objective.scorer.bilinear is not None
    with torch.no_grad():
        objective.scorer.bilinear.weight.copy_(double(*case["bilinear_W"]))
        objective.scorer.bilinear.bias.fill_(case["bias"])
    return objective


def test_m6_the_bilinear_form_and_its_binary_cross_entropy(vectors: dict[str, Any]) -> None:
    case = vectors["cs224n_heads"]
    objective, rows = bilinear(case), double(case["u"], case["v"])
    (logit,) = objective.scorer(rows[:1], rows[1:])
    assert logit.item() == pytest.approx(case["bilinear_logit"], abs=EXACT)
    terms = objective(pairs(rows, [1.0]))
    assert terms.total.item() == pytest.approx(case["bce_with_label1"], abs=EXACT)
    zero = binary_cross_entropy_with_logits(logit, torch.zeros_like(logit))
    assert objective(pairs(rows, [0.0])).total.item() == pytest.approx(zero.item(), abs=ROUNDING)
    assert objective.predict(pairs(rows, None)).tolist() == [[0.0, logit.item()]]


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_m6_cross_entropy_of_one_logit_is_torchs_binary_one_however_large_it_is(scale: float) -> None:
    objective = built(PairClassification(2, scorer=BilinearScorer()))
    vectors, target = scale * some(6), [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    logits = objective.scorer(vectors[:6], vectors[6:]).squeeze(1)
    expected = binary_cross_entropy_with_logits(logits, torch.tensor(target).double(), reduction="sum")
    terms = objective(pairs(vectors, target))
    assert terms.total.item() == pytest.approx(expected.item(), rel=ROUNDING)
    hits = ((logits > 0) == torch.tensor(target).bool()).float().mean()
    assert float(terms.logs["accuracy"]) == pytest.approx(float(hits), abs=1e-6)  # logged in float32


def logits_of(objective: Any, u: Tensor, v: Tensor) -> Tensor:  # Any: with one of three kinds of layers
    """The scores of the classes, spelt from the weights."""
    if isinstance(objective, TextClassification):
        assert objective.linear is not None
        return u @ objective.linear.weight.T + objective.linear.bias
    scorer = objective.scorer
    if isinstance(scorer, BilinearScorer):
        return torch.einsum("ni,kij,nj->nk", u, scorer.bilinear.weight, v) + scorer.bilinear.bias
    features = [u, v, (u - v).abs(), *([torch.maximum(u, v) ** 2] if scorer.max_squared else [])]
    return torch.cat(features, dim=1) @ scorer.linear.weight.T + scorer.linear.bias


@pytest.mark.parametrize(
    "make",
    [
        TextClassification,
        lambda classes: PairClassification(classes, scorer=BilinearScorer()),
        lambda classes: PairClassification(classes, scorer=ConcatenationScorer()),
        lambda classes: PairClassification(classes, scorer=ConcatenationScorer(max_squared=True)),
    ],
)
@given(n=st.integers(1, 6), classes=st.integers(3, 5), seed=st.integers(0, 2**31))
def test_the_terms_are_cross_entropies_of_the_scores(
    make: Callable[[int], Objective], n: int, classes: int, seed: int
) -> None:
    objective, vectors = built(make(classes), features=3), some(n, width=3, seed=seed)
    logits = logits_of(objective, *vectors.split(n)).tolist()
    target = [(seed + i) % classes for i in range(n)]
    total = sum(reference.cross_entropy(row[number], row) for row, number in zip(logits, target, strict=True))
    hits = sum(row.index(max(row)) == number for row, number in zip(logits, target, strict=True))
    terms = objective(pairs(vectors, [float(number) for number in target]))
    assert terms.total.item() == pytest.approx(total, abs=ROUNDING)
    assert (terms.count, terms.reduction) == (n, "mean")
    assert float(terms.logs["accuracy"]) == pytest.approx(hits / n, abs=1e-6)  # logged in float32


@pytest.mark.parametrize("part", [ConcatenationScorer(), BilinearScorer(), TextClassification(2)])
def test_a_part_without_its_layers_says_what_it_wants(part: nn.Module) -> None:
    words = [f"{type(part).__name__}: expected build(features", "before the first call"]
    rows = (torch.zeros(1, 4),) * 2 if isinstance(part, Scorer) else (pairs(torch.zeros(4, 4), [0.0, 1.0]),)
    parts.check_refused(lambda: part(*rows), RuntimeError, words)


def test_pairs_above_a_cosine_are_of_the_second_class_without_any_weight() -> None:
    objective = built(PairClassification(2, scorer=CosineScorer(threshold=0.5)))
    assert not [*objective.parameters()]
    first, second = ([1.0, 0.0], [3.0, 4.0], [0.0, 1.0]), ([2.0, 0.0], [0.0, 5.0], [0.0, -1.0])
    scores = objective.predict(pairs(double(*first, *second), None))
    assert (scores[:, 1] - scores[:, 0]).tolist() == pytest.approx([0.5, 0.3, -1.5], abs=ROUNDING)
    assert scores.argmax(dim=1).tolist() == [1, 1, 0]


# Scores.


def test_m7_the_cosine_of_the_sts_head(vectors: dict[str, Any]) -> None:
    case = vectors["cs224n_heads"]
    rows = pairs(double(case["u"], case["v"]), [0.4])
    assert PairRegression().predict(rows).tolist() == pytest.approx([case["sts_cosine"]], abs=EXACT)
    assert PairRegression()(rows).total.item() == pytest.approx(1.0, abs=EXACT)  # (-0.6 - 0.4)^2


def test_the_target_is_scaled_by_its_bounds_and_predictions_return_to_them() -> None:
    objective = PairRegression(low=1.0, high=5.0)
    assert objective.target.parse("4") == 0.75
    assert objective.target.format(torch.tensor([0.75])) == ["4.0000"]


# Both.

OBJECTIVES = {
    "concatenation": lambda: PairClassification(3, scorer=ConcatenationScorer(max_squared=True)),
    "bilinear": lambda: PairClassification(2, scorer=BilinearScorer()),
    "bilinear of three classes": lambda: PairClassification(3, scorer=BilinearScorer()),
    "classification after a head": lambda: PairClassification(2, head=MLPHead(5, 2)),
    "squared error": lambda: PairRegression(),
    "cosent": lambda: PairRegression(loss=CoSENT(temperature=0.3)),
    "cosent after a head": lambda: PairRegression(loss=CoSENT(temperature=0.3), head=TanhHead()),
    "texts": lambda: TextClassification(2),
    "texts after a head": lambda: TextClassification(3, head=MLPHead(4, 3)),
    "scores of texts": lambda: TextRegression(),
}
TARGET = [1.0, 0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_agree_with_finite_differences(name: str) -> None:
    objective = built(OBJECTIVES[name](), features=3)
    vectors = some(3, width=3, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: objective(pairs(rows, TARGET[:3])).total, [vectors])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_autocast_leaves_predictions_in_float32(name: str) -> None:
    objective = built(OBJECTIVES[name](), features=32).float()
    rows = pairs(some(8, width=32).float(), None)
    outside = objective.predict(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = objective.predict(rows)
        assert (rows.embeddings @ torch.eye(32)).dtype == torch.bfloat16  # autocast was on
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_view_is_read_and_others_are_not(name: str) -> None:
    first, second = (built(OBJECTIVES[name]()) for _ in range(2))
    second.view = 2
    four = some(3, slots=4)  # anchor 0, anchor 1, positive 0, positive 1
    a0, a1, p0, p1 = four.split(3)
    both = pairs(four, TARGET[:3], slots=TWO_VIEWS)
    assert torch.equal(first(both).total, first(pairs(torch.cat([a0, p0]), TARGET[:3])).total)
    assert torch.equal(second(both).total, first(pairs(torch.cat([a1, p1]), TARGET[:3])).total)
    with pytest.raises(ValueError, match=r"\.view: expected 1 to 1, the number of slots of anchor, got 2"):
        second(pairs(some(3), TARGET[:3]))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_without_targets_is_refused_and_can_be_predicted(name: str) -> None:
    objective = built(OBJECTIVES[name]())
    assert len(objective.predict(pairs(some(3), None))) == 3
    with pytest.raises(ValueError, match="expected a label or a score for every example, got a batch without"):
        objective(pairs(some(3), None))


# Texts.


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_rank_without_examples_keeps_its_place_in_the_backward_pass(name: str) -> None:
    objective = built(OBJECTIVES[name]())
    vectors = some(0).requires_grad_()
    terms = objective(pairs(vectors, []))
    terms.total.backward()
    assert terms.total.item() == 0.0
    assert all(weight.grad is not None and not weight.grad.any() for weight in objective.parameters())


def test_its_target_is_its_classes_and_predictions_become_their_names() -> None:
    objective = built(TextClassification(["bad", "good"]), features=2)
    assert objective.target.names == ("bad", "good")
    assert objective.target.parse("good") == 1.0
    rows = pairs(some(3, width=2), None)
    numbers = objective.predict(rows).argmax(dim=1).tolist()
    assert objective.target.format(objective.predict(rows)) == [("bad", "good")[number] for number in numbers]
    assert TextClassification([1, 2, 3]).target.names == ("1", "2", "3")
