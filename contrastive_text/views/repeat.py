"""A view that lengthens a text and leaves its meaning."""

from __future__ import annotations

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit, check_rate
from contrastive_text.views.tokens import check_unit, unit_bounds, unit_places


class RepeatTokens(TokenView):
    """Writes some tokens or words twice, each in its place, so that two views of a text differ in length.

    Of a row of L tokens, special ones among them, fewer than ``min(most, int(rate * L))`` are repeated, each
    number equally likely; which ones is drawn without replacement, and never a special one. A row may get longer
    than the encoder's ``max_length`` by that, up to the limit of the network. Source: word repetition of Wu et
    al. 2022, ESimCSE (https://arxiv.org/abs/2109.04380), section 3.1, as the authors' code has it
    (caskcsg/sentemb, ``train.py``, ``--dup_type bpe``).

    Of n words, with ``unit: word``, fewer than ``min(most, n, max(2, int(rate * n)))`` are repeated, and never
    the last one (``--dup_type word``).

    Differs: the paper draws up to ``max(2, int(rate * n))`` of n sub-words, the last number included and without
    ``most``; the code doesn't, and a row of 6 tokens or fewer stays as it is. The authors draw once, when the
    data are read, here each epoch draws anew. Their words are parted by blanks, here by the tokenizer, for which
    punctuation is a word.

    Args:
        rate: Bound on the repeated units, as a share of the row; 0 repeats nothing.
        most: Bound on their number; neither bound is reached.
        unit: Whether tokens or whole words are repeated.

    Raises:
        ValueError: A rate outside [0, 1], fewer than 1 as ``most``, or an unknown unit.

    Example:
        >>> view = RepeatTokens(rate=0.5)
        >>> view.build(Vocabulary(size=10, prefix=1, suffix=1))
        >>> view(Tokens(ids=(5, 6, 7, 8), words=(0, 1, 2, 3)), np.random.default_rng(3)).ids
        (5, 5, 6, 7, 7, 8)
    """

    def __init__(self, rate: float = 0.32, most: int = 10, unit: Unit = "token") -> None:
        check_rate("RepeatTokens", rate)
        check_unit("RepeatTokens", unit)
        if most < 1:
            raise InvalidValueError(
                f"RepeatTokens.most: expected 1 or more, got {most}; fewer than that many units are repeated, "
                "and 10 is ESimCSE's"
            )
        self.rate = rate
        self.most = most
        self.unit: Unit = unit
        self._specials = 0

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the number of special tokens, which count in a row's length."""
        self._specials = vocabulary.prefix + vocabulary.suffix

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens, the chosen ones twice."""
        bounds = unit_bounds(tokens, self.unit)
        units = len(bounds) - 1
        below = min(self.most, self._below(units))
        count = int(rng.integers(below)) if below > 0 and self.rate > 0 else 0
        if count == 0:
            return tokens
        # Words never repeat the last one; of a rate near 1 there may be fewer tokens than are to be repeated.
        chosen = set(rng.permutation(units - (self.unit == "word"))[:count].tolist())
        return tokens.take(unit_places(bounds, [i for i in range(units) for _ in range(1 + (i in chosen))]))

    def _below(self, units: int) -> int:
        """Returns the number that a share of the row bounds its repeated units by."""
        if self.unit == "token":
            return int(self.rate * (units + self._specials)) if units else 0
        return min(units, max(2, int(self.rate * units)))
