"""Evaluation of a sentence encoder: suites of tasks, tables of scores, and a cache of vectors for all tasks."""

from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.evaluation.retrieval import find_retrieval, query_scores, score_retrieval
from contrastive_text.evaluation.sts import PairScore, evaluate_pairs, sts_scores, trained_sts_scores

__all__ = [
    "CachedEncoder",
    "PairScore",
    "ScoreTable",
    "TaskScore",
    "evaluate_pairs",
    "find_retrieval",
    "query_scores",
    "score_retrieval",
    "sts_scores",
    "trained_sts_scores",
]
