"""Schedules against the papers' values and Transformers'."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from contrastive_text.training import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    ScheduledRates,
    SlantedTriangularSchedule,
)


def sgd(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(scheduler, optimizer, steps):
    """Learning rate of each optimizer step of a real training loop."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_the_vectors_file_holds(vectors):
    cases = [
        ("simcse_linear_schedule", LinearSchedule(), "total_steps", "lr"),
        ("consert_linear_schedule", LinearSchedule(warmup_ratio=0.1), "total_steps", "lr"),
        ("clear_schedule", LinearSchedule(warmup_steps=24_000), "total", "peak"),
    ]
    # A ratio is rounded up to whole steps: 3 of 7.
    assert LinearSchedule(warmup_ratio=0.3).factor(2, total=7) == pytest.approx(2 / 3)
    for key, schedule, total, peak in cases:
        case = vectors[key]
        for step, rate in case["values"].items():
            factor = schedule.factor(int(step), total=case[total])
            assert case[peak] * factor == pytest.approx(rate, rel=1e-9), (key, step)


def test_the_vectors_file_holds_for_the_slanted_triangle(vectors):
    case = vectors["slanted_triangular"]
    for total, values in ((case["T"], case["values"]), (1000, case["T_1000"])):
        schedule = SlantedTriangularSchedule(cut_fraction=case["cut_frac"], ratio=case["ratio"])
        for t, rate in values.items():
            factor = schedule.factor(int(t) - 1, total=total)
            assert case["lr"] * factor == pytest.approx(rate, rel=1e-9), (total, t)


@pytest.mark.parametrize("warmup", [0, 1, 7, 40, 60])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LinearSchedule, lambda sgd, warmup: get_linear_schedule_with_warmup(sgd, warmup, 40)),
        (CosineSchedule, lambda sgd, warmup: get_cosine_schedule_with_warmup(sgd, warmup, 40)),
        (ConstantSchedule, get_constant_schedule_with_warmup),
    ],
)
def test_schedules_equal_transformers(ours, theirs, warmup):
    mine, other = sgd(lr=0.3), sgd(lr=0.3)
    scheduler = ScheduledRates(mine, ours(warmup_steps=warmup), total=40)
    expected = rates(theirs(other, warmup), other, steps=40)
    assert rates(scheduler, mine, steps=40) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("total", [None, math.inf, math.nan, 0, -1])
def test_a_run_of_unknown_length_is_refused_where_the_schedule_asks_for_it(total):
    for schedule in (LinearSchedule(), ConstantSchedule(warmup_ratio=0.1), SlantedTriangularSchedule()):
        with pytest.raises(ValueError, match=r"set trainer\.max_steps, or trainer\.max_epochs with"):
            ScheduledRates(sgd(), schedule, total=total)
    for warmup, step, factor in ((0, 10**6, 1.0), (4, 1, 0.25)):
        constant = ScheduledRates(sgd(), ConstantSchedule(warmup_steps=warmup), total=total)
        assert constant.lr_lambdas[0](step) == factor


@given(total=st.integers(1, 500), cut=st.floats(0.001, 0.999), ratio=st.floats(1, 1000))
@settings(max_examples=30, deadline=None)
def test_a_triangle_stays_between_its_floor_and_its_peak(total, cut, ratio):
    schedule = SlantedTriangularSchedule(cut_fraction=cut, ratio=ratio)
    # torch asks for step = total too, after the last optimizer step
    for step in range(total + 1):
        assert 1 / ratio * (1 - 1e-12) <= schedule.factor(step, total=total) <= 1 + 1e-12
    assert schedule.factor(total - 1, total=total) == pytest.approx(1 / ratio)
