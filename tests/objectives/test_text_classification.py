"""Classification of single texts: the loss of the classes' scores, the head's width, what is read."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.objectives import TextClassification

# Sums of at most ten logits of order 1 in float64.
ROUNDING = 1e-12


def texts(vectors: Tensor, target: list[float] | None, views: int = 1) -> Encoded:
    slots = tuple(Slot("anchor", i) for i in range(views))
    labels = None if target is None else torch.tensor(target)
    return Encoded(vectors, slots, text_ids=torch.arange(len(vectors)), target=labels)


def built(objective: TextClassification, features: int) -> TextClassification:
    torch.manual_seed(0)
    objective.build(features)
    return objective.double()


@given(n=st.integers(1, 6), classes=st.integers(2, 5), seed=st.integers(0, 2**31))
def test_the_terms_equal_the_loop_over_texts(n: int, classes: int, seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(n, 4, generator=noise, dtype=torch.float64)
    target = torch.randint(0, classes, (n,), generator=noise).tolist()
    objective = built(TextClassification(classes), features=4)
    assert objective.linear is not None
    total, hits = 0.0, 0
    for vector, number in zip(vectors.tolist(), target, strict=True):
        rows, bias = objective.linear.weight.tolist(), objective.linear.bias.tolist()
        logits = [
            sum(w * x for w, x in zip(row, vector, strict=True)) + b for row, b in zip(rows, bias, strict=True)
        ]
        total += reference.cross_entropy(logits[number], logits)
        hits += logits.index(max(logits)) == number
    terms = objective(texts(vectors, [float(number) for number in target]))
    assert terms.total.item() == pytest.approx(total, abs=ROUNDING)
    assert (terms.count, terms.reduction) == (n, "mean")
    assert float(terms.logs["accuracy"]) == pytest.approx(hits / n, abs=1e-6)  # logged in float32


def test_two_texts_by_hand() -> None:
    objective = built(TextClassification(["a", "b"]), features=2)
    assert objective.linear is not None
    with torch.no_grad():
        objective.linear.weight.copy_(torch.eye(2))
        objective.linear.bias.zero_()
    vectors = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]], dtype=torch.float64)
    # Probabilities 3/4 and 1/4 of the first text, of which the second class is right; 1/2 of the second.
    expected = -math.log(1 / 4) - math.log(1 / 2)
    assert objective(texts(vectors, [1.0, 0.0])).total.item() == pytest.approx(expected, abs=ROUNDING)


@pytest.mark.parametrize("head", [None, MLPHead(hidden_features=4, out_features=3)])
def test_gradients_agree_with_finite_differences(head: MLPHead | None) -> None:
    objective = built(TextClassification(3, head=head), features=3)
    noise = torch.Generator().manual_seed(2)
    vectors = torch.randn(3, 3, generator=noise, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: objective(texts(rows, [0.0, 2.0, 1.0])).total, [vectors])


def test_the_sentiment_head_of_the_cs224n_report_gives_the_scores() -> None:
    head = MLPHead(hidden_features=8, out_features=5, dropout=0.3)
    objective = built(TextClassification(5, head=head), features=6).eval()
    vectors = torch.randn(4, 6, dtype=torch.float64)
    assert objective.linear is None
    assert torch.equal(objective.predict(texts(vectors, None)), head(vectors))
    objective.train()
    first, second = (objective.predict(texts(vectors, None)) for _ in range(2))
    assert not torch.equal(first, second)  # dropout


def test_a_head_with_other_outputs_than_classes_is_refused_when_it_is_built() -> None:
    message = r"TextClassification.head: expected out_features: 5, one for each class, got 768; .* of MLPHead"
    with pytest.raises(ValueError, match=message):
        TextClassification(5, head=MLPHead(hidden_features=4)).build(768)


def test_a_head_that_inference_keeps_is_refused() -> None:
    with pytest.raises(ValueError, match=r"TextClassification.head: expected a head with train_only: true"):
        TextClassification(2, head=TanhHead(train_only=False))


def test_it_reads_the_view_it_names_and_refuses_one_that_is_not_there() -> None:
    vectors = torch.randn(6, 4, dtype=torch.float64)  # two views of three texts
    second = built(TextClassification(2, view=2), features=4)
    alone = built(TextClassification(2), features=4)
    both = texts(vectors, [0.0, 1.0, 1.0], views=2)
    assert torch.equal(second(both).total, alone(texts(vectors[3:], [0.0, 1.0, 1.0])).total)
    message = r"TextClassification.view: expected one of the 1 slots of anchor, got 2; set view"
    with pytest.raises(ValueError, match=message):
        second(texts(vectors, [0.0] * 6))
    with pytest.raises(ValueError, match=r"TextClassification.view: expected the number of a view, .* got 0"):
        TextClassification(2, view=0)


def test_a_batch_without_labels_is_refused_and_can_be_predicted() -> None:
    objective = built(TextClassification(2), features=4)
    rows = texts(torch.zeros(3, 4, dtype=torch.float64), None)
    assert objective.predict(rows).shape == (3, 2)
    with pytest.raises(ValueError, match="TextClassification: expected a label or a score for every example"):
        objective(rows)


def test_a_rank_without_texts_has_a_total_of_zero_with_a_gradient() -> None:
    objective = built(TextClassification(2), features=4)
    terms = objective(texts(torch.zeros(0, 4, dtype=torch.float64), []))
    terms.total.backward()
    assert (terms.total.item(), terms.count, float(terms.logs["accuracy"])) == (0.0, 0, 0.0)
    assert objective.linear is not None and objective.linear.weight.grad is not None


@pytest.mark.parametrize("head", [None, MLPHead(hidden_features=32, out_features=2)])
def test_autocast_leaves_the_scores_in_float32(head: MLPHead | None) -> None:
    objective = built(TextClassification(2, head=head), features=32).float()
    rows = texts(torch.randn(8, 32, generator=torch.Generator().manual_seed(3)), [1.0] * 8)
    outside = objective.predict(rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = objective.predict(rows)
        assert nn.functional.linear(rows.embeddings, torch.eye(32)).dtype == torch.bfloat16  # autocast was on
    assert torch.equal(inside, outside)


def test_its_target_is_its_classes_and_predictions_become_their_names() -> None:
    objective = built(TextClassification(["bad", "good"]), features=2)
    assert objective.target.names == ("bad", "good")
    assert objective.target.read("good") == 1.0
    rows = texts(torch.randn(3, 2, dtype=torch.float64), None)
    numbers = objective.predict(rows).argmax(dim=1).tolist()
    assert objective.target.write(objective.predict(rows)) == [("bad", "good")[number] for number in numbers]
    assert TextClassification([1, 2, 3]).target.names == ("1", "2", "3")
    with pytest.raises(ValueError, match=r"TextClassification\.classes: expected two classes or more"):
        TextClassification(1)


def test_it_asks_to_be_built_first() -> None:
    with pytest.raises(
        RuntimeError, match=r"TextClassification: expected build\(features\) before the first call"
    ):
        TextClassification(2)(texts(torch.zeros(2, 4), [0.0, 1.0]))
