"""What an encoder owes to the rest: token vectors, and what a text must be to enter it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Alter, Hidden
from contrastive_text.encoders.layouts import FixedLayout

if TYPE_CHECKING:
    from contrastive_text.encoders.decoder import TextDecoder
    from contrastive_text.encoders.generator import TokenGenerator


class Encoder(nn.Module, ABC):
    """Base class of encoders. One of a user's own sets ``features`` and ``vocabulary_size`` at least.

    Attributes:
        features: Width D of the token vectors.
        vocabulary_size: Entries of the token table.
        tokenizer: Turns text into ids; None until ``TextDataModule`` has learned one from the corpus.
        max_length: Longest row in training before views, in tokens with special ones; None for ``limit``.
        limit: Longest row that the network takes; None for no limit.
        takes_embedding_views: Whether there is an embedding output that ``alter`` can reach.
        row_end: Token that was put at the end of rows, where the tokenizer puts none; None for none.
        takes_types: Whether it reads ``Batch.types``: which of two texts of a row a token is of.
        dropout_in_effect: Dropout probabilities by name, as the run's summary prints them.
        base_identity: What is the same for equal weights under adapters; None where there are no adapters.
        in_lockstep: Whether all ranks must run it equally often, because each holds a part of its weights.
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
    in_lockstep: bool = False

    @abstractmethod
    def forward(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        """Encodes the rows of a batch.

        Args:
            batch: Ragged rows.
            alter: Applied to the embedding output, (S, L, D) with mask (S, L), before the first block.
            layers: Layers to give, numbered as in ``Hidden``.

        Returns:
            Token vectors, (S, L, D) per layer, and the mask, (S, L).
        """

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of its rows on a device, and why.

        Any network takes buckets, which spare a CPU most of the padding; a GPU has rather one block.
        """
        if device.type == "cpu":
            return "bucketed", f"the fastest on a CPU that {type(self).__name__} takes"
        return "padded", "one block of rows for a GPU"

    def blocks(self, batch: Batch, alter: Alter | None = None, layers: tuple[int, ...] = (-1,)) -> list[Hidden]:
        """Returns the token vectors of ``forward`` in blocks that cover the rows in order, with little padding.

        Args:
            batch: Ragged rows; those of equal length next to each other make few blocks.
            alter: As for ``forward``.
            layers: As for ``forward``.
        """
        return [self(batch, alter=alter, layers=layers)]

    def token_vectors(self, batch: Batch, alter: Alter | None = None) -> Tensor:
        """Returns the vectors of the last layer of all tokens, one row of the batch after another, (T, D)."""
        return torch.cat([block.tokens(-1) for block in self.blocks(batch, alter=alter)])

    def heeds_positions(self) -> bool:
        """Whether ``Batch.positions`` change what the network gives."""
        return False

    def is_causal(self) -> bool:
        """Whether no token sees a later one."""
        return False

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Adds the tokens that the vocabulary lacks, each with an embedding of its own to learn."""
        if tokens:
            raise InvalidValueError(
                f"{type(self).__name__}: expected views without new tokens, got {', '.join(tokens)}"
            )

    def end_rows(self) -> None:  # most tokenizers do so, and one's own encoder does as it likes
        """Lets rows end with a special token; called once, where the pooler of training reads the last token."""

    def build_token_head(self) -> None:
        """Makes the head that predicts tokens; called once, where an objective needs it."""
        raise InvalidValueError(
            f"{type(self).__name__}: expected a network with a masked-language-model head, got none; use another "
            "encoder, or leave MaskedLM out"
        )

    def twin(self) -> Encoder:
        """Returns a copy of the network with weights of its own, which begin as these; it predicts no tokens."""
        return deepcopy(self)

    def base_weights(self) -> list[nn.Parameter]:
        """Returns the weights under adapters: never trained, shared with copies, and in no checkpoint."""
        return []

    def make_generator(self, name: str) -> TokenGenerator:
        """Returns a frozen masked language model with the same vocabulary.

        Args:
            name: Hub name or local folder.

        Raises:
            ValueError: There is no such model, or one without such a head, or with other tokens.
        """
        raise InvalidValueError(
            f"{type(self).__name__}: expected a TransformerEncoder, whose tokens {name} may share, got another; "
            "leave the objective that needs it out"
        )

    def make_decoder(self, tied: bool) -> TextDecoder:  # noqa: ARG002  # the contract
        """Returns a decoder of the same architecture, which reads a text's vector.

        Args:
            tied: Whether it has the encoder's weights, and not copies of them.

        Raises:
            ValueError: An architecture that can't be one.
        """
        raise InvalidValueError(
            f"{type(self).__name__}: expected an architecture that can be a decoder with cross-attention (BERT, "
            "RoBERTa, ... in a TransformerEncoder), got another; leave the objective that needs it out"
        )

    def pretrained_pooler(self) -> nn.Linear | None:
        """Returns the dense layer of the pretrained model's own pooler, (D, D); None where it has none."""
        return None

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns a score for every entry of the vocabulary, (M, D) -> (M, V)."""
        raise NotImplementedError
