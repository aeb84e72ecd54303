"""Views: parts that alter a text, its tokens or its embeddings, so that two copies of the text differ."""

from contrastive_text.views.base import EmbeddingView, GradientView, TextView, TokenView, View
from contrastive_text.views.contextual import ContextualSubstitute
from contrastive_text.views.embeddings import (
    Adversarial,
    EmbeddingDropout,
    FeatureCutoff,
    FixedDropout,
    GaussianNoise,
    SpanCutoff,
    TokenCutoff,
)
from contrastive_text.views.masking import MaskTokens
from contrastive_text.views.plan import ViewPlan
from contrastive_text.views.synonyms import SubstituteSynonyms, SynonymFile, SynonymSource, WordNetSynonyms
from contrastive_text.views.text import NlpaugView, Prompt, SwapWords, TextsFromFile
from contrastive_text.views.tokens import (
    CropTokens,
    DeleteOneWord,
    DeleteSpans,
    DeleteTokens,
    ReorderSpans,
    RepeatTokens,
    ShufflePositions,
)

__all__ = [
    "Adversarial",
    "ContextualSubstitute",
    "CropTokens",
    "DeleteOneWord",
    "DeleteSpans",
    "DeleteTokens",
    "EmbeddingDropout",
    "EmbeddingView",
    "FeatureCutoff",
    "FixedDropout",
    "GaussianNoise",
    "GradientView",
    "MaskTokens",
    "NlpaugView",
    "Prompt",
    "ReorderSpans",
    "RepeatTokens",
    "ShufflePositions",
    "SpanCutoff",
    "SubstituteSynonyms",
    "SwapWords",
    "SynonymFile",
    "SynonymSource",
    "TextView",
    "TextsFromFile",
    "TokenCutoff",
    "TokenView",
    "View",
    "ViewPlan",
    "WordNetSynonyms",
]
