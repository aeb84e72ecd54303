"""Streamed losses against the dense ones: values, gradients, memory, and which of both is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from covering import crossed, rest_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import (
    Alike,
    Comparison,
    Forbid,
    InfoNCE,
    Loss,
    NTXent,
    SupCon,
    info_nce_terms,
    reduce_terms,
    streaming,
    sup_con_terms,
)
from contrastive_text.losses.device_tiles import DeviceTiling
from contrastive_text.losses.streaming import is_streamed, streamed_terms
from contrastive_text.losses.tiles import Tiling
from contrastive_text.losses.triples import Triples

# The equality that is promised of every way to compute a step, in float64.
EXACT = 1e-10
Terms = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of three: batches of a dozen rows fall into several, the last ones smaller."""
    monkeypatch.setattr(streaming, "_TILE", 3)
    monkeypatch.setattr(streaming, "_MIRRORED_TILE", 3)


def examples(n: int, hard: int = 0, ids: int | None = None, classes: int | None = None, seed: int = 0) -> Triples:
    """Random vectors; texts of that many ids, None for one each; examples of that many classes, None for none.

    An odd number of ids is one of two kinds.
    """
    noise = torch.Generator().manual_seed(seed)

    def vectors(*shape: int) -> Tensor:
        return torch.randn(*shape, 4, generator=noise, dtype=torch.float64)

    triples = Triples.distinct(vectors(n), vectors(n), vectors(n, hard) if hard else None)
    if ids is not None:
        kinds = (2,) if ids % 2 else ()
        triples = replace(
            triples,
            anchor_ids=torch.randint(ids, (n, *kinds), generator=noise),
            positive_ids=torch.randint(ids, (n, *kinds), generator=noise),
            negative_ids=torch.randint(ids, (n, hard, *kinds), generator=noise) if hard else None,
        )
    if classes is not None:
        triples = replace(triples, classes=torch.randint(classes, (n,), generator=noise))
    return triples


def terms_and_gradients(
    loss: Loss, every: Triples, start: int = 0, stop: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """The terms of some local examples against all, and the gradients of their sum, weighed row by row."""
    leaves = {
        name: vectors.clone().requires_grad_()
        for name, vectors in (
            ("anchor", every.anchor),
            ("positive", every.positive),
            ("negative", every.negative),
        )
        if vectors is not None
    }
    every = replace(every, **leaves)
    local = every if (start, stop) == (0, None) else every.map(lambda rows: rows[start:stop])
    terms = loss.compare(loss.comparisons(local, every, offset=start))
    (terms * torch.linspace(0.5, 2, len(terms), dtype=terms.dtype)).sum().backward()
    leaves |= dict(loss.named_parameters())
    # InfoNCE's own side has no gradient where no row is local, nor an unweighed class.
    return terms.detach(), {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()
    }


def assert_equal(dense: Loss, streamed: Loss, every: Triples, start: int = 0, stop: int | None = None) -> None:
    expected, expected_gradients = terms_and_gradients(dense, every, start, stop)
    reached, gradients = terms_and_gradients(streamed, every, start, stop)
    assert reached.dtype == expected.dtype
    # Logits of some 20 to 1000 in float64.
    torch.testing.assert_close(reached, expected, rtol=EXACT, atol=EXACT)
    assert gradients.keys() == expected_gradients.keys()
    largest = max((float(g.abs().max()) for g in expected_gradients.values() if g.numel()), default=0.0)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=0, atol=EXACT * max(largest, 1e-3), msg=name)


def both(make: Callable[..., Loss], **options: object) -> tuple[Loss, Loss]:
    """A loss dense and streamed, the temperature trained in both, in float64."""
    return tuple(make(learn_temperature=True, streamed=how, **options).double() for how in (False, True))  # type: ignore[return-value]  # of two


LOSSES = {
    "InfoNCE": InfoNCE,
    "InfoNCE two-sided": lambda **options: InfoNCE(reduction="two_sided", **options),
    "InfoNCE weighed": lambda **options: InfoNCE(hard_negative_log_weight=0.7, **options),
    "NTXent": NTXent,
    "SupCon": SupCon,
}


