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
    DCL,
    DCLW,
    Comparison,
    DebiasedNTXent,
    InfoNCE,
    Loss,
    NTXent,
    Reduction,
    SameId,
    SigLIP,
    SupCon,
    cosine_similarity_matrix,
)
from contrastive_text.losses.comparison import Triples
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    NegativesAsHard,
    PositivesOnly,
    Queue,
    Siblings,
)

FOUR: tuple[Direction, ...] = get_args(Direction)
# Logits of at most 50 in float64, sums of some thirty terms.
ROUNDING = 1e-11
PAIR = (Slot("anchor", 0), Slot("positive", 0))


def drawn(n: int, sides: int = 2, seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [*torch.randn(sides, n, 4, generator=noise, dtype=torch.float64)]


def terms_of(loss: Loss, every: Triples) -> Tensor:
    return loss.compare(loss.comparisons(every, every))


# Rules, shapes and cosines


def test_columns_equal_to_a_rows_own_text_or_to_its_positive_are_masked_and_its_target_never_is() -> None:
    texts = SameId(rows=torch.tensor([[1, 2], [3, 2]]), columns=torch.tensor([2, 2, 1, 3, 9]))
    block = Comparison(torch.ones(2, 1), torch.ones(5, 1), torch.tensor([0, 1]), masks={"texts": texts})
    assert block.masked().tolist() == [
        [False, True, True, False, False],
        [True, False, False, True, False],
    ]


@given(st.integers(0, 2**31))
def test_texts_with_two_ids_are_equal_where_they_agree_in_either(seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    ids, target = torch.randint(4, (6, 2), generator=noise), torch.randint(6, (5,), generator=noise)
    own = torch.randint(4, (5, 2), generator=noise)
    both = SameId(torch.stack([own, ids[target]], dim=1), ids)
    first, second = (SameId(both.rows[..., kind], ids[:, kind]) for kind in (0, 1))
    assert torch.equal(both.mask(), first.mask() | second.mask())
    block = Comparison(own, ids, target, masks={"texts": both, "first": first})
    mask, places = block.masked(), block.places(most=100)
    assert places is not None
    rows, columns = places
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {(int(r), int(c)) for r, c in mask.nonzero()}
    assert block.places(most=0) is None


def test_a_column_without_a_class_is_no_rows_and_a_target_always_is() -> None:
    classes = SameId(rows=torch.tensor([[0], [2]]), columns=torch.tensor([0, -1, 2, 0]))
    block = Comparison(torch.ones(2, 1), torch.ones(4, 1), torch.tensor([1, 0]), positives=classes)
    assert block.positive_columns().tolist() == [
        [True, True, False, True],
        [True, False, True, False],
    ]


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


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_cosines_are_at_least_float32(dtype: torch.dtype, expected: torch.dtype) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=dtype)
    cosines = cosine_similarity_matrix(rows, rows)
    assert cosines.dtype == expected
    torch.testing.assert_close(cosines, torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=expected))


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


@pytest.mark.parametrize("directions", [FOUR, ("query_to_doc", "query_to_query", "doc_to_doc")])
def test_one_text_repeated_has_no_negatives_and_a_finite_gradient(directions: tuple[Direction, ...]) -> None:
    a, p, h = (side.requires_grad_() for side in drawn(3, sides=3))
    same = torch.zeros(3, dtype=torch.long)
    every = Triples(a, p, h.unsqueeze(1), same, same, same.unsqueeze(1))
    terms = terms_of(InfoNCE(0.2, directions=directions), every)
    found = torch.autograd.grad(terms.sum(), [a, p, h])
    # The pair alone; where the positive looks for its anchor too, it stands there twice.
    twice = float("doc_to_query" in directions)
    torch.testing.assert_close(terms, torch.full((3,), 2.0, dtype=torch.float64).log() * twice)
    assert all(float(each.abs().max()) < ROUNDING for each in found)


