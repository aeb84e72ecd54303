"""The view that adds noise to the embedding output."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import EmbeddingView
from contrastive_text.views.embeddings import eligible_tokens


class GaussianNoise(EmbeddingView):
    """Adds normal noise to every token, in proportion to the token's size.

        e + scale * rms(e) * z,   z ~ N(0, 1) for each entry

    with the root mean square of the token's D entries, through which no gradient flows. One scale then means
    the same before BERT's blocks (entries of about 1, after LayerNorm) and before a decoder's (0.02), and what
    an earlier view has erased stays erased.

    Args:
        scale: Standard deviation of the noise, as a share of the token's root mean square.
        specials: Whether special tokens get noise too.

    Raises:
        ValueError: A scale that is negative or not finite.

    Example:
        >>> rng, mask = RowRandom(torch.tensor([1])), torch.tensor([[True, False]])
        >>> view = GaussianNoise(scale=0.1)(torch.ones(1, 2, 3), mask, rng)
        >>> (view != 1).tolist()
        [[[True, True, True], [False, False, False]]]
    """

    def __init__(self, scale: float = 0.1, specials: bool = True) -> None:
        if not 0 <= scale < math.inf:
            raise InvalidValueError(
                f"GaussianNoise.scale: expected a finite share of 0 or more, got {scale}; 0.1 is a tenth of a "
                "token's size"
            )
        self.scale = scale
        self.specials = specials
        self._spared = (0, 0) if specials else None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the number of special tokens around a text."""
        self._spared = (0, 0) if self.specials else (vocabulary.prefix, vocabulary.suffix)

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with noise on the tokens, (n, L, D)."""
        eligible = eligible_tokens(mask, self._spared)
        # Squares of half-precision entries overflow in half precision.
        values = embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32))
        size = values.square().mean(dim=2, keepdim=True).sqrt()
        noise = self.scale * size * rng.randn(*embeddings.shape[1:])
        return torch.where(eligible.unsqueeze(2), embeddings + noise.to(embeddings.dtype), embeddings)
