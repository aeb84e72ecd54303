"""Poolers: from token vectors to one vector per text. Special tokens count as tokens, as in the papers' code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Hidden

FirstLayer = Literal["embeddings", "block_1"]


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the token vectors, padding left out, in at least float32.

    Args:
        tokens: (n, L, D).
        mask: True on tokens, (n, L).

    Returns:
        (n, D); zeros for a row without tokens.

    Example:
        >>> masked_mean(torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    kept = at_least_float32(tokens).masked_fill(~mask.unsqueeze(-1), 0.0)
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _average(hidden: Hidden, layers: tuple[int, ...]) -> Tensor:
    return torch.stack([at_least_float32(hidden.layers[layer]) for layer in layers]).mean(dim=0)


class Pooler(nn.Module, ABC):
    """Base class of poolers.

    Attributes:
        layers: The layers that ``forward`` reads, numbered as in ``Hidden``.
    """

    layers: tuple[int, ...] = (-1,)

    @abstractmethod
    def forward(self, hidden: Hidden) -> Tensor:
        """Returns one vector per text, (n, D), from layers (n, L, D) and the mask (n, L)."""


class MeanPooler(Pooler):
    """Mean of the last layer's tokens (SBERT, DeCLUTR, ConSERT in training; ``avg`` in SimCSE's code)."""

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked mean, (n, D)."""
        return masked_mean(hidden.layers[-1], hidden.mask)


class CLSPooler(Pooler):
    """First token of the last layer (``cls_before_pooler`` in SimCSE's code; add a head for its ``cls``)."""

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vector of the first token that is not padding, (n, D)."""
        tokens = at_least_float32(hidden.layers[-1])
        first = hidden.mask.int().argmax(dim=1)
        return tokens[torch.arange(len(tokens), device=tokens.device), first]


class LastTwoPooler(Pooler):
    """Mean over tokens of the average of the last two layers (``avg_top2``; ConSERT's evaluation)."""

    layers = (-1, -2)

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked mean of the two layers' average, (n, D)."""
        return masked_mean(_average(hidden, self.layers), hidden.mask)


class FirstLastPooler(Pooler):
    """Mean over tokens of the average of the first and the last layer.

    "First" means two things in the literature, and untrained BERT-base scores 56.70 with one and 60.73
    with the other (SimCSE issue 285), so there is no default.

    Args:
        first: ``embeddings`` is the embedding output (ConSERT; SimCSE's published baseline), ``block_1``
            the first transformer block (``avg_first_last`` in SimCSE's code today).

    Raises:
        ValueError: Another name.
    """

    def __init__(self, first: FirstLayer) -> None:
        super().__init__()
        if first not in get_args(FirstLayer):
            raise InvalidValueError(f"FirstLastPooler.first: expected embeddings or block_1, got {first!r}")
        self.first = first
        self.layers = (-1, 0 if first == "embeddings" else 1)

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked mean of the two layers' average, (n, D)."""
        return masked_mean(_average(hidden, self.layers), hidden.mask)


class MaxPooler(Pooler):
    """Largest value of each feature over the last layer's tokens (sentence-transformers' ``max``).

    Of tokens that an embedding view erased whole, which stay equal in every layer, rounding chooses the largest.
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked maximum, (n, D); every row needs a token."""
        tokens = at_least_float32(hidden.layers[-1])
        return tokens.masked_fill(~hidden.mask.unsqueeze(-1), -torch.inf).amax(dim=1)
