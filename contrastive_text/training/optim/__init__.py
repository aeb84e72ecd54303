"""Optimizers, learning-rate schedules, and combiners, which make one gradient of several losses."""

from contrastive_text.training.optim.combine import Combine, PCGrad, Uncertainty, WeightedSum, gradient_figures
from contrastive_text.training.optim.optimizers import (
    AdamW,
    Optimizer,
    TorchOptimizer,
)
from contrastive_text.training.optim.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Schedule,
    ScheduledRates,
    ScheduleName,
    SlantedTriangularSchedule,
    TorchSchedule,
    TransformersSchedule,
    WarmupSchedule,
)

__all__ = [
    "AdamW",
    "Combine",
    "ConstantSchedule",
    "CosineSchedule",
    "LinearSchedule",
    "Optimizer",
    "PCGrad",
    "Schedule",
    "ScheduleName",
    "ScheduledRates",
    "SlantedTriangularSchedule",
    "TorchOptimizer",
    "TorchSchedule",
    "TransformersSchedule",
    "Uncertainty",
    "WarmupSchedule",
    "WeightedSum",
    "gradient_figures",
]
