"""How weights move: optimisers and learning-rate schedules."""

from contrastive_text.training.optimizers import AdamW, Optimizer
from contrastive_text.training.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Schedule,
    SlantedTriangularSchedule,
    lr_lambda,
)

__all__ = [
    "AdamW",
    "ConstantSchedule",
    "CosineSchedule",
    "LinearSchedule",
    "Optimizer",
    "Schedule",
    "SlantedTriangularSchedule",
    "lr_lambda",
]
