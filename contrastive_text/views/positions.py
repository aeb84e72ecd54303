"""The view that shuffles positions and leaves the tokens where they are."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from contrastive_text.core.types import NO_WORD, Tokens
from contrastive_text.views.base import TokenView


class ShufflePositions(TokenView):
    """Puts the positions of a text's tokens in random order.

    Ids keep their places; only the position embedding sees the new order, and padding keeps its own. Positions
    that an earlier view has set are shuffled as they are. Source: Yan et al. 2021, ConSERT
    (https://arxiv.org/abs/2105.11741), section 3.2 "token shuffling", and its authors' code.

    Differs: their code gives RoBERTa positions from 0, of which 1 is the padding's; here they count from 0 and
    the encoder puts them where its position table begins.

    Args:
        specials: Whether special tokens change positions too, as in the authors' code.

    Example:
        >>> tokens = Tokens(ids=(2, 7, 8, 9, 3), words=(-1, 0, 1, 2, -1))
        >>> ShufflePositions(specials=False)(tokens, np.random.default_rng(0)).positions
        (0, 3, 1, 2, 4)
    """

    after_specials: ClassVar[bool] = True
    sets_positions: ClassVar[bool] = True

    def __init__(self, specials: bool = True) -> None:
        self.specials = specials

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens with ``positions`` set, a permutation of what they were."""
        before = tuple(range(len(tokens))) if tokens.positions is None else tokens.positions
        moved = [i for i, word in enumerate(tokens.words) if self.specials or word != NO_WORD]
        after = list(before)
        for place, drawn in zip(moved, rng.permutation(len(moved)).tolist(), strict=True):
            after[place] = before[moved[drawn]]
        return Tokens(ids=tokens.ids, words=tokens.words, positions=tuple(after), labels=tokens.labels)
