"""Heads: small networks after the pooler, which are part of the saved model or used in training only."""

from contrastive_text.heads.base import (
    Head,
    apply_in_full_precision,
    build_head,
    check_train_only,
    linear_in_full_precision,
    output_width,
    project_roles,
    share_layers,
)
from contrastive_text.heads.mlp import FineTuningHead, MLPHead, ProjectorHead, TanhHead, WholeBatchNorm
from contrastive_text.heads.stack import FirstFeatures, StackHead, UnitLength, describe_stack

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
    "apply_in_full_precision",
    "build_head",
    "check_train_only",
    "describe_stack",
    "linear_in_full_precision",
    "output_width",
    "project_roles",
    "share_layers",
]
