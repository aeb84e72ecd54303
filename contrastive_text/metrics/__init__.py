"""Metrics of sentence vectors: pure functions, and torchmetrics classes over them."""

from contrastive_text.metrics.functional import (
    alignment,
    answer_ranks,
    effective_rank,
    in_batch_accuracy,
    uniformity,
)
from contrastive_text.metrics.geometry import Alignment, EffectiveRank, Uniformity
from contrastive_text.metrics.retrieval import RetrievalScores, paired_retrieval
from contrastive_text.metrics.similarity import SpearmanSimilarity, average_ranks, pair_similarity, spearman

__all__ = [
    "Alignment",
    "EffectiveRank",
    "RetrievalScores",
    "SpearmanSimilarity",
    "Uniformity",
    "alignment",
    "answer_ranks",
    "average_ranks",
    "effective_rank",
    "in_batch_accuracy",
    "pair_similarity",
    "paired_retrieval",
    "spearman",
    "uniformity",
]
