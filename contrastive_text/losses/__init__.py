"""In-batch losses: tensor maths that knows nothing of text, batches or ranks."""

from contrastive_text.losses.base import Comparison, Forbid, Loss, Reduction, Triples, reduce
from contrastive_text.losses.info_nce import InfoNCE, info_nce_terms
from contrastive_text.losses.nt_xent import NTXent
from contrastive_text.losses.similarity import at_least_float32, cosine_similarity_matrix

__all__ = [
    "Comparison",
    "Forbid",
    "InfoNCE",
    "Loss",
    "NTXent",
    "Reduction",
    "Triples",
    "at_least_float32",
    "cosine_similarity_matrix",
    "info_nce_terms",
    "reduce",
]
