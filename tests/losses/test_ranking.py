"""Losses of rankings and the divergence of two rankings against slow loops, and what must not change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.losses import KLDivergence, ListMLE, ListNet, MarginMSE, RankLoss, jensen_shannon_terms

# Logits of at most 20 in float64, sums of some ten terms.
ROUNDING = 1e-11
T, TEACHER_T = 0.1, 0.05
LOSSES: list[RankLoss] = [ListNet(T, TEACHER_T), ListMLE(T), KLDivergence(T, TEACHER_T), MarginMSE()]
BY_NAME = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)

Scores = Sequence[float]


def softmax(scores: Scores, temperature: float) -> list[float]:
    masses = [math.exp(score / temperature) for score in scores]
    return [mass / sum(masses) for mass in masses]


def slow_list_net(student: Scores, guide: Scores, _: int) -> float:
    p, q = softmax(guide, TEACHER_T), softmax(student, T)
    return -sum(one * math.log(other) for one, other in zip(p, q, strict=True))


def slow_kl(student: Scores, guide: Scores, _: int) -> float:
    p, q = softmax(guide, TEACHER_T), softmax(student, T)
    return T * T * sum(one * math.log(one / other) for one, other in zip(p, q, strict=True))


def slow_list_mle(student: Scores, guide: Scores, _: int) -> float:
    order = sorted(range(len(guide)), key=lambda place: -guide[place])
    product = 1.0
    for k, place in enumerate(order):
        product *= math.exp(student[place] / T) / sum(math.exp(student[m] / T) for m in order[k:])
    return -math.log(product)


def slow_margins(student: Scores, guide: Scores, target: int) -> float:
    found = [
        ((student[target] - student[j]) - (guide[target] - guide[j])) ** 2
        for j in range(len(guide))
        if j != target
    ]
    return sum(found) / max(len(found), 1)


SLOW: dict[type[RankLoss], Callable[[Scores, Scores, int], float]] = {
    ListNet: slow_list_net,
    ListMLE: slow_list_mle,
    KLDivergence: slow_kl,
    MarginMSE: slow_margins,
}


@st.composite
def lists(draw: st.DrawFn, rows: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cosines of student and guide, targets that aren't hidden, and what is."""
    columns = draw(st.integers(1, 6))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    student, guide = (2 * torch.rand(2, rows, columns, generator=noise, dtype=torch.float64) - 1).unbind()
    target = torch.randint(columns, (rows,), generator=noise)
    hidden = torch.rand(rows, columns, generator=noise) < draw(st.sampled_from([0.0, 0.4]))
    return student, guide, target, hidden.scatter(1, target.unsqueeze(1), False)


@BY_NAME
@given(case=lists())
def test_a_loss_equals_the_loop(loss: RankLoss, case: tuple[Tensor, ...]) -> None:
    student, guide, target, hidden = case
    for i, found in enumerate(loss.terms(*case).tolist()):
        seen = [j for j in range(student.shape[1]) if not hidden[i, j]]
        rows = [[float(scores[i, j]) for j in seen] for scores in (student, guide)]
        expected = SLOW[type(loss)](rows[0], rows[1], seen.index(int(target[i])))
        assert found == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


@given(case=lists())
def test_the_divergence_of_two_rankings_equals_the_loop_and_is_symmetric(case: tuple[Tensor, ...]) -> None:
    logits = case[0] / T, case[1] / T
    found = jensen_shannon_terms(*logits)
    assert found.tolist() == pytest.approx(jensen_shannon_terms(*reversed(logits)).tolist(), abs=ROUNDING)
    for i, term in enumerate(found.tolist()):
        p, q = (softmax(each[i].tolist(), 1.0) for each in logits)
        middle = [(one + other) / 2 for one, other in zip(p, q, strict=True)]
        parts = [sum(a * math.log(a / m) for a, m in zip(each, middle, strict=True)) for each in (p, q)]
        assert term == pytest.approx(sum(parts) / 2, abs=ROUNDING)
    leaves = [each.requires_grad_() for each in case[:2]]
    assert torch.autograd.gradcheck(jensen_shannon_terms, leaves)


def test_candidates_that_the_guide_scores_alike_stand_in_their_order() -> None:
    student, guide = torch.tensor([[0.1, 0.9, 0.4]]).double(), torch.tensor([[0.5, 0.5, 0.7]]).double()
    expected = slow_list_mle(student[0].tolist(), [0.5, 0.4, 0.7], 0)
    assert float(ListMLE(T)(student, guide)) == pytest.approx(expected, abs=ROUNDING)


def test_far_apart_scores_leave_the_product_of_list_mle_unfloored() -> None:
    # In reversed order: 200 and 100 of the logits' distances; a floor of 1e-7 would leave 16 of each.
    student, guide = torch.tensor([[-1.0, 0.0, 1.0]]), torch.tensor([[0.3, 0.2, 0.1]])
    assert float(ListMLE(0.01)(student, guide)) == pytest.approx(300.0)
