"""Choose and alter: pairings, and view generators at three levels."""

from contrastive_text.views.base import EmbeddingView, TextView, TokenView, View
from contrastive_text.views.embeddings import FeatureCutoff
from contrastive_text.views.pairing import Given, Pairing, SameText
from contrastive_text.views.plan import ViewPlan
from contrastive_text.views.text import SwapWords
from contrastive_text.views.tokens import DeleteTokens

__all__ = [
    "DeleteTokens",
    "EmbeddingView",
    "FeatureCutoff",
    "Given",
    "Pairing",
    "SameText",
    "SwapWords",
    "TextView",
    "TokenView",
    "View",
    "ViewPlan",
]