@pytest.mark.parametrize("hard", [0, 2])
@pytest.mark.parametrize(
    ("loss", "ids", "part"),
    crossed(LOSSES, [None, 9, 2], [(2, 6), (0, None), (5, 5)]),  # of 12 rows: distinct, some repeat, most repeat
    ids=str,
)
def test_streamed_is_dense_with_the_gradients_of_vectors_and_temperature(
    loss: str, hard: int, ids: int | None, part: tuple[int, int | None]
) -> None:
    dense, streamed = both(LOSSES[loss], temperature=0.07)
    every = examples(8, hard=hard, ids=ids, classes=3 if loss == "SupCon" else None)
    assert_equal(dense, streamed, every, *part)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("ids", [None, 9], ids=["distinct", "some repeat"])
@pytest.mark.parametrize("part", [(0, None), (2, 6)], ids=["whole", "part"])
def test_tiles_of_a_device_give_what_the_dense_form_gives(
    loss: str, ids: int | None, part: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tiles(rows: Tensor, columns: Tensor, size: int, **options: Any) -> DeviceTiling:  # Any: handed on
        return DeviceTiling(shape=(len(rows), len(columns)), size=size, **options)

    monkeypatch.setattr(streaming, "_tiles", tiles)
    dense, streamed = both(LOSSES[loss], temperature=0.07)
    every = examples(8, hard=2, ids=ids, classes=3 if loss == "SupCon" else None)
    assert_equal(dense, streamed, every, *part)


@settings(max_examples=8)
@given(
    n=st.integers(1, 12),
    hard=st.integers(0, 2),
    ids=st.one_of(st.none(), st.integers(1, 20)),
    classes=st.integers(1, 5),
    cut=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    temperature=st.floats(0.01, 3),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("loss", rest_slow(LOSSES, quick=3))
def test_streamed_is_dense_for_any_ids_and_parts(
    loss: str,
    n: int,
    hard: int,
    ids: int | None,
    classes: int,
    cut: tuple[int, int],
    temperature: float,
    seed: int,
) -> None:
    dense, streamed = both(LOSSES[loss], temperature=temperature)
    every = examples(n, hard=hard, ids=ids, classes=classes if loss == "SupCon" else None, seed=seed)
    start, stop = sorted(min(place, n) for place in cut)
    assert_equal(dense, streamed, every)
    assert_equal(dense, streamed, every, start, stop)


@pytest.mark.parametrize("loss", ["NTXent", "SupCon"])
@pytest.mark.parametrize("ids", [None, 9])
@pytest.mark.parametrize("temperature", [0.05, 0.001])
def test_rows_that_are_the_columns_give_what_equal_copies_give(
    loss: str, ids: int | None, temperature: float
) -> None:
    classes = torch.randint(3, (22,), generator=torch.Generator().manual_seed(5))
    vectors = torch.randn(22, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    texts = torch.arange(22) if ids is None else torch.arange(22) * 7 % ids
    target = torch.arange(22).roll(11)
    forbid = Forbid(torch.stack([texts, texts[target]], dim=1), texts)
    alike = Alike(classes, classes) if loss == "SupCon" else None
    found = []
    for mirrored in (True, False):
        rows = vectors.clone().requires_grad_()
        scale = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
        columns = rows if mirrored else rows.view_as(rows)
        terms = streamed_terms(rows, columns, target, scale, forbid=forbid, alike=alike, tile=4)
        terms.sum().backward()
        found.append((terms.detach(), rows.grad, scale.grad))
        assert ("Mirrored" in str(terms.grad_fn)) == (mirrored and temperature == 0.05)
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other, rtol=EXACT, atol=EXACT * float(other.abs().max()))


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("tile", [1, 2, 3, 5, 100])
def test_any_size_of_a_tile_gives_the_same(mirrored: bool, alike: bool, tile: int) -> None:
    every = examples(4, ids=6, classes=2)
    (block,) = NTXent().comparisons(every, every)
    assert block.rows is block.columns
    columns = block.columns if mirrored else block.columns.clone()
    classes = block.alike if alike else None
    reached = streamed_terms(
        block.rows, columns, block.target, 0.1, forbid=block.forbid, alike=classes, tile=tile
    )
    expected = sup_con_terms(block.rows, columns, block.target, 0.1, forbid=block.forbid, alike=classes)
    torch.testing.assert_close(reached, expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("temperature", [1.0, 0.05, 0.021, 0.02, 0.019, 0.01, 0.001])
@pytest.mark.parametrize("collapsed", [False, True])
def test_low_temperatures_neither_overflow_nor_vanish_in_float32(temperature: float, collapsed: bool) -> None:
    # Opposite vectors: rows see cosines of -1 only, or of 1; both ends of what exp has to hold.
    noise = torch.Generator().manual_seed(6)
    vectors = torch.randn(1, 4, generator=noise).repeat(12, 1) + 1e-3 * torch.randn(12, 4, generator=noise)
    if not collapsed:
        vectors[6:] *= -1
        vectors[0] *= -1
    ids, target = torch.arange(12), torch.arange(12).roll(6)
    forbid = Forbid(torch.stack([ids, ids[target]], dim=1), ids)
    found = []
    for compute, dtype in ((info_nce_terms, torch.float64), (streamed_terms, torch.float32)):
        rows = vectors.to(dtype).requires_grad_()
        terms = compute(rows, rows, target, temperature=temperature, forbid=forbid)
        terms.sum().backward()
        assert rows.grad is not None
        found.append((terms.detach().double(), rows.grad.double()))
    (expected, gradient), (reached, streamed) = found
    # Cosines in float32 are good to 1e-7, times 1/T; softmax weights and the gradient, itself times 1/T, as well.
    noise_of = 3e-6 / temperature
    torch.testing.assert_close(reached, expected, rtol=1e-6, atol=noise_of)
    torch.testing.assert_close(streamed, gradient, rtol=0, atol=noise_of / temperature)
    assert (reached >= 0).all()


@pytest.mark.parametrize("temperature", [0.05, 0.01])
def test_a_solved_batch_keeps_the_digits_of_its_small_loss(temperature: float) -> None:
    vectors = torch.eye(6).repeat(2, 1)
    ids, target = torch.arange(12), torch.arange(12).roll(6)
    forbid = Forbid(torch.stack([ids, ids[target]], dim=1), ids)
    terms = streamed_terms(vectors, vectors, target, temperature, forbid=forbid)
    expected = math.log1p(10 * math.exp(-1 / temperature))
    # Beside a logit of 1/T float32 keeps 1e-6 to 1e-5, of which the target takes all out again; log keeps 1e-7.
    assert terms.tolist() == pytest.approx([expected] * 12, abs=3e-7)


def test_an_own_text_that_is_missing_among_the_columns_forbids_nothing() -> None:
    noise = torch.Generator().manual_seed(7)
    rows, columns = (torch.randn(n, 3, generator=noise, dtype=torch.float64) for n in (4, 7))
    target = torch.tensor([0, 6, 3, 3])
    forbid = Forbid(torch.tensor([[90, 0], [91, 6], [92, 3], [3, 93]]), torch.arange(7))
    reached = streamed_terms(rows, columns, target, 0.2, forbid=forbid, tile=3)
    torch.testing.assert_close(reached, info_nce_terms(rows, columns, target, 0.2, forbid=forbid))
    # And without any ids.
    reached = streamed_terms(rows, columns, target, 0.2, tile=3)
    torch.testing.assert_close(reached, info_nce_terms(rows, columns, target, 0.2))


@pytest.mark.parametrize("columns", [0, 5])
def test_no_rows_give_no_terms_and_gradients_of_zero(columns: int) -> None:
    rows = torch.zeros(0, 3, requires_grad=True)
    others = rows if not columns else torch.ones(columns, 3, requires_grad=True)
    temperature = torch.tensor([0.1], requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    forbid = Forbid(none.reshape(0, 2), torch.arange(columns))
    terms = streamed_terms(rows, others, none, temperature, forbid=forbid)
    assert terms.shape == (0,)
    terms.sum().backward()
    for leaf in (rows, others, temperature):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_columns_without_a_gradient_get_none_and_leave_the_rows_theirs() -> None:
    every = examples(6, ids=8)
    rows, columns = every.anchor.clone().requires_grad_(), every.positive
    target = torch.arange(6)
    forbid = Forbid(torch.stack([every.anchor_ids, every.positive_ids], dim=1), every.positive_ids)
    gradients = []
    for compute in (info_nce_terms, streamed_terms):
        (gradient,) = torch.autograd.grad(compute(rows, columns, target, 0.1, forbid=forbid).sum(), [rows])
        gradients.append(gradient)
    torch.testing.assert_close(*gradients, rtol=EXACT, atol=EXACT)


ONE_EACH = [("InfoNCE", None), ("InfoNCE two-sided", 5), ("InfoNCE weighed", 1), ("NTXent", 5), ("SupCon", 1)]
"""Each loss, with each way in which texts repeat; that all of them are as the dense form is tested above."""


@pytest.mark.parametrize(
    ("loss", "ids"),
    rest_slow([*ONE_EACH, *(pair for pair in product(LOSSES, (None, 5, 1)) if pair not in ONE_EACH)], quick=2),
)
def test_gradients_agree_with_finite_differences(loss: str, ids: int | None) -> None:
    made = LOSSES[loss](temperature=0.3, streamed=True)
    every = examples(4, hard=1, ids=ids, classes=2 if loss == "SupCon" else None)
    assert every.negative is not None

    def terms(anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        moved = replace(every, anchor=anchor, positive=positive, negative=negative)
        return made.compare(made.comparisons(moved, moved))

    inputs = [vectors.requires_grad_() for vectors in (every.anchor, every.positive, every.negative)]
    assert torch.autograd.gradcheck(terms, inputs)


@pytest.mark.parametrize("mirrored", [True, False])
def test_gradients_of_the_temperature_agree_with_finite_differences(mirrored: bool) -> None:
    every = examples(5, ids=7)
    (block,) = NTXent().comparisons(every, every)

    def terms(rows: Tensor, temperature: Tensor) -> Tensor:
        columns = rows if mirrored else rows.view_as(rows)
        return streamed_terms(rows, columns, block.target, temperature, forbid=block.forbid, tile=4)

    temperature = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(terms, [block.rows.requires_grad_(), temperature])


@pytest.mark.parametrize(
    ("loss", "ids"),
    rest_slow(
        [
            ("NTXent", None),  # tile and mirror image
            ("InfoNCE weighed", 3),  # tile by tile
            ("SupCon", None),
            *((loss, 3 if loss in ("NTXent", "SupCon") else None) for loss in LOSSES),
            ("InfoNCE", 3),
            ("InfoNCE two-sided", 3),
        ],
    ),
)
def test_nothing_of_the_size_of_the_matrix_is_kept_for_the_gradient(loss: str, ids: int | None) -> None:
    every = examples(60, ids=ids, classes=4 if loss == "SupCon" else None)
    leaves = [every.anchor.requires_grad_(), every.positive.requires_grad_()]
    largest: dict[bool, int] = {}
    for how in (True, False):
        sizes = [0]

        def note(saved: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(saved.numel())
            return saved

        made = LOSSES[loss](streamed=how)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            total = made.compare(made.comparisons(every, every)).sum()
        torch.autograd.grad(total, leaves)
        largest[how] = max(sizes)
    # Both sides with their four features, against every row's column.
    assert largest[True] <= 2 * 60 * 4
    assert largest[False] >= 60 * 60


@pytest.mark.parametrize(("ids", "listed"), [(None, True), (1000, True), (1, False)])
def test_forbidden_places_are_listed_where_texts_hardly_repeat(ids: int | None, listed: bool) -> None:
    every = examples(40, ids=ids)
    (block,) = NTXent().comparisons(every, every)
    tiling = Tiling.of((80, 80), size=9, target=block.target, forbid=block.forbid)
    assert (tiling.forbidden is not None) == listed
    assert (tiling.ids is None) == listed


@pytest.mark.parametrize("make", [InfoNCE, NTXent, SupCon])
@pytest.mark.parametrize("how", [True, False, None])
def test_streamed_does_what_it_says(
    make: Callable[..., Loss], how: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def note(*arguments: Tensor, **options: object) -> Tensor:
        used.append(arguments)
        return streamed_terms(*arguments, **options)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr("contrastive_text.losses.softmax.streamed_terms", note)
    loss, rows = make(streamed=how), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    loss(rows, rows.flip(1))
    assert bool(used) == (how is True)
    monkeypatch.setattr(streaming, "STREAMED_ABOVE", 15)
    monkeypatch.setattr(streaming, "MIRRORED_ABOVE", 63)
    loss(rows, rows.flip(1))
    assert bool(used) == (how is not False)
    assert loss.streamed is how  # type: ignore[attr-defined]  # of the losses that are made here


def test_the_size_from_which_a_loss_is_streamed_is_lower_where_rows_are_the_columns() -> None:
    def picks(r: int, c: int) -> bool:
        return is_streamed(None, torch.empty(r, 1), torch.empty(c, 1))

    side = math.isqrt(streaming.STREAMED_ABOVE)
    assert not picks(side, side)
    assert picks(side, side + 1)
    rows = torch.empty(math.isqrt(streaming.MIRRORED_ABOVE) + 1, 1)
    assert is_streamed(None, rows, rows)
    assert not is_streamed(None, rows[:-1], rows)


@pytest.mark.parametrize("make", [NTXent, SupCon])
def test_rows_are_the_columns_only_where_all_examples_are_local(make: Callable[..., Loss]) -> None:
    every = examples(4)

    def block(local: Triples, every: Triples) -> Comparison:
        (only,) = make().comparisons(local, every)
        return only

    whole = block(replace(every, anchor_ids=every.anchor_ids.clone()), every)
    assert whole.rows is whole.columns
    part = block(every.map(lambda rows: rows[:2]), every)
    assert part.rows is not part.columns
    hard = examples(4, hard=1)
    assert len(block(hard, hard).columns) == 12


@pytest.mark.parametrize("make", [InfoNCE, NTXent, SupCon])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_leave_float32(make: Callable[..., Loss], dtype: torch.dtype) -> None:
    noise = torch.Generator().manual_seed(9)
    halves = [torch.randn(5, 16, generator=noise).to(dtype).requires_grad_() for _ in range(2)]
    outside = [half.detach().float().requires_grad_() for half in halves]
    loss = make(streamed=True, learn_temperature=True)
    # torch's autocast for one half precision doesn't take vectors of the other.
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        inside = loss(*halves)
        inside.backward()  # inside as well: its products are no less exact
    expected = loss(*outside)
    expected.backward()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
    for half, full in zip(halves, outside, strict=True):
        assert half.grad is not None
        assert full.grad is not None
        assert torch.equal(half.grad, full.grad.to(dtype))


@pytest.mark.parametrize("make", [InfoNCE, NTXent, SupCon])
def test_a_learned_temperature_starts_where_it_is_told_and_learns(make: Callable[..., Loss]) -> None:
    every = examples(5)
    texts = (every.anchor, every.positive)
    plain, learned = make(temperature=0.2), make(temperature=0.2, learn_temperature=True)
    assert list(plain.parameters()) == []
    ((name, parameter),) = learned.named_parameters()
    assert name == "learned.log_scale"
    assert parameter.shape == (1,)
    assert learned.temperature == 0.2  # type: ignore[attr-defined]  # of the losses that are made here
    # The parameter is of float32.
    assert float(learned(*texts).detach()) == pytest.approx(float(plain(*texts)), rel=1e-6)
    learned = learned.double()
    learned(*texts).backward()
    (parameter,) = learned.parameters()
    assert parameter.grad is not None
    step, start = 1e-4, float(parameter.detach())
    sides = [float(make(temperature=math.exp(-start + d))(*texts)) for d in (-step, step)]
    # A central difference: the third derivative times the square of the step.
    assert float(parameter.grad) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(("start", "lowest"), [(0.05, 0.01), (0.002, 0.002)])
def test_a_learned_temperature_stays_above_its_bound(start: float, lowest: float) -> None:
    learned = NTXent(temperature=start, learn_temperature=True).learned
    assert learned is not None
    with torch.no_grad():
        learned.log_scale += 10
    assert float(learned().detach()) == pytest.approx(lowest, rel=1e-5)
    with torch.no_grad():
        learned.log_scale -= 1
    assert float(learned().detach()) == pytest.approx(lowest * math.e, rel=1e-5)


@pytest.mark.parametrize("compute", [info_nce_terms, sup_con_terms, streamed_terms])
def test_a_temperature_may_be_a_number_or_a_tensor(compute: Terms) -> None:
    rows, target = examples(4).anchor, torch.arange(4)
    expected = compute(rows, rows, target, temperature=0.3)
    for shape in ((), (1,)):
        temperature = torch.full(shape, 0.3, dtype=torch.float64)
        assert torch.equal(compute(rows, rows, target, temperature=temperature), expected)


def test_the_face_of_three_arguments_streams_too() -> None:
    every = examples(8, hard=1)
    texts = (every.anchor, every.positive, every.negative)
    for make in LOSSES.values():
        dense, streamed = (make(streamed=how)(*texts) for how in (False, True))
        torch.testing.assert_close(streamed, dense, rtol=EXACT, atol=EXACT)
    terms = NTXent(streamed=True).compare(NTXent().comparisons(every, every))
    assert torch.equal(NTXent(streamed=True)(*texts), reduce_terms(terms.sum(), 16, "mean"))
