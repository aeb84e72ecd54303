"""What a model in use is made of, and the digest by which its vectors are known."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import torch
from torch import nn

from contrastive_text.core.class_paths import is_own
from contrastive_text.core.specs import part_spec
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.poolers import Pooler


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What a model folder holds.

    Args:
        encoder: The network with its tokenizer.
        pooler: None where the folder names none.
        head: Dense layers after the pooler, or None.
        normalize: Whether vectors get unit length, before features are dropped.
        max_length: Longest text in tokens with special ones; None for the network's limit.
        prompt: Put before every text unless another is given.
        truncate_dim: Features that are kept unless another number is asked for; None for all.
        pooling: Which pooler it is read with and why, in words; empty until that is settled.
    """

    encoder: TransformerEncoder
    pooler: Pooler | None
    head: nn.Sequential | None
    normalize: bool
    max_length: int | None
    prompt: str = ""
    truncate_dim: int | None = None
    pooling: str = ""

    @property
    def identity(self) -> str:
        """32 hex digits that are the same for equal vectors: of weights, tokenizer, pooler, head and limits."""
        assert self.encoder.tokenizer is not None and self.pooler is not None
        digest = hashlib.blake2b(digest_size=16)
        pooler = part_spec(self.pooler, "pooler")
        if is_own(pooler["class_path"]):  # by its name alone, whatever package it is in
            pooler["class_path"] = type(self.pooler).__name__
        limits = [self.max_length, self.normalize, self.prompt, self.truncate_dim, pooler]
        layers = [layer for layer in self.head or () if not isinstance(layer, nn.Identity | nn.Dropout)]
        vocabulary = self.encoder.tokenizer.backend_tokenizer.to_str()
        settings = self.encoder.model.config.to_diff_dict()
        settings.pop("architectures", None)  # which class saved it: with or without a head that predicts tokens
        network = json.dumps(settings, sort_keys=True, default=str)
        digest.update(json.dumps([limits, list(map(str, layers)), vocabulary, network]).encode())
        parts = {"encoder": self.encoder, "pooler": self.pooler, "head": nn.Sequential(*layers)}
        for name, weight in sorted(nn.ModuleDict(parts).state_dict().items()):
            if name.startswith("encoder.token_head."):  # no vector goes through it
                continue
            values = weight.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
            digest.update(values.reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()
