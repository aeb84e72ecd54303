"""Encoders: networks from token ids to token vectors, their layouts of rows, and adapters."""

from contrastive_text.encoders.adapters import Adapters, LoRA
from contrastive_text.encoders.asymmetric import AsymmetricEncoder
from contrastive_text.encoders.base import Embedder, Encoder
from contrastive_text.encoders.packing import pad, token_mask
from contrastive_text.encoders.static import SparseStaticEncoder, StaticEncoder
from contrastive_text.encoders.transformer import TransformerEncoder

__all__ = [
    "Adapters",
    "AsymmetricEncoder",
    "Embedder",
    "Encoder",
    "LoRA",
    "SparseStaticEncoder",
    "StaticEncoder",
    "TransformerEncoder",
    "pad",
    "token_mask",
]
