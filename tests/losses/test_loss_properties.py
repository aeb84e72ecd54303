"""Losses against the double loop, and what must not change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import pytest
import reference
import torch
from covering import crossed
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import (
    DCL,
    DCLW,
    DebiasedNTXent,
    Forbid,
    InfoNCE,
    Loss,
    NTXent,
    Reduction,
    cosine_similarity_matrix,
    reduce_terms,
)
from contrastive_text.losses.comparison import Triples

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
SEEDS = st.integers(0, 2**31)
TEMPERATURES = st.floats(0.02, 5.0)
# Logits are cosines over a temperature of 0.02 or more, so at most 50; float64 leaves them 1e-14, the sum
# over some ten terms 1e-12.
ROUNDING = 1e-11


def hardened(**options: Any) -> InfoNCE:
    return InfoNCE(in_batch_hardness=3.0, hard_negative_hardness=1.5, **options)


MAKES = [InfoNCE, NTXent, DCL, DCLW, DebiasedNTXent, hardened]
"""Losses of a temperature and a reduction; the last one's weights have no gradient."""


@dataclass(frozen=True)
class Texts:
    """Random vectors: anchors (N, D), positives (N, D) and hard negatives (N, K, D) or None."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None

    def lists(self) -> tuple[list[list[float]], list[list[float]], list[list[list[float]]]]:
        return (
            self.anchor.tolist(),
            self.positive.tolist(),
            [] if self.negative is None else self.negative.tolist(),
        )


@st.composite
def texts(draw: st.DrawFn, least: int = 1) -> Texts:
    n, d, k = draw(st.integers(least, 5)), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    noise = torch.Generator().manual_seed(draw(SEEDS))
    return Texts(
        anchor=torch.randn(n, d, generator=noise, dtype=torch.float64),
        positive=torch.randn(n, d, generator=noise, dtype=torch.float64),
        negative=torch.randn(n, k, d, generator=noise, dtype=torch.float64) if k else None,
    )


def evaluate(loss: Loss, triples: Triples) -> Tensor:
    """The loss of triples with ids, as an objective puts it together."""
    terms = loss.compare(loss.comparisons(triples, triples))
    return reduce_terms(terms.sum(), len(terms), loss.reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(case=texts(), temperature=TEMPERATURES, log_weight=st.floats(-3, 3))
def test_info_nce_equals_the_double_loop(
    reduction: Reduction, case: Texts, temperature: float, log_weight: float
) -> None:
    loss = InfoNCE(temperature=temperature, reduction=reduction, hard_negative_log_weight=log_weight)
    expected = reference.info_nce(
        *case.lists(), temperature=temperature, log_weight=log_weight, reduction=reduction
    )
    assert float(loss(case.anchor, case.positive, case.negative)) == pytest.approx(
        expected, abs=ROUNDING, rel=ROUNDING
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(case=texts(), temperature=TEMPERATURES)
def test_nt_xent_equals_the_double_loop(reduction: Reduction, case: Texts, temperature: float) -> None:
    loss = NTXent(temperature=temperature, reduction=reduction)
    expected = reference.nt_xent(*case.lists(), temperature=temperature, reduction=reduction)
    assert float(loss(case.anchor, case.positive, case.negative)) == pytest.approx(
        expected, abs=ROUNDING, rel=ROUNDING
    )


@st.composite
def with_ids(draw: st.DrawFn) -> tuple[Texts, Triples]:
    """Texts whose ids are drawn from so few that most batches hold equal ones."""
    case = draw(texts())
    n = len(case.anchor)
    k = 0 if case.negative is None else case.negative.shape[1]
    few = st.integers(0, 4)
    ids = draw(st.lists(few, min_size=n * (2 + k), max_size=n * (2 + k)))
    return case, Triples(
        anchor=case.anchor,
        positive=case.positive,
        negative=case.negative,
        anchor_ids=torch.tensor(ids[:n]),
        positive_ids=torch.tensor(ids[n : 2 * n]),
        negative_ids=torch.tensor(ids[2 * n :]).reshape(n, k) if k else None,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(case=with_ids())
def test_info_nce_with_duplicates_equals_the_double_loop(
    reduction: Reduction, case: tuple[Texts, Triples]
) -> None:
    vectors, triples = case
    loss = InfoNCE(temperature=0.2, reduction=reduction, hard_negative_log_weight=0.5)
    expected = reference.info_nce(
        *vectors.lists(),
        temperature=0.2,
        log_weight=0.5,
        reduction=reduction,
        anchor_ids=triples.anchor_ids.tolist(),
        positive_ids=triples.positive_ids.tolist(),
        negative_ids=None if triples.negative_ids is None else triples.negative_ids.tolist(),
    )
    assert float(evaluate(loss, triples)) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@given(case=with_ids())
def test_nt_xent_with_duplicates_equals_the_double_loop(
    reduction: Reduction, case: tuple[Texts, Triples]
) -> None:
    vectors, triples = case
    expected = reference.nt_xent(
        *vectors.lists(),
        temperature=0.2,
        reduction=reduction,
        anchor_ids=triples.anchor_ids.tolist(),
        positive_ids=triples.positive_ids.tolist(),
        negative_ids=None if triples.negative_ids is None else triples.negative_ids.tolist(),
    )
    reached = float(evaluate(NTXent(temperature=0.2, reduction=reduction), triples))
    assert reached == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_columns_equal_to_a_rows_own_text_or_to_its_positive_are_forbidden_and_its_target_never_is() -> None:
    forbid = Forbid(rows=torch.tensor([[1, 2], [3, 2]]), columns=torch.tensor([2, 2, 1, 3, 9]))
    assert forbid.mask(torch.tensor([0, 1])).tolist() == [
        [False, True, True, False, False],
        [True, False, False, True, False],
    ]


@given(SEEDS)
def test_texts_with_two_ids_are_equal_where_they_agree_in_either(seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    ids, target = torch.randint(4, (6, 2), generator=noise), torch.randint(6, (5,), generator=noise)
    own = torch.randint(4, (5, 2), generator=noise)
    both = Forbid(torch.stack([own, ids[target]], dim=1), ids)
    each = [Forbid(rows, columns) for rows, columns in both.kinds]
    mask = both.mask(target)
    assert torch.equal(mask, each[0].mask(target) | each[1].mask(target))
    places = both.places(target, most=100)
    assert places is not None
    rows, columns = places
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {(int(r), int(c)) for r, c in mask.nonzero()}
    assert both.places(target, most=-1) is None


@pytest.mark.parametrize("loss", [InfoNCE(temperature=0.5), NTXent(temperature=0.5)])
def test_a_batch_of_one_text_repeated_has_no_negatives_and_no_loss(loss: Loss) -> None:
    rows = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = torch.zeros(3, dtype=torch.long)
    triples = Triples(rows, rows.flip(1), rows.unsqueeze(1), same, same, same.unsqueeze(1))
    assert float(evaluate(loss, triples)) == 0.0


@pytest.mark.parametrize(("make", "reduction"), crossed(MAKES[:-1], REDUCTIONS))
def test_gradients_agree_with_finite_differences(make: Callable[..., Loss], reduction: Reduction) -> None:
    noise = torch.Generator().manual_seed(7)
    shapes = ((3, 3), (3, 3), (3, 2, 3))
    inputs = [torch.randn(s, generator=noise, dtype=torch.float64, requires_grad=True) for s in shapes]
    loss = make(temperature=0.3, reduction=reduction)
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("make", MAKES)
@given(reduction=st.sampled_from(REDUCTIONS), case=texts(), order=st.randoms(use_true_random=False))
def test_order_of_examples_does_not_matter(
    make: Callable[..., Loss], reduction: Reduction, case: Texts, order: object
) -> None:
    loss = make(temperature=0.1, reduction=reduction)
    places = list(range(len(case.anchor)))
    order.shuffle(places)  # type: ignore[attr-defined]  # hypothesis draws a random.Random
    negative = None if case.negative is None else case.negative[places]
    before = float(loss(case.anchor, case.positive, case.negative))
    after = float(loss(case.anchor[places], case.positive[places], negative))
    assert after == pytest.approx(before, abs=ROUNDING, rel=ROUNDING)


@pytest.mark.parametrize("make", MAKES)
@given(case=texts(), factors=st.lists(st.floats(1e-3, 1e3), min_size=25, max_size=25))
def test_length_of_the_vectors_does_not_matter(
    make: Callable[..., Loss], case: Texts, factors: list[float]
) -> None:
    loss = make(temperature=0.1)
    n = len(case.anchor)
    scale = torch.tensor(factors, dtype=torch.float64)
    before = float(loss(case.anchor, case.positive, case.negative))
    negative = None
    if case.negative is not None:
        k = case.negative.shape[1]
        negative = case.negative * scale[2 * n : 2 * n + n * k].reshape(n, k, 1)
    after = float(loss(case.anchor * scale[:n, None], case.positive * scale[n : 2 * n, None], negative))
    assert after == pytest.approx(before, abs=ROUNDING, rel=ROUNDING)


@pytest.mark.parametrize("make", MAKES)
@given(reduction=st.sampled_from(REDUCTIONS), case=with_ids(), cut=st.integers(0, 5))
def test_terms_of_two_parts_against_all_columns_are_the_terms_of_the_whole(
    make: Callable[..., Loss], reduction: Reduction, case: tuple[Texts, Triples], cut: int
) -> None:
    loss, every = make(temperature=0.2, reduction=reduction), case[1]
    cut = min(cut, len(every.anchor))

    def terms(local: Triples, offset: int) -> list[float]:
        return loss.compare(loss.comparisons(local, every, offset)).tolist()

    first = terms(every.map(lambda rows: rows[:cut]), 0)
    second = terms(every.map(lambda rows: rows[cut:]), cut)
    whole = terms(every, 0)
    sides = len(whole) // len(every.anchor)
    # Both parts hold side by side what the whole holds: anchors, then positives where they are rows too.
    rest = len(every.anchor) - cut
    joined = [
        term
        for side in range(sides)
        for term in (*first[side * cut : (side + 1) * cut], *second[side * rest : (side + 1) * rest])
    ]
    # A product of fewer rows may sum in another order: float64 rounding.
    assert joined == pytest.approx(whole, abs=ROUNDING, rel=ROUNDING)


@pytest.mark.parametrize("make", [InfoNCE, NTXent])
def test_one_hard_negative_may_come_without_its_dimension(make: type[InfoNCE | NTXent]) -> None:
    rows = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(make()(rows[0], rows[1], rows[2]), make()(rows[0], rows[1], rows[2].unsqueeze(1)))


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("temperature", [0.0, -0.05, float("nan"), float("inf")])
def test_a_temperature_that_is_not_positive_and_finite_is_refused(
    make: Callable[..., Loss], temperature: float
) -> None:
    with pytest.raises(ValueError, match=f"temperature: expected a number above 0, got {temperature}"):
        make(temperature=temperature)


@pytest.mark.parametrize("make", [InfoNCE, NTXent])
def test_an_unknown_reduction_is_refused(make: type[InfoNCE | NTXent]) -> None:
    with pytest.raises(ValueError, match="reduction: expected one of mean, sum, two_sided, got 'none'"):
        make(reduction="none")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 4), (2, 4)), r"anchor and positive of one shape \(N, D\), got \(3, 4\) and \(2, 4\)"),
        (((3, 4, 1), (3, 4, 1)), r"anchor and positive of one shape"),
        (((3, 4), (3, 4), (2, 4)), r"hard negatives of shape .* got \(2, 1, 4\)"),
        (((3, 4), (3, 4), (3, 2, 5)), r"hard negatives of shape .* got \(3, 2, 5\)"),
    ],
)
def test_shapes_that_do_not_belong_together_are_refused(
    shapes: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        InfoNCE()(*(torch.zeros(shape) for shape in shapes))


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


@given(case=texts())
def test_cosines_equal_the_loop(case: Texts) -> None:
    cosines = cosine_similarity_matrix(case.anchor, case.positive).tolist()
    for i, anchor in enumerate(case.anchor.tolist()):
        for j, positive in enumerate(case.positive.tolist()):
            # A dot product of at most five unit entries in float64.
            assert cosines[i][j] == pytest.approx(reference.cosine(anchor, positive), abs=1e-14)


def test_cosines_under_autocast_are_those_outside() -> None:
    rows = torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = cosine_similarity_matrix(rows, rows)
    assert torch.equal(inside, cosine_similarity_matrix(rows, rows))


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 1.5), ("sum", 6.0), ("two_sided", 3.0)])
def test_reduce_divides_by_the_count_it_is_given(reduction: Reduction, expected: float) -> None:
    assert float(reduce_terms(torch.tensor(6.0), 4, reduction)) == expected
