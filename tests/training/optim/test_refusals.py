"""Optimizers, schedules and combiners of gradients that make no sense are refused when they are named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from contrastive_text.cli import run
from contrastive_text.training import (
    AdamW,
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    PCGrad,
    SlantedTriangularSchedule,
    TorchOptimizer,
    TorchSchedule,
    TransformersSchedule,
    WeightedSum,
)

REFUSED: list[tuple[type, dict[str, Any], str]] = [
    (AdamW, {"lr": 0.0}, r"AdamW\.lr: expected"),
    (AdamW, {"lr": math.nan}, r"AdamW\.lr: expected"),
    (AdamW, {"lr": math.inf}, r"AdamW\.lr: expected"),
    (AdamW, {"eps": 0.0}, r"AdamW\.eps: expected"),
    (AdamW, {"betas": (0.9, 1.0)}, r"AdamW\.betas: expected"),
    (AdamW, {"betas": (-0.1, 0.9)}, r"AdamW\.betas: expected"),
    (AdamW, {"betas": (0.9,)}, r"AdamW\.betas: expected"),
    (AdamW, {"weight_decay": -0.1}, r"AdamW\.weight_decay: expected"),
    (ConstantSchedule, {"warmup_steps": -1}, r"ConstantSchedule\.warmup_steps: expected 0 or more"),
    (CosineSchedule, {"warmup_ratio": -0.1}, r"CosineSchedule\.warmup_ratio: expected a share"),
    (LinearSchedule, {"warmup_ratio": 1.5}, r"LinearSchedule\.warmup_ratio: expected a share"),
    (LinearSchedule, {"warmup_ratio": math.nan}, r"LinearSchedule\.warmup_ratio: expected a share"),
    (LinearSchedule, {"warmup_steps": 3, "warmup_ratio": 0.1}, "LinearSchedule: .* got both"),
    (SlantedTriangularSchedule, {"cut_fraction": 0.0}, r"SlantedTriangularSchedule\.cut_fraction"),
    (SlantedTriangularSchedule, {"cut_fraction": 1.0}, r"SlantedTriangularSchedule\.cut_fraction"),
    (SlantedTriangularSchedule, {"ratio": 0.5}, r"SlantedTriangularSchedule\.ratio"),
    (WeightedSum, {"reduction": "max"}, r"WeightedSum\.reduction: expected sum or mean, got 'max'"),
    (PCGrad, {"scope": "heads"}, r"PCGrad\.scope: expected shared or all, got 'heads'"),
    (PCGrad, {"reduction": "max"}, r"PCGrad\.reduction: expected one of sum, mean or mixed"),
    (TorchOptimizer, {"name": "SDG"}, r"TorchOptimizer\.name: .* torch\.optim .* got 'SDG'; did you mean SGD"),
    (TorchOptimizer, {"name": "lr_scheduler"}, r"expected a class of torch\.optim"),
    (TorchOptimizer, {"name": "nowhere.Lion"}, "nothing was imported"),
    (TorchOptimizer, {"name": "collections.OrderedDict"}, "expected a subclass of Optimizer"),
    (TorchOptimizer, {"lr": 0.0}, r"TorchOptimizer\.lr: expected a finite number above 0, got 0\.0"),
    (TorchOptimizer, {"weight_decay": -1.0}, r"TorchOptimizer\.weight_decay: expected 0 or more, got -1\.0"),
    (
        TorchOptimizer,
        {"name": "Rprop", "weight_decay": 0.1},
        "expected an optimizer with weight_decay, got Rprop",
    ),
    (TorchOptimizer, {"options": {"lr": 1.0}}, r"TorchOptimizer\.options: expected no lr in options"),
    (TorchOptimizer, {"options": {"momentun": 0.9}}, r"\(SGD\): expected valid options, got: .*momentun"),
    (TorchOptimizer, {"options": {"momentum": -1}}, "Invalid momentum value"),
    (TorchSchedule, {"name": "OneCycle"}, r"class of torch\.optim\.lr_scheduler .*did you mean OneCycleLR"),
    (
        TorchSchedule,
        {"name": "OneCycleLR", "options": {"max_lr": 1}},
        r"\(OneCycleLR\): expected valid options, got",
    ),
    (TorchSchedule, {"name": "StepLR", "options": {"step": 3}}, "expected valid options, got: .*step"),
    (TorchSchedule, {"name": "ReduceLROnPlateau"}, "expected a schedule of the step alone"),
    (TransformersSchedule, {"name": "greedy"}, r"TransformersSchedule\.name: expected one of"),
    (TransformersSchedule, {"name": "constant", "warmup_steps": 3}, "expected no warm-up for constant, got 3"),
    (TransformersSchedule, {"name": "cosine", "options": {"cycles": 3}}, r"\(cosine\): expected valid options"),
    (TransformersSchedule, {"name": "cosine_with_min_lr"}, "expected valid options, got: .*min_lr"),
    (TorchSchedule, {"name": "torch.optim.SGD"}, "expected a subclass of LRScheduler"),
]


@pytest.mark.parametrize(("part", "arguments", "words"), REFUSED)
def test_settings_that_make_no_sense_are_refused(part: type, arguments: dict[str, Any], words: str) -> None:
    defaults = {"name": "SGD", "lr": 0.1} if part is TorchOptimizer else {}
    with pytest.raises(ValueError, match=words):
        part(**defaults | arguments)


def test_the_class_itself_is_answered_with_what_wraps_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words, wrapper in (
        (["--model.optimizer", "torch.optim.SGD"], "TorchOptimizer"),
        (["--model.schedule", "torch.optim.lr_scheduler.StepLR"], "TorchSchedule"),
    ):
        with pytest.raises(SystemExit):
            run(["fit", "--recipe", "simcse", *words])
        said = f"which is not a subclass of it; give {wrapper} for class_path, and in init_args name: {words[1]}"
        assert said in capsys.readouterr().err
