"""Alter: view generators at every level."""

from contrastive_text.views.base import EmbeddingView, GradientView, TextView, TokenView, View
from contrastive_text.views.embeddings import (
    EmbeddingDropout,
    FeatureCutoff,
    GaussianNoise,
    SpanCutoff,
    TokenCutoff,
)
from contrastive_text.views.masking import MaskTokens
from contrastive_text.views.network import Adversarial, FixedDropout
from contrastive_text.views.plan import ViewPlan
from contrastive_text.views.positions import ShufflePositions
from contrastive_text.views.reorder import ReorderSpans
from contrastive_text.views.repeat import RepeatTokens
from contrastive_text.views.text import Prompt, SwapWords
from contrastive_text.views.tokens import CropTokens, DeleteOneWord, DeleteSpans, DeleteTokens
from contrastive_text.views.words.contextual import ContextualSubstitute
from contrastive_text.views.words.lexicon import SynonymFile, SynonymSource
from contrastive_text.views.words.nlpaug import NlpaugView
from contrastive_text.views.words.synonyms import SubstituteSynonyms
from contrastive_text.views.words.wordnet import WordNetSynonyms
from contrastive_text.views.written import TextsFromFile

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
