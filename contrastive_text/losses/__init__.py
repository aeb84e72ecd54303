"""In-batch losses: tensor maths that knows nothing of text, batches or ranks."""

from contrastive_text.core.similarity import cosine_similarity_matrix
from contrastive_text.losses.base import Loss, Reduction, reduce_terms
from contrastive_text.losses.batch import BatchLoss
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.dcl import DCL, DCLW
from contrastive_text.losses.debiased import DebiasedNTXent
from contrastive_text.losses.decorrelation import BarlowTwins, VICReg
from contrastive_text.losses.formulas import info_nce_terms, sup_con_terms
from contrastive_text.losses.info_nce import InfoNCE
from contrastive_text.losses.jensen_shannon import jensen_shannon_terms
from contrastive_text.losses.nt_xent import NTXent
from contrastive_text.losses.ranking import KLDivergence, ListMLE, ListNet, MarginMSE, RankLoss
from contrastive_text.losses.relations import Alike, Forbid
from contrastive_text.losses.scored_pairs import (
    AnglE,
    CoSENT,
    CosineMSE,
    ScoreLoss,
    angle_similarity,
    cosent_loss,
)
from contrastive_text.losses.siglip import SigLIP
from contrastive_text.losses.sigreg import SIGReg
from contrastive_text.losses.softmax import SoftmaxLoss
from contrastive_text.losses.spread import AlignmentUniformity, GlobalOrthogonalRegularization
from contrastive_text.losses.sup_con import SupCon

__all__ = [
    "DCL",
    "DCLW",
    "AlignmentUniformity",
    "Alike",
    "AnglE",
    "BarlowTwins",
    "BatchLoss",
    "CoSENT",
    "Comparison",
    "CosineMSE",
    "DebiasedNTXent",
    "Forbid",
    "GlobalOrthogonalRegularization",
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
    "sup_con_terms",
]
