"""Base class of encoders, which convert rows of token ids to token vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Hidden
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import EmbeddingChange
from contrastive_text.encoders.packing import FixedLayout

training_threads: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Encoder -> identity of the thread that last ran the encoder in training mode with gradients."""


class Encoder(nn.Module, ABC):
    """Base class of encoders, which convert token ids to token vectors.

    A custom encoder sets at least ``features`` and ``vocabulary_size``.

    Attributes:
        features: Width D of the token vectors.
        vocabulary_size: Number of entries of the token table.
        tokenizer: Tokenizer of the encoder; None until ``TextDataModule`` has trained one on the corpus.
        max_length: Longest training row before views, in tokens with special tokens; None for ``limit``.
        limit: Longest row that the network takes; None for no limit.
        takes_embedding_views: Whether the network has an embedding output that ``alter`` can change.
        row_end: Token that was added to the end of rows because the tokenizer adds none; None if it wasn't.
        takes_types: Whether the network reads ``Batch.types``, the number of a token's text in a text pair.
        dropout_in_effect: Dropout probabilities by name, as the run's summary prints them.
        base_identity: Identity of the weights under adapters; None without adapters.
        equalize_groups: Whether all ranks must run the network equally often, because each holds a part of its
            weights.
    """

    features: int
    vocabulary_size: int
    tokenizer: PreTrainedTokenizerBase | None = None
    max_length: int | None = None
    limit: int | None = None
    row_end: str | None = None
    takes_embedding_views: bool = False
    takes_types: bool = False
    dropout_in_effect: Mapping[str, float] = MappingProxyType({})
    base_identity: str | None = None
    equalize_groups: bool = False

    @abstractmethod
    def forward(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> Hidden:
        """Encodes the rows of a batch to token vectors.

        Args:
            batch: Ragged rows.
            alter: Applied to the embedding output, (S, L, D) with mask (S, L), before the first block.
            layers: Layers to return, numbered as in ``Hidden``.

        Returns:
            Token vectors, (S, L, D) per layer, and the mask, (S, L).
        """

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of rows (packed, bucketed or padded) on a device, and the reason for it.

        Every network supports buckets, which avoid most of the padding on a CPU. On a GPU one block is faster.
        """
        if device.type == "cpu":
            return "bucketed", f"the fastest on a CPU that {type(self).__name__} takes"
        return "padded", "one block of rows for a GPU"

    def blocks(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> list[Hidden]:
        """Returns the token vectors of ``forward`` in blocks that cover the rows in order, with little padding.

        Args:
            batch: Rows without padding. Rows of equal length next to each other make few blocks.
            alter: As for ``forward``.
            layers: As for ``forward``.
        """
        return [self(batch, alter=alter, layers=layers)]

    def token_vectors(self, batch: Batch, alter: EmbeddingChange | None = None) -> Tensor:
        """Returns the vectors of the last layer of all tokens, one row of the batch after another, (T, D)."""
        return torch.cat([block.tokens(-1) for block in self.blocks(batch, alter=alter)])

    def reads_positions(self) -> bool:
        """Returns whether ``Batch.positions`` change the token vectors."""
        return False

    def is_causal(self) -> bool:
        """Returns whether the encoder is causal: tokens don't attend to later tokens."""
        return False

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Adds tokens to the tokenizer's vocabulary unless it has them, each with a new embedding."""
        if tokens:
            raise InvalidValueError(
                f"{type(self).__name__}: expected views without new tokens, got {', '.join(tokens)}"
            )

    def end_rows(self) -> None:  # most tokenizers do that already
        """Makes the tokenizer end rows with a special token. Called once if a pooler reads the last token."""

    def build_token_head(self) -> None:
        """Builds the head that predicts masked tokens. Called once if an objective needs it."""
        raise InvalidValueError(
            f"{type(self).__name__}: expected a network with a masked-language-model head, got one without it; "
            "use another encoder, or remove MaskedLM"
        )

    def clone(self) -> Encoder:
        """Returns a copy of the encoder with its own weights, equal at first, and without a token head."""
        return deepcopy(self)

    def base_weights(self) -> list[nn.Parameter]:
        """Returns the weights under adapters, which are frozen, shared with copies, and not in checkpoints."""
        return []

    def pretrained_pooler(self) -> nn.Linear | None:
        """Returns the dense layer of the pretrained model's own pooler, (D, D); None if it has none."""
        return None

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all tokens of the vocabulary for token vectors, (M, D) -> (M, V)."""
        raise NotImplementedError
