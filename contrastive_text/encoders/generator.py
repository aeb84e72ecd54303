"""A frozen masked language model that fills in tokens, for an objective that looks for them."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.host import sent, unpadded
from contrastive_text.core.random import RowRandom, text_id
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.encoders.layouts import token_mask

if TYPE_CHECKING:
    from contrastive_text.encoders.transformer import TransformerEncoder

_DRAWS = text_id("TokenGenerator")
"""Number of its draws from a row's key: no view of a chain has it."""

_BLOCK = 1024
"""Tokens whose scores exist at a time."""


class TokenGenerator:
    """A masked language model that is not trained: hides tokens, and says which ones it expects in each place.

    It is no module: its weights are in no optimiser, no checkpoint and no saved model.

    Args:
        network: The model, whose head that predicts tokens is made here.
        encoder: Whose tokens it is given.

    Raises:
        ValueError: A checkpoint without such a head, another vocabulary, or one that takes shorter rows.
    """

    def __init__(self, network: TransformerEncoder, encoder: TransformerEncoder) -> None:
        name = network.model_name_or_path
        network.build_token_head()
        if network.token_head is None or not network.token_head.pretrained:
            raise InvalidValueError(
                f"generator: expected a masked language model with its head, got {name} without one; name the "
                "model of the encoder's pretraining, or a smaller one with its vocabulary"
            )
        own, given = network.tokenizer, encoder.tokenizer
        if own is None or given is None or own.get_vocab() != given.get_vocab() or own.mask_token_id is None:
            raise InvalidValueError(
                f"generator: expected the tokens of the encoder, each with its number, and a mask token, got "
                f"others in {name}; name a masked language model with the encoder's vocabulary"
            )
        longest = encoder.max_length or encoder.limit
        if network.limit is not None and (longest is None or longest > network.limit):
            raise InvalidValueError(
                f"generator: expected a model that takes the encoder's rows, of up to {longest} tokens, got "
                f"{name}, which takes {network.limit}; set model.encoder.max_length to that or less"
            )
        self.network = network.requires_grad_(False).eval()
        self.special_ids = tuple(own.all_special_ids)
        self.mask_id = int(own.mask_token_id)

    @cached_property
    def identity(self) -> str:
        """32 hex digits of its weights."""
        digest = hashlib.blake2b(digest_size=16)
        add_weights(digest, self.network.state_dict())
        return digest.hexdigest()

    def hide(self, batch: Batch, rate: float) -> Tensor:
        """Returns the token ids with some hidden, by the keys of their rows, (T,).

        Each token but special ones is chosen with probability ``rate``; of the chosen ones 80 % become the mask
        token, 10 % any entry of the vocabulary, and the rest stays (Devlin et al. 2019, BERT, section 3.1).
        """
        device, draws = batch.ids.device, RowRandom(batch.draw_keys, view=_DRAWS)
        mask = token_mask(batch.lengths)
        chosen, way, other = (unpadded(draws.rand(mask.shape[1]), mask) for _ in range(3))
        specials = sent(torch.tensor(self.special_ids), device)
        hidden = (chosen < rate) & ~torch.isin(batch.ids, specials)
        ids = batch.ids.masked_fill(hidden & (way < 0.8), self.mask_id)
        size = self.network.vocabulary_size
        return torch.where(hidden & (way >= 0.8) & (way < 0.9), (other * size).long(), ids)

    @torch.no_grad()
    def fill(self, batch: Batch, dropout: bool) -> Tensor:
        """Returns the likeliest token of every place, hidden or not, (T,).

        Args:
            batch: Ragged rows.
            dropout: Whether its dropout is on.
        """
        network = self.network.to(batch.ids.device).train(dropout)
        states = network.token_vectors(batch)
        return torch.cat([network.token_logits(part).argmax(dim=1) for part in torch.split(states, _BLOCK)])
