"""Views of words: synonyms, and words that a model puts in their place."""

from contrastive_text.views.words.contextual import ContextualSubstitute
from contrastive_text.views.words.lexicon import SynonymFile, SynonymSource
from contrastive_text.views.words.nlpaug import NlpaugView
from contrastive_text.views.words.synonyms import SubstituteSynonyms
from contrastive_text.views.words.wordnet import WordNetSynonyms

__all__ = [
    "ContextualSubstitute",
    "NlpaugView",
    "SubstituteSynonyms",
    "SynonymFile",
    "SynonymSource",
    "WordNetSynonyms",
]
