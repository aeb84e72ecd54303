"""Training: the LightningModule, runs with their folders and callbacks, optimizers and schedules."""

from typing import TYPE_CHECKING

from contrastive_text.core.libraries import lazy_getattr

if TYPE_CHECKING:
    from contrastive_text.training.callbacks import (
        BestCheckpoint,
        CollapseDoctor,
        ExportModel,
        NeighborProbe,
        RetrievalProbe,
        RunSummary,
        SaveWhenStopped,
        StopWhenSpread,
    )
    from contrastive_text.training.callbacks.every_run import (
        LogGradients,
        SaveAccumulatedGradients,
        StopWhenDiverged,
    )
    from contrastive_text.training.checkpoint_io import AtomicCheckpointIO
    from contrastive_text.training.forward_pass import encode_views
    from contrastive_text.training.fsdp2 import FSDP2Strategy
    from contrastive_text.training.guides import Guide, GuideFile, GuideModel
    from contrastive_text.training.module import ContrastiveModule, Inference
    from contrastive_text.training.optim import (
        AdamW,
        Combine,
        ConstantSchedule,
        CosineSchedule,
        LinearSchedule,
        Optimizer,
        PCGrad,
        Schedule,
        ScheduledRates,
        SlantedTriangularSchedule,
        TorchOptimizer,
        TorchSchedule,
        TransformersSchedule,
        Uncertainty,
        WarmupSchedule,
        WeightedSum,
    )
    from contrastive_text.training.run import Run

__all__ = [
    "AdamW",
    "AtomicCheckpointIO",
    "BestCheckpoint",
    "CollapseDoctor",
    "Combine",
    "ConstantSchedule",
    "ContrastiveModule",
    "CosineSchedule",
    "ExportModel",
    "FSDP2Strategy",
    "Guide",
    "GuideFile",
    "GuideModel",
    "Inference",
    "LinearSchedule",
    "LogGradients",
    "NeighborProbe",
    "Optimizer",
    "PCGrad",
    "RetrievalProbe",
    "Run",
    "RunSummary",
    "SaveAccumulatedGradients",
    "SaveWhenStopped",
    "Schedule",
    "ScheduledRates",
    "SlantedTriangularSchedule",
    "StopWhenDiverged",
    "StopWhenSpread",
    "TorchOptimizer",
    "TorchSchedule",
    "TransformersSchedule",
    "Uncertainty",
    "WarmupSchedule",
    "WeightedSum",
    "encode_views",
]

# Imported on demand: a module that is loaded for inference needs no callbacks.
__getattr__ = lazy_getattr(__name__)
