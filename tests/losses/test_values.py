"""Losses against values by conformance id and by key of the methods' sheet, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from contrastive_text import losses
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.losses.batch_losses import epps_pulley, text_uniformity
from contrastive_text.losses.comparison import ExampleVectors
from contrastive_text.losses.info_nce import Direction

EXACT = 1e-6
"""The specification's tolerance for float64; its values are printed with ten digits."""
ROUNDING = 1e-12
"""Float64: sums of some hundred terms of order 1, exponents of at most some ten."""


def value(loss: losses.Loss, *texts: Tensor) -> float:
    result = loss(*texts)
    assert result.dtype == torch.float64
    return float(result)


def terms(loss: losses.Loss, *texts: Tensor) -> Tensor:
    triples = ExampleVectors.distinct(*texts)
    return loss.compare(loss.comparisons(triples, triples))


@pytest.mark.parametrize("temperature", ["0.05", "0.1", "0.5", "1.0"])
def test_l1_to_l5_every_temperature_of_the_four_by_two_vectors(vectors: dict[str, Any], temperature: str) -> None:
    case, t = vectors["nt_xent_4x2"], float(temperature)
    wanted = case["by_temperature"][temperature]
    a, p = (torch.tensor(case[name], dtype=torch.float64) for name in ("anchors", "positives"))
    reached = {
        "nt_xent_terms_order_a1_a2_p1_p2": terms(losses.NTXent(t), a, p).tolist(),
        "nt_xent_mean_over_2N": value(losses.NTXent(t), a, p),
        "nt_xent_sum_over_2N": value(losses.NTXent(t, reduction="sum"), a, p),
        "consert_code_value_lossA_plus_lossB": value(losses.NTXent(t, reduction="two_sided"), a, p),
        "infonce_one_direction_terms": terms(losses.InfoNCE(t), a, p).tolist(),
        "infonce_one_direction_mean": value(losses.InfoNCE(t), a, p),
        "infonce_symmetric_mean_of_two_directions": value(losses.InfoNCE(t, reduction="two_sided"), a, p) / 2,
    }
    assert reached.keys() == wanted.keys()
    for name, expected in wanted.items():
        assert reached[name] == pytest.approx(expected, abs=EXACT), name


@pytest.mark.parametrize(
    ("loss", "name", "gradients"),
    [
        (losses.NTXent(temperature=0.1), "nt_xent_mean_tau_0.1", "nt_xent"),
        (losses.InfoNCE(temperature=0.05), "simcse_infonce_tau_0.05", "simcse"),
    ],
)
def test_l6_gradients_of_the_six_by_three_example(
    vectors: dict[str, Any], loss: losses.Loss, name: str, gradients: str
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


def test_l9_collapsed_embeddings_give_the_logarithm_of_the_columns(vectors: dict[str, Any]) -> None:
    case, same = vectors["collapse_values"], torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64)
    for loss, n, hard, key, expected in (
        (losses.InfoNCE(), 64, 0, "simcse_N64", math.log(64)),
        (losses.InfoNCE(), 64, 1, "simcse_N64_with_hard_negatives", math.log(128)),
        (losses.NTXent(0.1), 96, 0, "nt_xent_mean_N96", math.log(191)),
        (losses.NTXent(0.1, "two_sided"), 96, 0, "consert_code_N96", 10.5045468561),
        (losses.NTXent(), 32, 0, "declutr_A2_N16_2AN64", math.log(63)),
        (losses.NTXent(), 8, 0, "declutr_batch4_one_gpu_2AN16", math.log(15)),
        (losses.NTXent(reduction="sum"), 32, 0, None, 64 * math.log(63)),
    ):
        found = value(loss, *[same.expand(n, 3)] * (2 + hard))
        assert found == pytest.approx(expected, abs=EXACT)
        assert key is None or case[key] == pytest.approx(expected, abs=EXACT)


def test_s1_and_s2_the_weight_is_added_to_a_rows_own_negatives_only(vectors: dict[str, Any]) -> None:
    case = vectors["simcse_hard_negative"]
    triples = [
        torch.tensor(case[name], dtype=torch.float64) for name in ("anchors", "positives", "hard_negatives")
    ]
    for each in case["by_weight"].values():
        for t in ("0.05", "1"):
            loss = losses.InfoNCE(float(t), hard_negative_log_weight=each["logit_weight"])
            assert terms(loss, *triples).tolist() == pytest.approx(each[f"tau_{t}_terms"], abs=EXACT)
            assert value(loss, *triples) == pytest.approx(each[f"tau_{t}_mean"], abs=EXACT)


