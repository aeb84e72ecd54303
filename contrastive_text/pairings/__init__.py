"""Pairings, which turn rows of a data file into training examples."""

from contrastive_text.pairings.base import Given, Neighbors, OneSequence, Pairing, SameText
from contrastive_text.pairings.nli import NLITriples
from contrastive_text.pairings.spans import Spans

__all__ = ["Given", "NLITriples", "Neighbors", "OneSequence", "Pairing", "SameText", "Spans"]
