"""The three levels at which a view can alter a text, one base class each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from torch import Tensor

from contrastive_text.random import RowRandom
from contrastive_text.types import Tokens


def check_rate(where: str, rate: float) -> None:
    """Refuses a rate outside [0, 1] (ValueError)."""
    if not 0 <= rate <= 1:
        raise ValueError(f"{where}.rate: expected a share between 0 and 1, got {rate}")


class View(ABC):  # noqa: B024  # a marker: the three levels below each have their abstract method
    """Anything that alters a text. Subclass one of the three levels, not this."""


class TextView(View):
    """Alters the string, before tokenising."""

    @abstractmethod
    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Gives the altered text; all randomness comes from ``rng``."""


class TokenView(View):
    """Alters the token ids.

    Attributes:
        after_specials: Whether the view sees the special tokens too.
    """

    after_specials: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Gives new tokens; ``tokens.take(order)`` keeps all lists aligned."""


class EmbeddingView(View):
    """Alters the encoder's embedding output, after its normalisation and dropout, before the first block.

    The mask is read only: an erased token still takes part in attention and in the mean.
    """

    @abstractmethod
    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Gives altered embeddings, (n, L, D), from embeddings (n, L, D) and the mask (n, L)."""