def test_c14_sum_and_mean_of_a_collapsed_batch_of_clear(vectors: dict[str, Any]) -> None:
    case = vectors["clear_sum_vs_mean"]
    rows = 2 * case["N"]
    total = torch.tensor(rows * math.log(rows - 1), dtype=torch.float64)
    assert float(losses.reduce_terms(total, rows, "mean")) == pytest.approx(case["collapsed_mean"], abs=EXACT)
    # Printed with four decimals.
    assert float(losses.reduce_terms(total, rows, "sum")) == pytest.approx(case["collapsed_sum"], abs=1e-4)


@pytest.mark.parametrize(("temperature", "expected"), [(0.1, 2.4662557997), (0.5, 1.4399135012)])
def test_sup_con_of_the_six_by_three_example(
    vectors: dict[str, Any], temperature: float, expected: float
) -> None:
    case = vectors["loss_with_gradients_6x3"]
    texts = (torch.tensor(case[side], dtype=torch.float64) for side in ("anchors", "positives"))
    # SupConLoss of pytorch-metric-learning 2.9.0 on both sides one after the other, printed with ten digits.
    reached = float(losses.SupCon(temperature)(*texts, classes=torch.tensor([0, 1, 0])))
    assert reached == pytest.approx(expected, abs=1e-9)


# The methods' sheet


def siglip(temperature: float, bias: float) -> losses.SigLIP:
    """The loss in float64, whose parameters are those numbers to the last digit."""
    loss = losses.SigLIP(temperature, bias).double()
    assert loss.learned is not None
    with torch.no_grad():
        loss.learned.log_scale.fill_(-math.log(temperature))
        loss.learned_bias.fill_(bias)
    return loss.requires_grad_(False)


def own_hardness(a: Tensor, p: Tensor, h: Tensor) -> Tensor:
    # In this value only a row's own hard negative is a column in addition to the positives.
    loss, every = losses.InfoNCE(temperature=0.05, hard_negative_hardness=5.0), ExampleVectors.distinct(a, p, h)
    (block,) = loss.comparisons(every, every)
    return loss.terms(block).mean()


FOUR = get_args(Direction)
ALIGN, UNIFORM = losses.AlignmentUniformity(uniformity_weight=0), losses.AlignmentUniformity(alignment_weight=0)
OFF = (losses.BarlowTwins(1), losses.BarlowTwins(0))
# Key of the sheet -> the value from anchors, positives and hard negatives, (4, D) each.
SHEET: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "infonce_T0.1": lambda a, p, _: losses.InfoNCE(0.1)(a, p),
    "gte_four_directions_T0.05": lambda a, p, _: losses.InfoNCE(0.05, directions=FOUR)(a, p),
    "hardness_hard5_T0.05": own_hardness,
    "hardness_inbatch9_T0.05": lambda a, p, h: losses.InfoNCE(0.05, in_batch_hardness=9.0)(a, p, h),
    "ntxent_T0.1_mean2N": lambda a, p, _: losses.NTXent(0.1)(a, p),
    "debiased_T0.5_tau0.1": lambda a, p, _: losses.DebiasedNTXent(0.5, tau_plus=0.1)(a, p),
    "dcl_T0.1_mean2N": lambda a, p, _: losses.DCL(0.1)(a, p),
    "dcl_T0.1_rows": lambda a, p, _: terms(losses.DCL(0.1), a, p),
    "dcl_oneway_infonce_T0.1": lambda a, p, _: losses.DCL(0.1, same_side=False)(a, p),
    "dclw_weights_sigma0.5": lambda a, p, _: losses.DCLW(sigma=0.5).weights(a, p),
    "dclw_T0.1_sigma0.5_mean2N": lambda a, p, _: losses.DCLW(0.1, sigma=0.5)(a, p),
    "siglip_t10_b-10": lambda a, p, _: siglip(0.1, -10.0)(a, p),
    "siglip_t10_b-2.71": lambda a, p, _: siglip(0.1, -2.71)(p, a),  # it is symmetric
    "angle_sim": lambda a, p, _: losses.angle_similarity(a, p),
    "align_a2": lambda a, p, _: ALIGN(a, p),
    "uniform_t2_A": lambda a, _, __: UNIFORM(a, a),
    "uniform_t2_P": lambda _, p, __: UNIFORM(p, p),
    "uniform_t2_A_and_P_pooled": lambda a, p, _: text_uniformity(
        unit_vectors(torch.cat([a, p])), torch.arange(8), t=2
    ),
    "align1_uniform1_mean_of_sides": lambda a, p, _: losses.AlignmentUniformity()(a, p),
    "barlow_on": lambda a, p, _: losses.BarlowTwins(off_diagonal_weight=0)(a, p),
    "barlow_off": lambda a, p, _: OFF[0](a, p) - OFF[1](a, p),
    "barlow_lambda0.0051": lambda a, p, _: losses.BarlowTwins()(a, p),
    "vicreg_inv": lambda a, p, _: losses.VICReg(1, 0, 0)(a, p),
    "vicreg_std_halfsum": lambda a, p, _: losses.VICReg(0, 1, 0)(a, p),
    "vicreg_cov_sum": lambda a, p, _: losses.VICReg(0, 0, 1)(a, p),
    "vicreg_25_25_1": lambda a, p, _: losses.VICReg()(a, p),
    "vicreg_std_on_0.3x": lambda a, p, _: losses.VICReg(0, 1, 0)(0.3 * a, 0.3 * p),
    "gor_mean_A": lambda a, _, __: losses.GlobalOrthogonalRegularization(1, 0)(a, a),
    "gor_second_A": lambda a, _, __: losses.GlobalOrthogonalRegularization(0, 1)(a, a),
    "lejepa_inv_two_views": lambda a, p, _: losses.SIGReg(weight=0)(a, p),
}


