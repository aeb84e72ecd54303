"""How weights move: optimisers, learning-rate schedules, one gradient out of many losses."""

from contrastive_text.training.checkpoint_io import AtomicCheckpointIO
from contrastive_text.training.combine import Combine, Uncertainty, WeightedSum
from contrastive_text.training.gradients import gradient_figures
from contrastive_text.training.optimizers import AdamW, Optimizer
from contrastive_text.training.pcgrad import PCGrad
from contrastive_text.training.schedules import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Schedule,
    ScheduledRates,
    SlantedTriangularSchedule,
    lr_lambda,
)

__all__ = [
    "AdamW",
    "AtomicCheckpointIO",
    "Combine",
    "ConstantSchedule",
    "CosineSchedule",
    "LinearSchedule",
    "Optimizer",
    "PCGrad",
    "Schedule",
    "ScheduledRates",
    "SlantedTriangularSchedule",
    "Uncertainty",
    "WeightedSum",
    "gradient_figures",
    "lr_lambda",
]
