"""Choose and alter: pairings, and view generators at every level."""

from contrastive_text.views.augmenters import NlpaugView
from contrastive_text.views.base import EmbeddingView, GradientView, TextView, TokenView, View
from contrastive_text.views.contextual import ContextualSubstitute
from contrastive_text.views.embeddings import EmbeddingDropout, FeatureCutoff, SpanCutoff, TokenCutoff
from contrastive_text.views.gradient import Adversarial
from contrastive_text.views.lexicon import SynonymFile, SynonymSource
from contrastive_text.views.masking import MaskTokens
from contrastive_text.views.network import FixedDropout
from contrastive_text.views.nli import NLITriples
from contrastive_text.views.noise import GaussianNoise
from contrastive_text.views.pairing import Given, Neighbours, Pairing, SameText
from contrastive_text.views.plan import ViewPlan
from contrastive_text.views.positions import ShufflePositions
from contrastive_text.views.reorder import ReorderSpans
from contrastive_text.views.spans import Spans
from contrastive_text.views.synonyms import SubstituteSynonyms
from contrastive_text.views.text import Prompt, SwapWords
from contrastive_text.views.tokens import CropTokens, DeleteOneWord, DeleteSpans, DeleteTokens
from contrastive_text.views.wordnet import WordNetSynonyms

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
    "Given",
    "GradientView",
    "MaskTokens",
    "NLITriples",
    "Neighbours",
    "NlpaugView",
    "Pairing",
    "Prompt",
    "ReorderSpans",
    "SameText",
    "ShufflePositions",
    "SpanCutoff",
    "Spans",
    "SubstituteSynonyms",
    "SwapWords",
    "SynonymFile",
    "SynonymSource",
    "TextView",
    "TokenCutoff",
    "TokenView",
    "View",
    "ViewPlan",
    "WordNetSynonyms",
]
