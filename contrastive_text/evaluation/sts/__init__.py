"""Semantic textual similarity: cosine similarity against gold scores, and trained regressions over vectors."""

from contrastive_text.evaluation.sts.cosine import PairScore, evaluate_pairs, sts_scores
from contrastive_text.evaluation.sts.trained import trained_sts_scores

__all__ = ["PairScore", "evaluate_pairs", "sts_scores", "trained_sts_scores"]
