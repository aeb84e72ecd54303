"""Losses against hand-computed and published values, by conformance id (float64: within 1e-6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from contrastive_text.losses import InfoNCE, Loss, NTXent, reduce_terms
from contrastive_text.losses.comparison import Triples

ANCHORS = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
POSITIVES = torch.tensor([[0.8, 0.6], [-0.6, 0.8]], dtype=torch.float64)
HARD = torch.tensor([[0.6, 0.8], [1.0, 0.0]], dtype=torch.float64)

# The specification's tolerance for float64; its values are printed with ten digits.
EXACT = 1e-6


def value(loss: Loss, *texts: Tensor) -> float:
    result = loss(*texts)
    assert result.dtype == torch.float64
    return float(result)


def block_terms(loss: Loss, *texts: Tensor) -> Tensor:
    triples = Triples.distinct(*texts)
    (block,) = loss.comparisons(triples, triples)
    return loss.terms(block)


def test_l1_nt_xent_mean_of_the_four_by_two_example() -> None:
    assert value(NTXent(temperature=0.5), ANCHORS, POSITIVES) == pytest.approx(0.4301902771, abs=EXACT)
    expected = [0.2332575, 0.6271231, 0.6271231, 0.2332575]
    assert block_terms(NTXent(temperature=0.5), ANCHORS, POSITIVES).tolist() == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize(("temperature", "expected"), [(0.1, 0.0637798398), (0.05, 0.0090750755)])
def test_l2_nt_xent_equals_pytorch_metric_learning(temperature: float, expected: float) -> None:
    # The sheet's value, equal to pytorch-metric-learning's NTXentLoss.
    assert value(NTXent(temperature=temperature), ANCHORS, POSITIVES) == pytest.approx(expected, abs=EXACT)


def test_l3_nt_xent_sum_of_the_four_by_two_example() -> None:
    loss = NTXent(temperature=0.5, reduction="sum")
    assert value(loss, ANCHORS, POSITIVES) == pytest.approx(1.7207611085, abs=EXACT)


@pytest.mark.parametrize(("temperature", "expected"), [(0.1, 0.1275596795), (0.5, 0.8603805543)])
def test_l4_nt_xent_two_sided_is_the_value_of_conserts_code(temperature: float, expected: float) -> None:
    # The sheet marks these as the output of ConSERT's own function, run in isolation.
    two_sided = value(NTXent(temperature=temperature, reduction="two_sided"), ANCHORS, POSITIVES)
    assert two_sided == pytest.approx(expected, abs=EXACT)
    assert two_sided == 2 * value(NTXent(temperature=temperature), ANCHORS, POSITIVES)


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.2860240393), (0.05, 0.0090749640)])
def test_l5_info_nce_is_the_value_of_simcses_code(temperature: float, expected: float) -> None:
    # The sheet marks these as the output of SimCSE's own function, run in isolation.
    assert value(InfoNCE(temperature=temperature), ANCHORS, POSITIVES) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("temperature", ["0.05", "0.1", "0.5", "1.0"])
def test_l1_to_l5_every_temperature_of_the_four_by_two_vectors(vectors: dict[str, Any], temperature: str) -> None:
    case, t = vectors["nt_xent_4x2"], float(temperature)
    wanted = case["by_temperature"][temperature]
    a, p = (torch.tensor(case[name], dtype=torch.float64) for name in ("anchors", "positives"))
    reached = {
        "nt_xent_terms_order_a1_a2_p1_p2": block_terms(NTXent(t), a, p).tolist(),
        "nt_xent_mean_over_2N": value(NTXent(t), a, p),
        "nt_xent_sum_over_2N": value(NTXent(t, reduction="sum"), a, p),
        "consert_code_value_lossA_plus_lossB": value(NTXent(t, reduction="two_sided"), a, p),
        "infonce_one_direction_terms": block_terms(InfoNCE(t), a, p).tolist(),
        "infonce_one_direction_mean": value(InfoNCE(t), a, p),
        "infonce_symmetric_mean_of_two_directions": value(InfoNCE(t, reduction="two_sided"), a, p) / 2,
    }
    assert reached.keys() == wanted.keys()
    for name, expected in wanted.items():
        assert reached[name] == pytest.approx(expected, abs=EXACT), name


@pytest.mark.parametrize(
    ("loss", "name", "gradients"),
    [
        (NTXent(temperature=0.1), "nt_xent_mean_tau_0.1", "nt_xent"),
        (InfoNCE(temperature=0.05), "simcse_infonce_tau_0.05", "simcse"),
    ],
)
def test_l6_gradients_of_the_six_by_three_example(
    vectors: dict[str, Any], loss: Loss, name: str, gradients: str
) -> None:
    case = vectors["loss_with_gradients_6x3"]
    sides = {
        side: torch.tensor(case[side], dtype=torch.float64, requires_grad=True)
        for side in ("anchors", "positives")
    }
    result = loss(sides["anchors"], sides["positives"])
    assert result.item() == pytest.approx(case[name], abs=EXACT)
    result.backward()
    for side, rows in sides.items():
        assert rows.grad is not None
        expected = torch.tensor(case[f"{gradients}_grad_{side}"], dtype=torch.float64)
        torch.testing.assert_close(rows.grad, expected, rtol=0, atol=EXACT)
        along = (rows.grad * rows).sum(dim=1)
        # Exactly orthogonal in theory: gradients of order 1 leave some units of float64's last place.
        torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", [InfoNCE(temperature=0.05), NTXent(temperature=0.1)])
@pytest.mark.parametrize("row", [0, 1])
def test_l7_a_row_times_seven_leaves_the_loss(loss: Loss, row: int) -> None:
    before = value(loss, ANCHORS, POSITIVES, HARD)
    for which in range(3):
        texts = [ANCHORS.clone(), POSITIVES.clone(), HARD.clone()]
        texts[which][row] *= 7
        # Cosines change by float64 rounding, 1e-16, which the temperature multiplies by at most 20.
        assert value(loss, *texts) == pytest.approx(before, abs=1e-13)


@pytest.mark.parametrize("loss", [InfoNCE(temperature=0.5), NTXent(temperature=0.5)])
def test_l8_permuting_both_sides_leaves_the_loss_and_permuting_one_changes_it(loss: Loss) -> None:
    before = value(loss, ANCHORS, POSITIVES)
    # Sums in another order: float64 rounding.
    assert value(loss, ANCHORS.flip(0), POSITIVES.flip(0)) == pytest.approx(before, abs=1e-13)
    assert abs(value(loss, ANCHORS, POSITIVES.flip(0)) - before) > 0.5


@pytest.mark.parametrize(
    ("loss", "n", "hard", "expected"),
    [
        (InfoNCE(), 64, 0, math.log(64)),
        (InfoNCE(), 64, 1, math.log(128)),
        (NTXent(temperature=0.1), 96, 0, math.log(191)),
        (NTXent(temperature=0.1, reduction="two_sided"), 96, 0, 10.5045468561),
        (NTXent(), 32, 0, math.log(63)),
        (NTXent(reduction="sum"), 32, 0, 64 * math.log(63)),
    ],
    ids=["simcse", "simcse-hard", "nt-xent", "consert", "declutr", "declutr-sum"],
)
def test_l9_collapsed_embeddings_give_the_logarithm_of_the_columns(
    loss: Loss, n: int, hard: int, expected: float
) -> None:
    same = torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64).expand(n, 3)
    texts = (same, same, same) if hard else (same, same)
    assert value(loss, *texts) == pytest.approx(expected, abs=EXACT)


def test_l9_collapse_values_of_the_vectors(vectors: dict[str, Any]) -> None:
    case = vectors["collapse_values"]
    same = torch.ones(96, 2, dtype=torch.float64)
    for expected, loss, n, hard in (
        (case["simcse_N64"], InfoNCE(), 64, False),
        (case["simcse_N64_with_hard_negatives"], InfoNCE(), 64, True),
        (case["nt_xent_mean_N96"], NTXent(), 96, False),
        (case["consert_code_N96"], NTXent(reduction="two_sided"), 96, False),
        (case["declutr_A2_N16_2AN64"], NTXent(), 32, False),
        (case["declutr_batch4_one_gpu_2AN16"], NTXent(), 8, False),
    ):
        rows = same[:n]
        assert value(loss, rows, rows, *([rows] if hard else [])) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("loss", [InfoNCE(temperature=0.05), NTXent(temperature=0.05)])
def test_l11_autocast_leaves_the_float32_value(loss: Loss) -> None:
    draw = torch.Generator().manual_seed(4)
    texts = [torch.randn(8, 64, generator=draw) for _ in range(3)]
    outside = float(loss(*texts))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = texts[0] @ texts[1].T
        inside = loss(*texts)
    assert rounded.dtype == torch.bfloat16  # autocast was on
    assert inside.dtype == torch.float32
    assert float(inside) == pytest.approx(outside, abs=1e-5)  # L11's own tolerance


@pytest.mark.parametrize("make", [InfoNCE, NTXent])
@pytest.mark.parametrize("place", ["anchor", "positive", "negative"])
def test_l12_a_zero_vector_leaves_loss_and_gradient_finite(make: Callable[..., Loss], place: str) -> None:
    draw = torch.Generator().manual_seed(5)
    texts = {name: torch.randn(3, 4, generator=draw) for name in ("anchor", "positive", "negative")}
    texts[place][1] = 0.0
    for rows in texts.values():
        rows.requires_grad_()
    result = make(temperature=1.0)(**texts)  # warm, so that every column has weight
    result.backward()
    assert torch.isfinite(result)
    gradient = texts[place].grad
    assert gradient is not None
    assert torch.isfinite(gradient).all()
    # Of order 1/eps: 1e8 times softmax weights and 1/N, and not 1e11 and more, as with an eps of 1e-12.
    assert 1e6 < float(gradient[1].norm()) < 1e9


def test_s1_hard_negatives_at_weight_zero() -> None:
    assert value(InfoNCE(temperature=0.05), ANCHORS, POSITIVES, HARD) == pytest.approx(2.3603713399, abs=EXACT)


@pytest.mark.parametrize(
    ("temperature", "alpha", "expected"),
    [
        (0.05, 2.0, 2.3605360009),
        (0.05, 0.5, 2.3602889891),
        (1.0, 1.0, 1.1870448721),
        (1.0, 2.0, 1.3626697743),
        (1.0, 0.5, 1.0849243625),
    ],
)
def test_s2_hard_negatives_weighed_by_the_logarithm_of_alpha(
    temperature: float, alpha: float, expected: float
) -> None:
    # The sheet marks the values at 0.05 as the output of SimCSE's own function.
    loss = InfoNCE(temperature=temperature, hard_negative_log_weight=math.log(alpha))
    assert value(loss, ANCHORS, POSITIVES, HARD) == pytest.approx(expected, abs=EXACT)


def test_s2_the_weight_stands_on_a_rows_own_negatives_only(vectors: dict[str, Any]) -> None:
    case = vectors["simcse_hard_negative"]["by_weight"]
    for name, log_weight in (("0", 0.0), ("ln2", math.log(2)), ("ln0.5", math.log(0.5))):
        for t in ("0.05", "1"):
            loss = InfoNCE(temperature=float(t), hard_negative_log_weight=log_weight)
            terms = block_terms(loss, ANCHORS, POSITIVES, HARD).tolist()
            assert terms == pytest.approx(case[name][f"tau_{t}_terms"], abs=EXACT)


@pytest.mark.parametrize(("hard", "columns"), [(0, 5), (1, 10), (3, 20)])
def test_s4_info_nce_has_n_columns_and_n_more_for_every_hard_negative(hard: int, columns: int) -> None:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    triples = Triples.distinct(rows, rows, rows.unsqueeze(1).expand(5, hard, 3) if hard else None)
    (block,) = InfoNCE().comparisons(triples, triples)
    assert (len(block.rows), len(block.columns)) == (5, columns)
    assert block.target.tolist() == [0, 1, 2, 3, 4]
    own = [] if block.own is None else block.own.flatten().tolist()
    assert own == list(range(5, columns))


def test_s14_swapping_the_sides_changes_info_nce_in_general_but_not_in_the_four_by_two_example() -> None:
    loss = InfoNCE(temperature=0.05)
    forwards, backwards = value(loss, ANCHORS, POSITIVES), value(loss, POSITIVES, ANCHORS)
    assert backwards == pytest.approx(forwards, abs=1e-13)  # the same sums in another order, float64
    a = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0], [1.0, -1.0, 1.0]], dtype=torch.float64)
    p = torch.tensor([[1.0, 1.0, 0.5], [0.5, 0.0, 1.0], [2.0, -1.0, 0.0]], dtype=torch.float64)
    assert abs(value(loss, a, p) - value(loss, p, a)) > 1e-3


def test_c14_sum_and_mean_of_a_collapsed_batch_of_clear(vectors: dict[str, Any]) -> None:
    case = vectors["clear_sum_vs_mean"]
    rows = 2 * case["N"]
    total = torch.tensor(rows * math.log(rows - 1), dtype=torch.float64)
    assert float(reduce_terms(total, rows, "mean")) == pytest.approx(case["collapsed_mean"], abs=EXACT)
    # Printed with four decimals.
    assert float(reduce_terms(total, rows, "sum")) == pytest.approx(case["collapsed_sum"], abs=1e-4)