def encoded(ids: list[list[int]], target: list[float] | None = None) -> Encoded:
    flat = torch.tensor(ids).flatten()
    vectors = torch.randn(len(flat), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = None if target is None else torch.tensor(target)
    return Encoded(vectors, PAIR, text_ids=flat, target=labels)


def test_siblings_are_hidden_in_every_direction() -> None:
    # The first two anchors are one text; its second positive is also the third's.
    found = [
        Contrastive(InfoNCE(0.2, directions=FOUR), columns=[Duplicates(), *way])(
            encoded([[1, 1, 2], [3, 4, 5]])
        ).total
        for way in ([Siblings()], [])
    ]
    a, p = encoded([[1, 1, 2], [3, 4, 5]]).embeddings.reshape(2, 3, 4)
    for siblings, total in zip((True, False), found, strict=True):
        others = {0: {2}, 1: {2}, 2: {0, 1}} if siblings else {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
        expected = 0.0
        for i in range(3):
            logits = [reference.cosine(a[i].tolist(), p[i].tolist()) / 0.2] * 2
            for j in others[i]:
                logits += [reference.cosine(x[i].tolist(), p[j].tolist()) / 0.2 for x in (a, p)]
            for j in {0: {2}, 1: {2}, 2: {0, 1}}[i]:  # the same text is no other anchor
                logits += [reference.cosine(x[i].tolist(), a[j].tolist()) / 0.2 for x in (a, p)]
            expected += reference.cross_entropy(logits[0], logits)
        assert float(total) == pytest.approx(expected, abs=ROUNDING)


def test_a_queue_stands_in_the_anchors_columns_and_labels_choose_the_pairs() -> None:
    objective = Contrastive(InfoNCE(0.2, directions=FOUR), columns=[Duplicates(), Siblings(), Queue(100)])
    first, second = encoded([[1, 2], [3, 4]]), encoded([[5, 6], [7, 8]])
    alone = float(objective(second).total)
    objective(first)
    objective.finish_step()
    # Past positives and anchors are columns of both rows, and of the anchors alone.
    past = first.embeddings.tolist()
    slow = reference.in_directions(Triples.distinct(*second.embeddings.reshape(2, 2, 4)), FOUR)
    assert alone == pytest.approx(sum(slow), abs=ROUNDING)
    expected = 0.0
    for i, term in enumerate(slow):
        a, p = (side[i].tolist() for side in second.embeddings.reshape(2, 2, 4))
        target = reference.cosine(a, p) / 0.2
        logits = [term + target, *(reference.cosine(a, other) / 0.2 for other in past)]
        expected += reference.cross_entropy(target, logits)
    assert float(objective(second).total) == pytest.approx(expected, abs=ROUNDING)
    labelled = encoded([[1, 2, 3], [4, 5, 6]], target=[1.0, 0.0, 1.0])
    kept = encoded([[1, 3], [4, 6]])
    kept.embeddings.copy_(labelled.embeddings[[0, 2, 3, 5]])
    loss = InfoNCE(0.2, directions=FOUR)
    only = Contrastive(loss, columns=[Duplicates(), Siblings(), PositivesOnly()])(labelled).total
    assert float(only) == pytest.approx(float(Contrastive(loss)(kept).total), abs=ROUNDING)
    assert float(
        Contrastive(loss, columns=[Duplicates(), Siblings(), NegativesAsHard()])(labelled).total
    ) > float(only)


# Hardness


def test_hardness_weighs_negatives_and_has_no_gradient_of_its_own() -> None:
    every = Triples.distinct(*drawn(3))
    a = every.anchor.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(InfoNCE(0.2, in_batch_hardness=4.0)(a, every.positive), a)
    units = torch.nn.functional.normalize(every.positive, dim=1)
    cosines = torch.nn.functional.normalize(a, dim=1) @ units.T
    raised = 4.0 * cosines.detach() * (1 - torch.eye(3))
    loss = torch.nn.functional.cross_entropy(cosines / 0.2 + raised, torch.arange(3))
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, a)[0])


def test_hardness_reaches_the_negatives_of_every_direction_but_never_the_pair() -> None:
    every = Triples.distinct(*drawn(3))
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
    every = Triples.distinct(*drawn(4))
    a = every.anchor.float().requires_grad_()
    value = DebiasedNTXent(temperature)(a, every.positive.float())
    expected = DebiasedNTXent(temperature)(every.anchor, every.positive)
    assert float(value.detach()) == pytest.approx(float(expected), rel=1e-4)
    assert torch.isfinite(torch.autograd.grad(value, a)[0]).all()


def test_weights_of_dclw_have_a_gradient_that_reaches_every_pair() -> None:
    a, p = (side.requires_grad_() for side in drawn(4))
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
    terms = terms_of(loss, every)
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
