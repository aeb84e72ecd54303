"""Losses against the double loop, and what must not change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import (
    Comparison,
    InfoNCE,
    Loss,
    NTXent,
    Reduction,
    SameId,
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


def test_columns_equal_to_a_rows_own_text_or_to_its_positive_are_masked_and_its_target_never_is() -> None:
    texts = SameId(rows=torch.tensor([[1, 2], [3, 2]]), columns=torch.tensor([2, 2, 1, 3, 9]))
    block = Comparison(torch.ones(2, 1), torch.ones(5, 1), torch.tensor([0, 1]), masks={"texts": texts})
    assert block.masked().tolist() == [
        [False, True, True, False, False],
        [True, False, False, True, False],
    ]


@given(SEEDS)
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


@pytest.mark.parametrize("make", [InfoNCE, NTXent])
def test_one_hard_negative_may_come_without_its_dimension(make: type[InfoNCE | NTXent]) -> None:
    rows = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(make()(rows[0], rows[1], rows[2]), make()(rows[0], rows[1], rows[2].unsqueeze(1)))


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
