"""Schedules against the papers' values, Transformers' and a real LambdaLR."""

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

WITH_WARMUP = [ConstantSchedule, CosineSchedule, LinearSchedule]


def sgd(lr):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(scheduler, optimizer, steps):
    """Learning rate of each optimiser step of a real training loop."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


class TestVectors:
    def test_the_vectors_file_holds(self, vectors):
        cases = [
            ("simcse_linear_schedule", LinearSchedule(), "total_steps", "lr"),
            ("consert_linear_schedule", LinearSchedule(warmup_ratio=0.1), "total_steps", "lr"),
            ("clear_schedule", LinearSchedule(warmup_steps=24_000), "total", "peak"),
        ]
        for key, schedule, total, peak in cases:
            case = vectors[key]
            for step, rate in case["values"].items():
                factor = schedule.factor(int(step), total=case[total])
                assert case[peak] * factor == pytest.approx(rate, rel=1e-9), (key, step)

    def test_the_vectors_file_holds_for_the_slanted_triangle(self, vectors):
        case = vectors["slanted_triangular"]
        for total, values in ((case["T"], case["values"]), (1000, case["T_1000"])):
            schedule = SlantedTriangularSchedule(cut_fraction=case["cut_frac"], ratio=case["ratio"])
            for t, rate in values.items():
                factor = schedule.factor(int(t) - 1, total=total)
                assert case["lr"] * factor == pytest.approx(rate, rel=1e-9), (total, t)


class TestPeers:
    @pytest.mark.parametrize("warmup", [0, 1, 7, 40, 60])
    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (LinearSchedule, get_linear_schedule_with_warmup),
            (CosineSchedule, get_cosine_schedule_with_warmup),
        ],
    )
    def test_falling_schedules_equal_transformers(self, ours, theirs, warmup):
        mine, other = sgd(lr=0.3), sgd(lr=0.3)
        scheduler = ScheduledRates(mine, ours(warmup_steps=warmup), total=40)
        reference = theirs(other, num_warmup_steps=warmup, num_training_steps=40)
        assert rates(scheduler, mine, steps=40) == pytest.approx(rates(reference, other, steps=40), abs=1e-15)

    def test_the_constant_schedule_equals_transformers(self):
        mine, other = sgd(lr=0.3), sgd(lr=0.3)
        scheduler = ScheduledRates(mine, ConstantSchedule(warmup_steps=7), total=40)
        reference = get_constant_schedule_with_warmup(other, num_warmup_steps=7)
        assert rates(scheduler, mine, steps=40) == rates(reference, other, steps=40)


class TestRealRun:
    def test_a_resumed_run_gets_the_same_rates(self):
        optimizer = sgd(lr=1.0)
        scheduler = ScheduledRates(optimizer, CosineSchedule(warmup_ratio=0.2), total=20)
        whole = rates(scheduler, optimizer, steps=20)

        first = sgd(lr=1.0)
        before = ScheduledRates(first, CosineSchedule(warmup_ratio=0.2), total=20)
        start = rates(before, first, steps=8)
        second = sgd(lr=1.0)
        after = ScheduledRates(second, CosineSchedule(warmup_ratio=0.2), total=20)
        second.load_state_dict(first.state_dict())
        after.load_state_dict(before.state_dict())
        assert start + rates(after, second, steps=12) == whole


class TestUnknownLength:
    @pytest.mark.parametrize(
        "schedule",
        [
            LinearSchedule(),
            CosineSchedule(warmup_steps=5),
            ConstantSchedule(warmup_ratio=0.1),
            SlantedTriangularSchedule(),
        ],
    )
    @pytest.mark.parametrize("total", [None, math.inf, math.nan, 0, -1])
    def test_it_is_refused_with_what_to_set(self, schedule, total):
        with pytest.raises(ValueError, match=r"set trainer\.max_steps, or trainer\.max_epochs with"):
            ScheduledRates(sgd(lr=1.0), schedule, total=total)

    @pytest.mark.parametrize("total", [None, math.inf, 0, -1])
    def test_a_constant_schedule_runs_without_it(self, total):
        for warmup, step, factor in ((0, 10**6, 1.0), (4, 1, 0.25)):
            rates = ScheduledRates(sgd(lr=1.0), ConstantSchedule(warmup_steps=warmup), total=total)
            assert rates.lr_lambdas[0](step) == factor


class TestSettings:
    @pytest.mark.parametrize("schedule", WITH_WARMUP)
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"warmup_steps": -1}, "warmup_steps: expected 0 or more"),
            ({"warmup_ratio": -0.1}, "warmup_ratio: expected a share"),
            ({"warmup_ratio": 1.5}, "warmup_ratio: expected a share"),
            ({"warmup_ratio": math.nan}, "warmup_ratio: expected a share"),
            ({"warmup_steps": 3, "warmup_ratio": 0.1}, "got both"),
        ],
    )
    def test_a_warm_up_that_makes_no_sense_is_refused(self, schedule, arguments, message):
        with pytest.raises(ValueError, match=rf"{schedule.__name__}.*{message}"):
            schedule(**arguments)

    @pytest.mark.parametrize("arguments", [{"cut_fraction": 0.0}, {"cut_fraction": 1.0}, {"ratio": 0.5}])
    def test_a_triangle_out_of_range_is_refused(self, arguments):
        with pytest.raises(ValueError, match="SlantedTriangularSchedule"):
            SlantedTriangularSchedule(**arguments)


class TestProperties:
    @given(
        total=st.integers(1, 500),
        ratio=st.floats(0, 1),
        make=st.sampled_from(WITH_WARMUP),
    )
    @settings(max_examples=30, deadline=None)
    def test_a_warm_up_rises_and_the_rest_never_does(self, total, ratio, make):
        schedule = make(warmup_ratio=ratio)
        factors = [schedule.factor(step, total=total) for step in range(total)]
        warmup = math.ceil(ratio * total)
        assert all(0 <= factor <= 1 for factor in factors)
        assert factors[: warmup + 1] == sorted(factors[: warmup + 1])
        assert factors[warmup:] == sorted(factors[warmup:], reverse=True)

    @given(total=st.integers(1, 500), cut=st.floats(0.001, 0.999), ratio=st.floats(1, 1000))
    @settings(max_examples=30, deadline=None)
    def test_a_triangle_stays_between_its_floor_and_its_peak(self, total, cut, ratio):
        schedule = SlantedTriangularSchedule(cut_fraction=cut, ratio=ratio)
        # torch asks for step = total too, after the last optimiser step
        for step in range(total + 1):
            assert 1 / ratio * (1 - 1e-12) <= schedule.factor(step, total=total) <= 1 + 1e-12
        assert schedule.factor(total - 1, total=total) == pytest.approx(1 / ratio)
