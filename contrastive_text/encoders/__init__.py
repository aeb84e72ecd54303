"""Encoders: from ragged rows to token vectors."""

from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.transformer import TransformerEncoder

__all__ = ["Encoder", "TransformerEncoder"]
