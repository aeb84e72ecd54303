"""What a model in use is made of, and the digest by which its vectors are known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.class_paths import is_own
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.specs import part_spec
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.encoders import Encoder, TransformerEncoder
from contrastive_text.inference.runtimes import BACKENDS, RuntimeEncoder
from contrastive_text.inference.similarities import SimilarityName
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
        prompts: What stands before texts, by what they are.
        truncate_dim: Features that are kept unless another number is asked for; None for all.
        pooling: Which pooler it is read with and why, in words; empty until that is settled.
        runtime: What runs the network in place of torch; None for torch.
        card: The text of the folder's ``README.md``; empty for none, or where it no longer holds.
        similarity_fn_name: How vectors are compared.
        query_length: Longest query in tokens; None for ``max_length``.
        document_length: Longest document in tokens; None for ``max_length``.
        settings: Keys of the folder's files that are saved again unread, by file or kind of module.
    """

    encoder: TransformerEncoder
    pooler: Pooler | None
    head: nn.Sequential | None
    normalize: bool
    max_length: int | None
    prompts: Prompts = NO_PROMPTS
    truncate_dim: int | None = None
    pooling: str = ""
    runtime: RuntimeEncoder | None = None
    card: str = ""
    similarity_fn_name: SimilarityName = "cosine"
    query_length: int | None = None
    document_length: int | None = None
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:  # Any: of each its own
        """What ``SentenceEncoder`` takes, by its names: all but what is said of the model."""
        said = ("pooling", "card", "settings")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in said}

    def asked(self, max_length: int | None, truncate_dim: int | None, prompts: Prompts | None) -> ModelParts:
        """Returns the parts with what ``SentenceEncoder.from_pretrained`` is asked for in place of their own.

        Raises:
            ValueError: A length beyond the model's limit.
        """
        limit = self.encoder.limit
        if max_length is not None and limit is not None and max_length > limit:
            raise InvalidValueError(
                f"from_pretrained.max_length: expected at most {limit} tokens, got {max_length}"
            )
        return replace(
            self,
            max_length=max_length or self.max_length,
            truncate_dim=self.truncate_dim if truncate_dim is None else truncate_dim,
            prompts=self.prompts if prompts is None else prompts,
            query_length=None if max_length else self.query_length,
            document_length=None if max_length else self.document_length,
            card=self.card if (max_length, truncate_dim, prompts) == (None, None, None) else "",
        )

    def run_by(self, backend: str, dtype: torch.dtype) -> ModelParts:
        """Returns the parts with the network in a runtime; see ``RuntimeEncoder``.

        Args:
            backend: ``onnx`` or ``openvino``; or ``torch``, for the parts as they are.
            dtype: What the runtime computes in.

        Raises:
            ImportError: Without the runtime.
            ValueError: Another name, or a type that the runtime, or torch, doesn't compute in.
        """
        if backend != "torch":
            runtime = RuntimeEncoder(self.encoder, backend, dtype)
            if self.pooler is not None:
                runtime.runtime(self.pooler.layers)  # now, not with the first text
            return replace(self, runtime=runtime)
        if not dtype.is_floating_point:
            raise InvalidValueError(
                f"dtype: expected a floating-point type with backend='torch', got {dtype}; "
                f"give backend={' or '.join(map(repr, BACKENDS))} with it"
            )
        return self

    def place(self, device: str | None, dtype: torch.dtype) -> tuple[str, torch.dtype]:
        """Returns where the weights are to be, and in which type: of a runtime's model on the CPU in float32.

        Args:
            device: None for the GPU if there is one, else the CPU.
            dtype: What the network computes in.
        """
        if self.runtime is not None:
            return device or "cpu", torch.float32
        return device or ("cuda" if torch.cuda.is_available() else "cpu"), dtype

    @property
    def identity(self) -> str:
        """32 hex digits, the same for equal vectors: of weights, tokenizer, pooler, head, prompts and limits."""
        assert self.encoder.tokenizer is not None and self.pooler is not None
        digest = hashlib.blake2b(digest_size=16)
        pooler = part_spec(self.pooler, "pooler")
        if is_own(pooler["class_path"]):  # by its name alone, whatever package it is in
            pooler["class_path"] = type(self.pooler).__name__
        limits: list[object] = [self.max_length, self.normalize, self.prompts.spec, self.truncate_dim, pooler]
        if self.runtime is not None and self.runtime.dtype != torch.float32:
            limits.append([self.runtime.backend, str(self.runtime.dtype)])  # float32 but rounds otherwise
        if self.query_length or self.document_length:
            limits.append({"query_length": self.query_length, "document_length": self.document_length})
        layers = [layer for layer in self.head or () if not isinstance(layer, nn.Identity | nn.Dropout)]
        vocabulary = self.encoder.tokenizer.backend_tokenizer.to_str()
        settings = self.encoder.model.config.to_diff_dict()
        settings.pop("architectures", None)  # which class saved it: with or without a head that predicts tokens
        network = json.dumps(settings, sort_keys=True, default=str)
        digest.update(json.dumps([limits, list(map(str, layers)), vocabulary, network]).encode())
        parts = {"encoder": self.encoder, "pooler": self.pooler, "head": nn.Sequential(*layers)}
        weights = nn.ModuleDict(parts).state_dict()
        unread = "encoder.token_head."  # no vector goes through it
        add_weights(digest, {name: weights[name] for name in weights if not name.startswith(unread)})
        return digest.hexdigest()


def check_type(dtype: object) -> None:
    """Checks that a type is torch's own.

    Raises:
        TypeError: Another, such as a name.
    """
    if not isinstance(dtype, torch.dtype):
        raise InvalidTypeError(f"dtype: expected a type of torch, such as torch.bfloat16, got {dtype!r}")


def usable_encoder(encoder: Encoder) -> tuple[TransformerEncoder, PreTrainedTokenizerBase]:
    """Returns an encoder that a model in use can have, and its tokenizer.

    Raises:
        TypeError: Another encoder than a ``TransformerEncoder``.
        ValueError: One without a tokenizer.
    """
    if not isinstance(encoder, TransformerEncoder):
        raise InvalidTypeError(f"SentenceEncoder: expected a TransformerEncoder, got {type(encoder).__name__}")
    if encoder.tokenizer is None:
        raise InvalidValueError("SentenceEncoder: expected an encoder with a tokenizer, got none; train it first")
    return encoder, encoder.tokenizer
