"""Training objectives: each selects texts of an encoded batch, passes them to a loss, and is minimized."""

from contrastive_text.heads import BilinearScorer, ConcatenationScorer, CosineScorer, Scorer
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.column_rules import (
    Duplicates,
    FalseNegatives,
    MaskAbovePositive,
    MaskBatch,
    SameClass,
    Siblings,
)
from contrastive_text.objectives.columns import Between, BetweenTexts, BetweenViews, ColumnPart, RowsAndColumns
from contrastive_text.objectives.contrastive import Contrastive
from contrastive_text.objectives.distillation import RankDistillation, VectorDistillation
from contrastive_text.objectives.flops import FLOPS
from contrastive_text.objectives.momentum import Momentum, Queue
from contrastive_text.objectives.pair_labels import NegativesAsHard, PairLabels, PositivesOnly, SignedPairs
from contrastive_text.objectives.replaced_tokens import ReplacedTokens
from contrastive_text.objectives.reranking import Reranking
from contrastive_text.objectives.supervised import (
    PairClassification,
    PairRegression,
    Supervised,
    TextClassification,
    TextRegression,
)
from contrastive_text.objectives.terms import Terms
from contrastive_text.objectives.token_prediction import DenoisingDecoder, MaskedLM
from contrastive_text.objectives.variants import Matryoshka, Quantized
from contrastive_text.objectives.whole_batch import Consistency, WholeBatch

__all__ = [
    "FLOPS",
    "Between",
    "BetweenTexts",
    "BetweenViews",
    "BilinearScorer",
    "ColumnPart",
    "ConcatenationScorer",
    "Consistency",
    "Contrastive",
    "CosineScorer",
    "DenoisingDecoder",
    "Duplicates",
    "FalseNegatives",
    "MaskAbovePositive",
    "MaskBatch",
    "MaskedLM",
    "Matryoshka",
    "Momentum",
    "NegativesAsHard",
    "Objective",
    "PairClassification",
    "PairLabels",
    "PairRegression",
    "PositivesOnly",
    "Quantized",
    "Queue",
    "RankDistillation",
    "ReplacedTokens",
    "Reranking",
    "RowsAndColumns",
    "SameClass",
    "Scorer",
    "Siblings",
    "SignedPairs",
    "Supervised",
    "Terms",
    "TextClassification",
    "TextRegression",
    "VectorDistillation",
    "WholeBatch",
]
