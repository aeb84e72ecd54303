"""Heads: small networks after the pooler, part of the saved model or train-only, and scorers of pairs."""

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
from contrastive_text.heads.mlp import (
    FineTuningHead,
    FirstFeatures,
    MLPHead,
    ProjectorHead,
    StackHead,
    TanhHead,
    UnitLength,
    WholeBatchNorm,
    describe_stack,
)
from contrastive_text.heads.scorers import (
    BilinearScorer,
    ConcatenationScorer,
    CosineScorer,
    Scorer,
    class_scores,
    cosines,
    pair_features,
)

__all__ = [
    "BilinearScorer",
    "ConcatenationScorer",
    "CosineScorer",
    "FineTuningHead",
    "FirstFeatures",
    "Head",
    "MLPHead",
    "ProjectorHead",
    "Scorer",
    "StackHead",
    "TanhHead",
    "UnitLength",
    "WholeBatchNorm",
    "apply_in_full_precision",
    "build_head",
    "check_train_only",
    "class_scores",
    "cosines",
    "describe_stack",
    "linear_in_full_precision",
    "output_width",
    "pair_features",
    "project_roles",
    "share_layers",
]
