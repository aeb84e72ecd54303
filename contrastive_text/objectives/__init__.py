"""Compare: what is minimised, read from the roles of an encoded batch."""

from contrastive_text.objectives.base import Objective, Terms
from contrastive_text.objectives.contrastive import Contrastive

__all__ = ["Contrastive", "Objective", "Terms"]
