"""Contrastive losses on tensors, which work without the texts, batches and ranks of a training run."""

from contrastive_text.core.similarity import cosine_similarity_matrix
from contrastive_text.losses.base import Loss, Reduction, SoftmaxLoss, reduce_terms
from contrastive_text.losses.batch_losses import (
    AlignmentUniformity,
    BarlowTwins,
    BatchLoss,
    GlobalOrthogonalRegularization,
    SIGReg,
    VICReg,
)
from contrastive_text.losses.comparison import ComparedTexts, Comparison, Group
from contrastive_text.losses.info_nce import InfoNCE, NTXent, SupCon, info_nce_terms
from contrastive_text.losses.nt_xent_variants import DCL, DCLW, DebiasedNTXent, SigLIP
from contrastive_text.losses.ranking import (
    KLDivergence,
    ListMLE,
    ListNet,
    MarginMSE,
    RankLoss,
    jensen_shannon_terms,
)
from contrastive_text.losses.rules import NO_ID, SameId
from contrastive_text.losses.scored_pairs import (
    AnglE,
    CoSENT,
    CosineMSE,
    ScoreLoss,
    angle_similarity,
    cosent_loss,
)

__all__ = [
    "DCL",
    "DCLW",
    "NO_ID",
    "AlignmentUniformity",
    "AnglE",
    "BarlowTwins",
    "BatchLoss",
    "CoSENT",
    "ComparedTexts",
    "Comparison",
    "CosineMSE",
    "DebiasedNTXent",
    "GlobalOrthogonalRegularization",
    "Group",
    "InfoNCE",
    "KLDivergence",
    "ListMLE",
    "ListNet",
    "Loss",
    "MarginMSE",
    "NTXent",
    "RankLoss",
    "Reduction",
    "SIGReg",
    "SameId",
    "ScoreLoss",
    "SigLIP",
    "SoftmaxLoss",
    "SupCon",
    "VICReg",
    "angle_similarity",
    "cosent_loss",
    "cosine_similarity_matrix",
    "info_nce_terms",
    "jensen_shannon_terms",
    "reduce_terms",
]
