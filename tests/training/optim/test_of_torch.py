"""Optimizers and schedulers of torch, and schedules of Transformers, by their names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from torch import nn
from torch.optim import lr_scheduler

from contrastive_text import ContrastiveModule, TransformerEncoder
from contrastive_text.cli.configuration import configured
from contrastive_text.training import ScheduledRates, TorchOptimizer, TorchSchedule, TransformersSchedule
from contrastive_text.training.optim import ScheduleName

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


def of_transformers(
    optimizer: torch.optim.Optimizer, name: str, options: dict[str, Any], warmup: int
) -> lr_scheduler.LRScheduler:
    absolute = {key: 0.2 * value if key in ("min_lr", "lr_end") else value for key, value in options.items()}
    return transformers.get_scheduler(name, optimizer, warmup, STEPS, absolute)


@pytest.mark.parametrize("name", get_args(ScheduleName))
def test_a_schedule_has_transformers_rates(name: ScheduleName) -> None:
    options: dict[str, dict[str, Any]] = {
        "cosine_with_restarts": {"num_cycles": 2},
        "polynomial": {"power": 2.0, "lr_end": 0.1},
        "cosine_with_min_lr": {"min_lr": 0.1},
        "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
        "warmup_stable_decay": {"num_decay_steps": 3},
    }
    warmup = 0 if name == "constant" else 3
    ours, theirs = (torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.2) for _ in range(2))
    schedule = TransformersSchedule(name, warmup_ratio=warmup / STEPS, options=options.get(name))
    rates = ScheduledRates(ours, schedule, total=STEPS)
    expected = of_transformers(theirs, name, options.get(name, {}), warmup)
    for _ in range(STEPS):
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
        for optimizer, scheduler in ((ours, rates), (theirs, expected)):
            optimizer.step()
            scheduler.step()
    unknown = TransformersSchedule(name, warmup_steps=warmup, options=options.get(name))
    assert unknown.needs_total == (name not in ("constant", "constant_with_warmup", "inverse_sqrt"))


def test_every_schedule_of_transformers_is_a_name_except_those_that_read_a_score() -> None:
    names = {kind.value for kind in transformers.SchedulerType}
    assert names - {"reduce_lr_on_plateau", "greedy"} == {*get_args(ScheduleName)}


def test_a_module_takes_the_name_of_a_schedule_and_stores_it(bert: str) -> None:
    module = ContrastiveModule(TransformerEncoder(bert), schedule="cosine")
    assert isinstance(module.schedule, TransformersSchedule) and module.schedule.name == "cosine"
    assert module.hparams["schedule"]["init_args"]["name"] == "cosine"
    with pytest.raises(ValueError, match=r"TransformersSchedule\.name: expected one of .*, got 'cosin'"):
        ContrastiveModule(TransformerEncoder(bert), schedule="cosin")  # type: ignore[arg-type]  # the error


def test_the_shell_and_a_file_take_the_name_of_a_schedule(tmp_path: Path) -> None:
    words = ["--model.encoder", "TransformerEncoder", "--data.train", __file__]
    named = ["--model.schedule", "cosine", "--model.schedule.warmup_ratio", "0.1"]
    schedule = configured("fit", [*words, *named])[1].model.schedule
    assert (schedule.init_args.name, schedule.init_args.warmup_ratio) == ("cosine", 0.1)
    (tmp_path / "linear.yaml").write_text("model: {schedule: linear}", encoding="utf-8")
    assert configured("fit", [*words, "--config", str(tmp_path / "linear.yaml")])[1].model.schedule == "linear"


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
