"""Evaluation of a sentence encoder."""

from contrastive_text.evaluation.sts import PairScore, evaluate_pairs

__all__ = ["PairScore", "evaluate_pairs"]
