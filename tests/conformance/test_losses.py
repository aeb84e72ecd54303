"""Properties that every public loss has: in-batch losses, of the whole batch, of scored pairs and of rankings."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf, nan
from typing import Any
from unittest import mock

import parts
import pytest
import reference
import torch
from covering import covering
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from contrastive_text import losses
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.losses.comparison import MASKED_ID, ExampleVectors, Group

EXACT = 1e-10
"""The promise of every way to compute a step, in float64."""

FOUR = ["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]

# In-batch losses: name -> the loss from options such as streamed.
IN_BATCH: dict[str, Callable[..., losses.Loss]] = {
    "InfoNCE": lambda **how: losses.InfoNCE(0.2, **how),
    "InfoNCE, two-sided": lambda **how: losses.InfoNCE(0.2, "two_sided", **how),
    "InfoNCE, weighed": lambda **how: losses.InfoNCE(0.2, hard_negative_log_weight=0.7, **how),
    "InfoNCE, four directions": lambda **how: losses.InfoNCE(
        0.2,
        directions=FOUR,
        hard_negative_log_weight=0.7,
        **how,  # type: ignore[arg-type]  # they are such names
    ),
    "InfoNCE, without queries": lambda **how: losses.InfoNCE(
        0.2, directions=["query_to_doc", "doc_to_doc"], **how
    ),
    "InfoNCE, hardened": lambda **how: losses.InfoNCE(
        0.2, "two_sided", in_batch_hardness=3.0, hard_negative_hardness=2.0, **how
    ),
    "NTXent": lambda **how: losses.NTXent(0.2, **how),
    "NTXent, dot products": lambda **how: losses.NTXent(0.8, similarity="dot", **how),
    "SupCon": lambda **how: losses.SupCon(0.2, **how),
    "DCL": lambda **how: losses.DCL(0.2, **how),
    "DCL, dot products": lambda **how: losses.DCL(0.8, similarity="dot", **how),
    "DCLW": lambda **how: losses.DCLW(0.2, **how),
    "DCLW, one side": lambda **how: losses.DCLW(0.2, "two_sided", same_side=False, **how),
    "DebiasedNTXent": lambda **how: losses.DebiasedNTXent(0.2, **how),
    "SigLIP": lambda **how: losses.SigLIP(0.2, -3.0, **how),
}
# Losses of the whole batch.
WHOLE_BATCH: dict[str, Callable[[], losses.BatchLoss]] = {
    "AlignmentUniformity": lambda: losses.AlignmentUniformity(3, 4, 0.7, 0.3),
    "GlobalOrthogonalRegularization": lambda: losses.GlobalOrthogonalRegularization(0.6, 2),
    "BarlowTwins": lambda: losses.BarlowTwins(0.2),
    "VICReg": lambda: losses.VICReg(3, 2, 0.5),
    "SIGReg": lambda: losses.SIGReg(0.3, directions=5),
    "SIGReg, pooled": lambda: losses.SIGReg(0.3, directions=5, pooled=True),
}
# Losses of scored pairs.
SCORED: dict[str, Callable[[], losses.ScoreLoss]] = {
    "CosineMSE": losses.CosineMSE,
    "CoSENT": lambda: losses.CoSENT(0.3),
    "AnglE": lambda: losses.AnglE(0.5),
}
# Losses of rankings.
RANKED: dict[str, Callable[[], losses.RankLoss]] = {
    "ListNet": lambda: losses.ListNet(0.1, 0.05),
    "ListMLE": lambda: losses.ListMLE(0.1),
    "KLDivergence": lambda: losses.KLDivergence(0.1, 0.05),
    "MarginMSE": losses.MarginMSE,
}
in_batch = pytest.mark.parametrize("name", IN_BATCH)
whole_batch = pytest.mark.parametrize("name", WHOLE_BATCH)
scored = pytest.mark.parametrize("name", SCORED)
ranked = pytest.mark.parametrize("name", RANKED)


@pytest.mark.parametrize(
    ("base", "entries"),
    [
        (losses.Loss, IN_BATCH),
        (losses.BatchLoss, WHOLE_BATCH),
        (losses.ScoreLoss, SCORED),
        (losses.RankLoss, RANKED),
    ],
)
def test_every_public_loss_has_an_entry(base: type[nn.Module], entries: dict[str, Any]) -> None:
    public = {
        name for name in losses.__all__ if isinstance(cls := vars(losses)[name], type) and issubclass(cls, base)
    }
    public -= {"Loss", "SoftmaxLoss", "BatchLoss", "ScoreLoss", "RankLoss"}
    assert public == {name.partition(",")[0] for name in entries}
    assert {type(make()).__name__ for make in entries.values()} == {name.partition(",")[0] for name in entries}
    assert base is not losses.Loss or entries.keys() == SLOW.keys()


@pytest.mark.parametrize("name", [*IN_BATCH, *WHOLE_BATCH, *SCORED, *RANKED])
def test_a_loss_is_made_again_from_its_arguments(name: str) -> None:
    makes: dict[str, Callable[..., nn.Module]] = {**IN_BATCH, **WHOLE_BATCH, **SCORED, **RANKED}
    parts.check_part(makes[name]())


SOFTMAX = (losses.InfoNCE, losses.NTXent, losses.SupCon, losses.DCL, losses.DCLW, losses.DebiasedNTXent)
TEMPERATE = (
    *SOFTMAX,
    losses.SigLIP,
    losses.CoSENT,
    losses.AnglE,
    losses.ListNet,
    losses.ListMLE,
    losses.KLDivergence,
)
OPTIONS: list[tuple[type[nn.Module], dict[str, Any], list[str]]] = [  # Any: wrong values too
    *((cls, {"temperature": t}, ["temperature", f"{t}"]) for cls in TEMPERATE for t in (0.0, -0.05, nan, inf)),
    *((cls, {"guide_temperature": 0.0}, ["temperature", "0"]) for cls in (losses.ListNet, losses.KLDivergence)),
    *((cls, {"reduction": "none"}, ["reduction", "two_sided", "'none'"]) for cls in SOFTMAX),
    *(
        (cls, {"similarity": "l2"}, ["similarity", "cosine", "'l2'"])
        for cls in (losses.InfoNCE, losses.NTXent, losses.SupCon, losses.DCL)
    ),
    *((losses.InfoNCE, {"in_batch_hardness": alpha}, ["in_batch_hardness", f"{alpha}"]) for alpha in (-1.0, inf)),
    *(
        (losses.InfoNCE, {"hard_negative_hardness": alpha}, ["hard_negative_hardness", f"{alpha}"])
        for alpha in (-1.0, nan)
    ),
    (losses.InfoNCE, {"directions": ["doc_to_doc"]}, ["directions", "query_to_doc", "['doc_to_doc']"]),
    (losses.InfoNCE, {"directions": ["query_to_doc", "both"]}, ["directions", "each once", "'both'"]),
    (losses.InfoNCE, {"directions": FOUR, "reduction": "two_sided"}, ["directions", "reduction", "two_sided"]),
    *((losses.DCLW, {"sigma": sigma}, ["DCLW.sigma", f"{sigma}"]) for sigma in (0.0, -1.0, inf, nan)),
    *((losses.DebiasedNTXent, {"tau_plus": share}, ["tau_plus", f"{share}"]) for share in (-0.1, 1.0, nan)),
    (losses.AlignmentUniformity, {"alpha": 0.5}, ["alpha", "0.5"]),
    (losses.AlignmentUniformity, {"t": 0}, ["t ", "0"]),
    (losses.AlignmentUniformity, {"uniformity_weight": -1}, ["uniformity_weight", "-1"]),
    (losses.BarlowTwins, {"off_diagonal_weight": -1}, ["off_diagonal_weight", "-1"]),
    (losses.VICReg, {"covariance_weight": nan}, ["VICReg.covariance_weight", "nan"]),
    (losses.GlobalOrthogonalRegularization, {"mean_weight": inf}, ["mean_weight", "inf"]),
    (losses.SIGReg, {"directions": 0}, ["SIGReg.directions", "0"]),
]


@pytest.mark.parametrize(
    ("cls", "options", "words"), OPTIONS, ids=lambda each: getattr(each, "__name__", str(each))
)
def test_an_option_that_makes_no_loss_is_refused(
    cls: type[nn.Module], options: dict[str, Any], words: list[str]
) -> None:
    parts.check_refused(lambda: cls(**options), ValueError, words)


# In-batch losses


def examples(
    n: int = 7, hard: int = 1, ids: int | None = None, classes: int = 3, seed: int = 3
) -> ExampleVectors:
    """Random vectors with classes. Texts have one of some ids, of two kinds if odd; None for one each."""
    noise = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2 + hard, n, 4, generator=noise, dtype=torch.float64)
    every = ExampleVectors.distinct(drawn[0], drawn[1], drawn[2:].transpose(0, 1) if hard else None)
    if ids is not None:
        known = torch.randint(ids, (n, 2 + hard, *([2] if ids % 2 else [])), generator=noise)
        known[0, 2:] = MASKED_ID  # the first example lacks its hard negatives
        every = replace(every, anchor_ids=known[:, 0], positive_ids=known[:, 1])
        every = replace(every, negative_ids=known[:, 2:] if hard else None)
    return replace(every, target=torch.randint(classes, (n,), generator=noise))


def terms(loss: losses.Loss, every: ExampleVectors, start: int = 0, stop: int | None = None) -> Tensor:
    """The terms of some local examples against all, by class if the loss reads labels."""
    if loss.reads_classes and every.target is not None:
        every = replace(every, groups={"classes": Group.of(every.target, effect="mean")})
    local = every if (start, stop) == (0, None) else every.map(lambda each: each[start:stop])
    return loss.compare(loss.comparisons(local, every, offset=start))


def outcome(loss: losses.Loss, every: ExampleVectors, start: int = 0, stop: int | None = None) -> list[Tensor]:
    """The terms, and the gradients of their sum, weighed row by row."""
    leaves = every.map(lambda each: each.clone().requires_grad_(each.is_floating_point()))
    found = terms(loss, leaves, start, stop)
    loss.zero_grad()
    (found * torch.linspace(0.5, 2, len(found), dtype=found.dtype)).sum().backward()
    learned = [leaves.anchor, leaves.positive, leaves.negative, *loss.parameters()]
    return [
        found.detach(),
        *(torch.zeros_like(each) if each.grad is None else each.grad for each in learned if each is not None),
    ]


def made(name: str, **how: Any) -> losses.Loss:  # Any: options of the losses
    """A loss in float64 whose temperature is learned."""
    return IN_BATCH[name](**how, **({} if name == "SigLIP" else {"learn_temperature": True})).double()


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for reached, wanted in zip(found, expected, strict=True):
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        torch.testing.assert_close(reached, wanted, rtol=0, atol=EXACT * max(largest, 1))


# Name of an in-batch loss -> its terms, spelt as loops over Python's numbers.
SLOW: dict[str, Callable[[ExampleVectors], list[float]]] = {
    "InfoNCE": lambda e: reference.softmax(reference.one_way(e)),
    "InfoNCE, two-sided": lambda e: reference.softmax(reference.both_ways(e)),
    "InfoNCE, weighed": lambda e: reference.softmax(reference.one_way(e), log_weight=0.7),
    "InfoNCE, four directions": lambda e: reference.in_directions(e, FOUR, log_weight=0.7),
    "InfoNCE, without queries": lambda e: reference.in_directions(e, ["query_to_doc", "doc_to_doc"]),
    "InfoNCE, hardened": lambda e: reference.softmax(reference.both_ways(e), own_alpha=2.0, alpha=3.0),
    "NTXent": lambda e: reference.softmax(reference.both_sides(e)),
    "NTXent, dot products": lambda e: reference.softmax(reference.both_sides(e), t=0.8),
    "SupCon": reference.by_class,
    "DCL": lambda e: reference.decoupled(reference.both_sides(e)),
    "DCL, dot products": lambda e: reference.decoupled(reference.both_sides(e), t=0.8),
    "DCLW": lambda e: reference.decoupled(reference.both_sides(e), weights=reference.pair_weights(e)),
    "DCLW, one side": lambda e: reference.decoupled(reference.both_ways(e), weights=reference.pair_weights(e)),
    "DebiasedNTXent": lambda e: reference.debiased(reference.both_sides(e)),
    "SigLIP": lambda e: reference.sigmoids(reference.one_way(e)),
}


@given(n=st.integers(1, 5), hard=st.integers(0, 2), ids=st.sampled_from([None, 2, 8]), seed=st.integers(0, 2**31))
@in_batch
def test_the_terms_equal_the_double_loop(name: str, n: int, hard: int, ids: int | None, seed: int) -> None:
    every = examples(n, hard, ids, seed=seed)
    if "dot products" in name:  # of unit vectors they are cosines
        every = every.map(lambda each: unit_vectors(each) if each.is_floating_point() else each)
    loss = IN_BATCH[name]().double().requires_grad_(False)
    if isinstance(loss, losses.SigLIP) and loss.learned is not None:  # as float64 keeps its temperature
        loss.learned.log_scale.fill_(-math.log(0.2))
    # Logits of at most 20 in float64, sums of some thirty terms.
    assert terms(loss, every).tolist() == pytest.approx(SLOW[name](every), abs=1e-11, rel=1e-11)


TEXTS = {"all differ": None, "8": 8, "9 of two kinds": 9, "2": 2, "1": 1}
PARTS = {"all": (0, None), "some": (2, 6), "none": (5, 5)}


@pytest.mark.parametrize(
    ("name", "ids", "part", "hard"), covering([*product(IN_BATCH, TEXTS, PARTS, ("0", "2"))])
)
def test_a_streamed_loss_has_the_terms_and_the_gradients_of_the_dense_one(
    name: str, ids: str, part: str, hard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses.base, "_ENTRIES", 40)  # a few rows
    every = examples(hard=int(hard), ids=TEXTS[ids])
    assert_equal(*(outcome(made(name, streamed=how), every, *PARTS[part]) for how in (True, False)))


@pytest.mark.slow
@in_batch
def test_gradients_of_an_in_batch_loss_agree_with_finite_differences(name: str) -> None:
    loss, every = made(name), examples(n=3, ids=7)
    if name == "InfoNCE, hardened":  # its weights have no gradient
        loss = losses.InfoNCE(0.2, "two_sided", learn_temperature=True).double()

    def value(anchor: Tensor, positive: Tensor, negative: Tensor, *_: Tensor) -> Tensor:
        return terms(loss, replace(every, anchor=anchor, positive=positive, negative=negative))

    assert every.negative is not None
    vectors = [each.requires_grad_() for each in (every.anchor, every.positive, every.negative)]
    assert torch.autograd.gradcheck(value, (*vectors, *loss.parameters()))


@in_batch
def test_nothing_of_the_size_of_the_matrix_is_kept_for_the_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses.base, "_ENTRIES", 600)
    every, largest = examples(40), {}
    for streamed in (True, False):
        sizes = [0]

        def note(saved: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(saved.numel())
            return saved

        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            outcome(made(name, streamed=streamed), every)
        largest[streamed] = max(sizes)
    assert largest[True] < 1000  # columns of four features, or a part
    assert largest[False] >= 40 * 40


@in_batch
def test_a_loss_is_streamed_if_it_is_told_to_or_the_matrix_is_large(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [mock.Mock(wraps=getattr(losses.base, each)) for each in ("checkpoint", "_logits")]
    monkeypatch.setattr(losses.base, "checkpoint", parts[0])
    monkeypatch.setattr(losses.base, "_logits", parts[1])
    monkeypatch.setattr(losses.base, "_ENTRIES", 20)
    for streamed, above in product((True, False, None), (10**6, 10)):
        monkeypatch.setattr(losses.base, "STREAMED_ABOVE", above)
        for each in parts:
            each.reset_mock()
        outcome(made(name, streamed=streamed), examples())
        assert any(each.called for each in parts) == (above == 10 if streamed is None else streamed)


@in_batch
def test_the_terms_of_two_parts_and_of_another_order_are_those_of_the_whole(name: str) -> None:
    loss, every = IN_BATCH[name]().double().requires_grad_(False), examples(ids=8)
    whole = terms(loss, every).reshape(-1, 7)
    halves = [terms(loss, every, start, stop).reshape(len(whole), -1) for start, stop in ((0, 3), (3, 7))]
    torch.testing.assert_close(torch.cat(halves, dim=1), whole, rtol=EXACT, atol=EXACT)
    order = torch.tensor([3, 1, 5, 0, 6, 2, 4])
    moved = terms(loss, every.map(lambda each: each[order])).reshape(len(whole), -1)
    torch.testing.assert_close(moved, whole[:, order], rtol=EXACT, atol=EXACT)


@in_batch
def test_lengths_of_vectors_count_for_dot_products_alone(name: str) -> None:
    loss, every = IN_BATCH[name]().double().requires_grad_(False), examples()
    longer = replace(every, anchor=every.anchor * torch.linspace(0.1, 9, 7).double().unsqueeze(1))
    before, after = terms(loss, every), terms(loss, longer)
    assert torch.allclose(before, after, rtol=EXACT, atol=EXACT) == ("dot products" not in name)


@pytest.mark.parametrize("streamed", [False, True])
@in_batch
def test_half_precision_and_autocast_leave_the_float32_value(name: str, streamed: bool) -> None:
    noise = torch.Generator().manual_seed(9)
    drawn, loss = [torch.randn(5, 16, generator=noise) for _ in range(3)], IN_BATCH[name](streamed=streamed)
    for dtype in (torch.bfloat16, torch.float16):
        halves = [each.to(dtype) for each in drawn]
        # torch's autocast for one half precision doesn't take vectors of the other.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            inside = loss(*halves)
        assert inside.dtype == torch.float32
        assert torch.equal(inside, loss(*(each.float() for each in halves)))


@pytest.mark.parametrize("name", ["InfoNCE", "InfoNCE, weighed", "NTXent", "SupCon"])
def test_the_gradient_of_a_streamed_softmax_is_that_of_float32_in_half_precision_and_autocast(name: str) -> None:
    noise = torch.Generator().manual_seed(9)
    halves = [torch.randn(5, 16, generator=noise).bfloat16().requires_grad_() for _ in range(2)]
    wide = [each.detach().float().requires_grad_() for each in halves]
    loss = made(name, streamed=True).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss(*halves).backward()
    loss(*wide).backward()
    for half, full in zip(halves, wide, strict=True):
        assert half.grad is not None
        assert full.grad is not None
        assert torch.equal(half.grad, full.grad.bfloat16())


@pytest.mark.parametrize("streamed", [False, True])
@in_batch
def test_a_zero_vector_leaves_terms_and_gradients_finite(name: str, streamed: bool) -> None:
    every = examples(ids=8).map(lambda each: each.float() if each.is_floating_point() else each)
    every.anchor[1], every.positive[2] = 0.0, 0.0
    assert all(each.isfinite().all() for each in outcome(IN_BATCH[name](streamed=streamed), every))


# Losses of the whole batch

IDS = torch.tensor([[1, 5], [2, 6], [1, 7], [3, 5], [4, 8], [2, 9], [9, 5]])


def sides(seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(7, 4, generator=noise, dtype=torch.float64).requires_grad_() for _ in range(2)]


@whole_batch
def test_gradients_of_a_batch_loss_agree_with_finite_differences(name: str) -> None:
    assert torch.autograd.gradcheck(lambda x, y: WHOLE_BATCH[name]()(x, y, IDS), sides())


@whole_batch
def test_the_order_of_pairs_does_not_matter_but_which_texts_are_pairs_does(name: str) -> None:
    (x, y), loss = (each.detach() for each in sides()), WHOLE_BATCH[name]()
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    before = float(loss(x, y, IDS))
    assert float(loss(x[order], y[order], IDS[order])) == pytest.approx(before, abs=EXACT)
    if name != "GlobalOrthogonalRegularization":  # which knows no pairs
        assert abs(float(loss(x, y[order], torch.stack([IDS[:, 0], IDS[order, 1]], dim=1))) - before) > 1e-3


@whole_batch
def test_half_precision_and_autocast_leave_the_float32_value_of_a_batch_loss(name: str) -> None:
    x, y = (each.to(torch.bfloat16) for each in sides())
    expected = WHOLE_BATCH[name]()(x.float(), y.float(), IDS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = WHOLE_BATCH[name]()(x, y, IDS)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@whole_batch
def test_equal_vectors_have_a_finite_loss_and_gradient(name: str) -> None:
    x, y = (torch.ones(5, 3, requires_grad=True) for _ in range(2))
    value = WHOLE_BATCH[name]()(x, y)
    value.backward()
    assert value.isfinite()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in (x, y))


@whole_batch
def test_many_rows_come_in_blocks_and_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[Tensor]:
        inputs = sides()
        value = WHOLE_BATCH[name]()(*inputs, IDS)
        return [value.detach(), *torch.autograd.grad(value, inputs)]

    whole = found()
    for entries in (14, 7 * 17 * 2):  # two rows; two directions of SIGReg
        monkeypatch.setattr(losses.batch_losses, "BLOCK_ENTRIES", entries)
        assert_equal(found(), whole)


@whole_batch
def test_sides_of_other_shapes_are_refused(name: str) -> None:
    for shapes in (((2, 3), (3, 3), (2, 2)), ((2, 3), (2, 3), (3, 2))):
        with pytest.raises(
            ValueError, match=rf"{name.split(',')[0]}: expected .* one shape \(N, D\) and ids \(N, 2\)"
        ):
            WHOLE_BATCH[name]()(*(torch.ones(shape) for shape in shapes))


# Losses of scored pairs


def scored_pairs(loss: losses.ScoreLoss) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(0)
    shape = (6, 2, 5) if loss.reads_vectors else (6,)
    pairs = 2 * torch.rand(shape, generator=noise, dtype=torch.float64) - 1
    return pairs.requires_grad_(), torch.tensor([0.2, 1.0, 0.0, 0.4, 1.0, 0.4], dtype=torch.float64)


@scored
def test_a_score_loss_is_the_mean_of_its_terms_in_any_order(name: str) -> None:
    loss = SCORED[name]()
    pairs, scores = scored_pairs(loss)
    assert torch.autograd.gradcheck(lambda each: loss(each, scores), [pairs])
    assert loss.terms(pairs, scores).shape == ((1,) if loss.whole_batch else (6,))
    assert torch.equal(loss.terms(pairs, scores).mean(), loss(pairs, scores))
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    torch.testing.assert_close(loss(pairs[order], scores[order]), loss(pairs, scores), rtol=EXACT, atol=EXACT)
    half = pairs.detach().bfloat16()
    assert torch.equal(loss(half, scores.float()), loss(half.float(), scores.float()))
    with pytest.raises(ValueError, match=rf"{name}: expected .* for scores \(N,\), got .* and \(6, 1\)"):
        loss(pairs, scores.unsqueeze(1))


# Losses of rankings


def ranking(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosines of student and guide, targets, and columns that are no candidates: all of the third row."""
    noise = torch.Generator().manual_seed(5)
    student, guide = (2 * torch.rand(2, 4, 5, generator=noise, dtype=dtype) - 1).unbind()
    hidden = torch.zeros(4, 5, dtype=torch.bool)
    hidden[0, :3] = hidden[1, 4] = hidden[2] = True
    return student.requires_grad_(), guide, torch.tensor([3, 0, 4, 1]), hidden


@ranked
def test_a_rank_loss_has_its_gradient_in_any_order_of_the_candidates(name: str) -> None:
    loss, (student, guide, target, hidden) = RANKED[name](), ranking()
    assert torch.autograd.gradcheck(lambda scores: loss.terms(scores, guide, target, hidden), student)
    order = torch.tensor([2, 4, 0, 1, 3])
    moved = loss.terms(student[:, order], guide[:, order], order.argsort()[target], hidden[:, order])
    torch.testing.assert_close(moved, loss.terms(student, guide, target, hidden), rtol=EXACT, atol=EXACT)
    with pytest.raises(ValueError, match=rf"{name}: expected cosines .* got \(2, 3\) and \(2, 4\)"):
        loss(torch.zeros(2, 3), torch.zeros(2, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@ranked
def test_a_row_without_candidates_is_0_and_moves_nothing(name: str, dtype: torch.dtype) -> None:
    student, *rest = ranking(dtype)
    found = RANKED[name]().terms(student, *rest)
    found.sum().backward()
    assert student.grad is not None
    assert float(found[2].detach()) == 0.0
    assert not student.grad[2].any()
    assert student.grad.isfinite().all()
    assert student.grad[[0, 1, 3]].any(dim=1).all()
