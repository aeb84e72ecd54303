"""Metrics of sentence vectors: pure functions, and torchmetrics classes over them."""

from contrastive_text.metrics.agreement import guide_agreement, linear_cka, neighbour_overlap
from contrastive_text.metrics.bootstrap import (
    PairedBootstrap,
    holm,
    paired_bootstrap_mean,
    paired_bootstrap_spearman,
)
from contrastive_text.metrics.functional import (
    alignment,
    answer_ranks,
    effective_rank,
    in_batch_accuracy,
    mean_cosine,
    off_diagonal,
    positive_pairs,
    spectrum,
    uniformity,
)
from contrastive_text.metrics.geometry import (
    Alignment,
    EffectiveRank,
    IsoScore,
    MeanCosine,
    PositiveAlignment,
    Uniformity,
)
from contrastive_text.metrics.neighbours import nearest_neighbour_accuracy
from contrastive_text.metrics.predictions import F1, Matthews, Spearman, f1, further_metrics, matthews
from contrastive_text.metrics.ranking import FIGURES, ranking_scores
from contrastive_text.metrics.retrieval import RetrievalScores, paired_retrieval
from contrastive_text.metrics.similarity import (
    PearsonSimilarity,
    SpearmanSimilarity,
    average_ranks,
    exact_similarity,
    pair_similarity,
    pearson,
    spearman,
)
from contrastive_text.metrics.spread import Hubs, hubness, iso_score, k_occurrences, nearest_similarity

__all__ = [
    "F1",
    "FIGURES",
    "Alignment",
    "EffectiveRank",
    "Hubs",
    "IsoScore",
    "Matthews",
    "MeanCosine",
    "PairedBootstrap",
    "PearsonSimilarity",
    "PositiveAlignment",
    "RetrievalScores",
    "Spearman",
    "SpearmanSimilarity",
    "Uniformity",
    "alignment",
    "answer_ranks",
    "average_ranks",
    "effective_rank",
    "exact_similarity",
    "f1",
    "further_metrics",
    "guide_agreement",
    "holm",
    "hubness",
    "in_batch_accuracy",
    "iso_score",
    "k_occurrences",
    "linear_cka",
    "matthews",
    "mean_cosine",
    "nearest_neighbour_accuracy",
    "nearest_similarity",
    "neighbour_overlap",
    "off_diagonal",
    "pair_similarity",
    "paired_bootstrap_mean",
    "paired_bootstrap_spearman",
    "paired_retrieval",
    "pearson",
    "positive_pairs",
    "ranking_scores",
    "spearman",
    "spectrum",
    "uniformity",
]