@pytest.fixture(scope="module")
def sides(methods: dict[str, Any]) -> list[Tensor]:
    return [torch.tensor(methods["inputs"][name], dtype=torch.float64) for name in "APH"]


@pytest.mark.parametrize("key", SHEET)
def test_a_value_of_the_methods_sheet(key: str, methods: dict[str, Any], sides: list[Tensor]) -> None:
    assert SHEET[key](*sides).tolist() == pytest.approx(methods[key], abs=1e-9)


def test_order_losses_of_the_methods_sheet(methods: dict[str, Any], sides: list[Tensor]) -> None:
    pairs, gold = torch.stack(sides[:2], dim=1), torch.tensor(methods["inputs"]["gold_0_5"]).double() / 5
    assert float(losses.AnglE(1 / 20)(pairs, gold)) == pytest.approx(methods["angle_tau20"], abs=ROUNDING)
    assert float(losses.AnglE(1.0)(pairs, gold)) == pytest.approx(methods["angle_tau1"], abs=ROUNDING)
    cosines = torch.cosine_similarity(*sides[:2])
    assert float(losses.CoSENT()(cosines, gold)) == pytest.approx(methods["cosent_tau20"], abs=ROUNDING)


def test_the_squared_error_of_two_pairs_by_hand() -> None:
    cosines, scores = torch.tensor([[-0.6, 0.5], [0.4, 1.0]], dtype=torch.float64)
    assert float(losses.CosineMSE()(cosines, scores)) == pytest.approx((1 + 0.25) / 2, abs=1e-15)


class Along(losses.SIGReg):
    """Takes given directions in place of drawn ones."""

    along: Tensor

    def _draw_directions(self, like: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        return self.along


def test_sigreg_of_each_side_pooled_and_as_lejepa(methods: dict[str, Any], sides: list[Tensor]) -> None:
    along = torch.tensor(methods["sigreg_directions"], dtype=torch.float64).T
    rows = {"A": sides[0], "P": sides[1], "pooled_AP": torch.cat(sides[:2])}
    for name, each in rows.items():
        found = float(epps_pulley(each, along).mean())
        assert found == pytest.approx(methods[f"sigreg_{name}_T3_17"], abs=ROUNDING), name
    for form, pooled in (("pooled", True), ("mean_of_views", False)):
        loss = Along(pooled=pooled)
        loss.along = along
        assert float(loss(*sides[:2])) == pytest.approx(methods[f"lejepa_lamb0.02_{form}"], abs=ROUNDING), form
