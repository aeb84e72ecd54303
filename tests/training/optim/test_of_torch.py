"""Optimizers and schedulers of torch by their names: what they are given, what they refuse, a run with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from contrastive_text.training import ScheduledRates, TorchOptimizer, TorchSchedule

STEPS = 12
SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("OneCycleLR", {"max_lr": 1, "total_steps": "total"}),
    ("CosineAnnealingLR", {"T_max": "total", "eta_min": 0.1}),
    ("CosineAnnealingWarmRestarts", {"T_0": 5}),
    ("PolynomialLR", {"total_iters": "total", "power": 2.0}),
    ("MultiStepLR", {"milestones": [3, 7], "gamma": 0.5}),
    ("torch.optim.lr_scheduler.ExponentialLR", {"gamma": 0.9}),
]


@pytest.mark.parametrize(("name", "options"), SCHEDULES, ids=[name for name, _ in SCHEDULES])
def test_a_schedule_has_torch_s_rates(name: str, options: dict[str, Any]) -> None:
    weights = [nn.Parameter(torch.ones(2))]
    ours, theirs = (torch.optim.SGD(weights, lr=0.2, momentum=0.9) for _ in range(2))
    schedule = TorchSchedule(name, options)
    assert schedule.needs_total == ("total" in options.values())
    rates = ScheduledRates(ours, schedule, total=STEPS)
    known: dict[str, Any] = {key: STEPS if value == "total" else value for key, value in options.items()}
    known |= {key: 0.2 * value for key, value in known.items() if key in ("max_lr", "eta_min")}
    expected = vars(lr_scheduler)[name.rpartition(".")[2]](theirs, **known)
    for _ in range(STEPS):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
        for optimizer, scheduler in ((ours, rates), (theirs, expected)):
            optimizer.step()
            scheduler.step()


def test_a_rate_is_known_in_any_order_and_for_any_length() -> None:
    schedule = TorchSchedule("PolynomialLR", {"total_iters": "total"})
    assert [schedule.factor(step, 4) for step in (4, 0, 2)] == pytest.approx([0.0, 1.0, 0.5])
    assert schedule.factor(2, 8) == pytest.approx(0.75)
    assert copy.deepcopy(schedule).factor(1, 4) == pytest.approx(0.75)


@pytest.mark.parametrize("name", ["SGD", "Adafactor", "torch.optim.AdamW"])
def test_decay_spares_vectors_and_is_off_unless_it_is_given(name: str) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2).requires_grad_(False))
    decayed = TorchOptimizer(name, lr=0.1, weight_decay=0.5).build(module.named_parameters())
    assert [(g["lr"], g["weight_decay"], [p.ndim for p in g["params"]]) for g in decayed.param_groups] == [
        (0.1, 0.5, [2]),
        (0.1, 0.0, [1]),
    ]
    for other in (name, "LBFGS"):  # which has none
        (group,) = TorchOptimizer(other, lr=0.1).build(module.named_parameters()).param_groups
        assert (group.get("weight_decay", 0), len(group["params"])) == (0, 2)


def test_a_run_of_unknown_length_is_refused() -> None:
    schedule = TorchSchedule("CosineAnnealingLR", {"T_max": "total"})
    with pytest.raises(ValueError, match="TorchSchedule: expected the number of optimizer steps of the run"):
        ScheduledRates(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), schedule, total=None)
