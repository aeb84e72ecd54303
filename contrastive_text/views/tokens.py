"""Views of the token ids."""

from __future__ import annotations

import numpy as np

from contrastive_text.types import Tokens
from contrastive_text.views.base import TokenView, check_rate


class DeleteTokens(TokenView):
    """Deletes an exact share of the tokens, chosen at random.

    ``round(rate * n)`` of n tokens go, but never the last one left; special tokens are never touched.
    Source: token deletion of Wu et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3, and the
    deletion baseline of Gao et al. 2021, SimCSE, section 3. Differs: removes plainly, without CLEAR's [DEL].

    Args:
        rate: Share of the tokens to delete.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> tokens = Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3))
        >>> len(DeleteTokens(rate=0.5)(tokens, np.random.default_rng(0)))
        2
    """

    def __init__(self, rate: float = 0.1) -> None:
        check_rate("DeleteTokens", rate)
        self.rate = rate

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Gives the tokens that are left, in their order."""
        count = min(round(self.rate * len(tokens)), len(tokens) - 1)
        if count <= 0:
            return tokens
        return tokens.take(np.sort(rng.permutation(len(tokens))[count:]).tolist())
