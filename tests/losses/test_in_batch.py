"""Peculiarities of in-batch losses; what all of them have in common: tests/conformance/test_losses.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import parts
import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import (
    Comparison,
    DebiasedNTXent,
    InfoNCE,
    Loss,
    NTXent,
    Reduction,
    SameId,
    SigLIP,
    SupCon,
    comparison,
    cosine_similarity_matrix,
)
from contrastive_text.losses.comparison import ExampleVectors
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import Contrastive, Duplicates, Queue, Siblings

FOUR: tuple[Direction, ...] = get_args(Direction)
# Logits of at most 50 in float64, sums of some thirty terms.
ROUNDING = 1e-11
PAIR = (Slot("anchor", 0), Slot("positive", 0))


def drawn(n: int, sides: int = 2, seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [*torch.randn(sides, n, 4, generator=noise, dtype=torch.float64)]


def terms_of(loss: Loss, every: ExampleVectors) -> Tensor:
    return loss.compare(loss.comparisons(every, every))


# Rules, shapes and cosines


@given(st.integers(0, 2**31))
def test_texts_with_two_ids_are_equal_where_they_agree_in_either(seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    ids, target = torch.randint(4, (6, 2), generator=noise), torch.randint(6, (5,), generator=noise)
    own = torch.randint(4, (5, 2), generator=noise)
    both = SameId(torch.stack([own, ids[target]], dim=1), ids)
    first, second = (SameId(both.rows[..., kind], ids[:, kind]) for kind in (0, 1))
    assert torch.equal(both.mask(), first.mask() | second.mask())
    block = Comparison(own, ids, target, masks={"texts": both, "first": first})
    mask, places = block.mask_matrix(), block.masked_indices(most=100)
    assert places is not None
    rows, columns = places
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {(int(r), int(c)) for r, c in mask.nonzero()}
    assert block.masked_indices(most=0) is None


def test_a_large_matrix_is_masked_by_a_list_of_entries_as_a_small_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(40) % 37
    texts = SameId(rows=ids.unsqueeze(1), columns=ids)
    block = Comparison(torch.ones(40, 1), torch.ones(40, 1), torch.arange(40), masks={"texts": texts})
    monkeypatch.setattr(comparison, "_FEW_ENTRIES", 0)
    assert block.masked_indices(most=100) is not None
    masked = block.mask_logits(torch.zeros(40, 40)).isinf()
    assert torch.equal(masked, block.mask_matrix())
    assert int(masked.sum()) == 6  # three texts stand there twice; a target is never masked


@pytest.mark.parametrize("make", [InfoNCE, NTXent])
def test_one_hard_negative_may_come_without_its_dimension(make: type[InfoNCE | NTXent]) -> None:
    rows = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(make()(rows[0], rows[1], rows[2]), make()(rows[0], rows[1], rows[2].unsqueeze(1)))


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((3, 4), (2, 4)), ["(N, D)", "(3, 4) and (2, 4)"]),
        (((3, 4, 1), (3, 4, 1)), ["(N, D)", "(3, 4, 1)"]),
        (((3, 4), (3, 4), (2, 4)), ["hard negatives", "(2, 1, 4)"]),
        (((3, 4), (3, 4), (3, 2, 5)), ["hard negatives", "(3, 2, 5)"]),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    shapes: tuple[tuple[int, ...], ...], words: list[str]
) -> None:
    texts = [torch.zeros(shape) for shape in shapes]
    parts.check_refused(lambda: InfoNCE()(*texts), ValueError, words)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cosines_are_at_least_float32(dtype: torch.dtype) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=dtype)
    expected = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.promote_types(dtype, torch.float32))
    torch.testing.assert_close(cosine_similarity_matrix(rows, rows), expected)


def test_cosines_equal_the_loop_and_are_the_same_under_autocast() -> None:
    rows, columns = drawn(5)
    cosines = [[reference.cosine(u, v) for v in columns.tolist()] for u in rows.tolist()]
    expected = torch.tensor(cosines, dtype=torch.float64)
    # Dot products of four unit entries in float64.
    torch.testing.assert_close(cosine_similarity_matrix(rows, columns), expected, rtol=0, atol=1e-14)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = cosine_similarity_matrix(rows.float(), columns.float())
    assert torch.equal(inside, cosine_similarity_matrix(rows.float(), columns.float()))


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("make", [InfoNCE, NTXent])
def test_l12_the_gradient_of_a_zero_vector_is_of_the_order_of_the_smallest_norm(
    make: Callable[..., Loss], place: int
) -> None:
    texts = [side.float() for side in drawn(3, sides=3)]
    texts[place][1] = 0.0
    texts[place].requires_grad_()
    make(temperature=1.0)(*texts).backward()  # warm, so that every column has weight
    gradient = texts[place].grad
    assert gradient is not None
    # Of order 1/eps: 1e8 times softmax weights and 1/N, and not 1e11 and more, as with an eps of 1e-12.
    assert 1e6 < float(gradient[1].norm()) < 1e9


def test_dot_products_at_temperature_1_are_the_logits() -> None:
    a, p = drawn(5)
    reached = InfoNCE(temperature=1.0, similarity="dot")(a, p)
    torch.testing.assert_close(reached, F.cross_entropy(a @ p.T, torch.arange(5)))


# SupCon


@pytest.mark.parametrize("reduction", ["mean", "sum", "two_sided"])
def test_without_classes_or_with_a_class_each_sup_con_is_nt_xent(reduction: Reduction) -> None:
    texts = drawn(4, sides=3)
    expected = pytest.approx(float(NTXent(0.2, reduction)(*texts)), abs=ROUNDING, rel=ROUNDING)
    assert float(SupCon(0.2, reduction)(*texts)) == expected
    assert float(SupCon(0.2, reduction)(*texts, classes=torch.arange(4))) == expected


# Several directions


def encoded(ids: list[list[int]]) -> Encoded:
    flat = torch.tensor(ids).flatten()
    vectors = torch.randn(len(flat), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Encoded(vectors, PAIR, text_ids=flat)


@pytest.mark.parametrize("hidden", [True, False])
def test_siblings_are_hidden_in_every_direction(hidden: bool) -> None:
    # The first two anchors are one text; its second positive is also the third's.
    rows = encoded([[1, 1, 2], [3, 4, 5]])
    columns = [Duplicates(), *([Siblings()] if hidden else [])]
    found = Contrastive(InfoNCE(0.2, directions=FOUR), columns=columns)(rows).total
    a, p = (side.tolist() for side in rows.embeddings.reshape(2, 3, 4))
    others = {0: {2}, 1: {2}, 2: {0, 1}}
    seen = others if hidden else {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
    expected = 0.0
    for i in range(3):
        logits = [reference.cosine(a[i], p[i]) / 0.2] * 2
        for x in (a, p):
            logits += [reference.cosine(x[i], p[j]) / 0.2 for j in seen[i]]
            logits += [reference.cosine(x[i], a[j]) / 0.2 for j in others[i]]  # the same text is no other anchor
        expected += reference.cross_entropy(logits[0], logits)
    assert float(found) == pytest.approx(expected, abs=ROUNDING)


def test_past_texts_are_columns_of_the_anchors_in_every_direction() -> None:
    objective = Contrastive(InfoNCE(0.2, directions=FOUR), columns=[Duplicates(), Siblings(), Queue(100)])
    first, second = encoded([[1, 2], [3, 4]]), encoded([[5, 6], [7, 8]])
    alone = float(objective(second).total)
    objective(first)
    objective.finish_step()
    # Past positives and anchors are columns of both rows, and of the anchors alone.
    past = first.embeddings.tolist()
    slow = reference.in_directions(ExampleVectors.distinct(*second.embeddings.reshape(2, 2, 4)), FOUR)
    assert alone == pytest.approx(sum(slow), abs=ROUNDING)
    expected = 0.0
    for i, term in enumerate(slow):
        a, p = (side[i].tolist() for side in second.embeddings.reshape(2, 2, 4))
        target = reference.cosine(a, p) / 0.2
        logits = [term + target, *(reference.cosine(a, other) / 0.2 for other in past)]
        expected += reference.cross_entropy(target, logits)
    assert float(objective(second).total) == pytest.approx(expected, abs=ROUNDING)


# Hardness


def test_hardness_weighs_negatives_and_has_no_gradient_of_its_own() -> None:
    a, p = drawn(3)
    a.requires_grad_()
    (gradient,) = torch.autograd.grad(InfoNCE(0.2, in_batch_hardness=4.0)(a, p), a)
    cosines = F.normalize(a, dim=1) @ F.normalize(p, dim=1).T
    raised = 4.0 * cosines.detach() * (1 - torch.eye(3))
    loss = F.cross_entropy(cosines / 0.2 + raised, torch.arange(3))
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, a)[0])


def test_hardness_reaches_the_negatives_of_every_direction_but_never_the_pair() -> None:
    every = ExampleVectors.distinct(*drawn(3))
    loss = InfoNCE(0.2, in_batch_hardness=4.0, directions=["query_to_doc", "doc_to_query"])
    expected = []
    a, p = every.anchor.tolist(), every.positive.tolist()
    for i in range(3):
        target = reference.cosine(a[i], p[i]) / 0.2
        others = [reference.cosine(*pair) for j in range(3) if j != i for pair in ((a[i], p[j]), (p[i], a[j]))]
        logits = [target, target, *(cosine / 0.2 + 4.0 * cosine for cosine in others)]
        expected.append(reference.cross_entropy(target, logits))
    assert terms_of(loss, every).tolist() == pytest.approx(expected, abs=ROUNDING)


# Variants of NT-Xent


@pytest.mark.parametrize("temperature", [0.05, 0.005])
def test_low_temperatures_neither_overflow_nor_lose_the_gradient(temperature: float) -> None:
    every = ExampleVectors.distinct(*drawn(4))
    a = every.anchor.float().requires_grad_()
    value = DebiasedNTXent(temperature)(a, every.positive.float())
    expected = DebiasedNTXent(temperature)(every.anchor, every.positive)
    assert float(value.detach()) == pytest.approx(float(expected), rel=1e-4)
    assert torch.isfinite(torch.autograd.grad(value, a)[0]).all()


def test_scale_and_bias_are_learned_logged_and_never_decayed() -> None:
    objective = Contrastive(SigLIP(temperature=0.1, bias=-10.0))
    parameters = dict(objective.named_parameters())
    assert parameters.keys() == {"loss.learned.log_scale", "loss.learned_bias"}
    assert all(each.shape == (1,) for each in parameters.values())  # decay spares those
    terms = objective(encoded([[1, 2], [3, 4]]))
    assert float(terms.logs["temperature"]) == pytest.approx(0.1)
    assert float(terms.logs["bias"]) == -10.0
    terms.total.backward()
    assert all(each.grad is not None and float(each.grad.abs()) > 1e-3 for each in parameters.values())
