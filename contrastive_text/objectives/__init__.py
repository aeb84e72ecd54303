"""Compare: what is minimised, read from the roles of an encoded batch."""

from contrastive_text.objectives.base import Objective, Terms
from contrastive_text.objectives.contrastive import Contrastive
from contrastive_text.objectives.masked_lm import MaskedLM

__all__ = ["Contrastive", "MaskedLM", "Objective", "Terms"]
