"""Heads: small networks after the pooler, which are part of the saved model or used in training only."""

from contrastive_text.heads.base import (
    Head,
    apply_exactly,
    build_head,
    check_train_only,
    linear_exactly,
    output_width,
    project_parts,
    share_layers,
)
from contrastive_text.heads.mlp import FineTuningHead, MLPHead, ProjectorHead, TanhHead, WholeBatchNorm
from contrastive_text.heads.stack import FirstFeatures, StackHead, UnitLength, stack_of

__all__ = [
    "FineTuningHead",
    "FirstFeatures",
    "Head",
    "MLPHead",
    "ProjectorHead",
    "StackHead",
    "TanhHead",
    "UnitLength",
    "WholeBatchNorm",
    "apply_exactly",
    "build_head",
    "check_train_only",
    "linear_exactly",
    "output_width",
    "project_parts",
    "share_layers",
    "stack_of",
]
