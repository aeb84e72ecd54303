"""Views of the string."""

from __future__ import annotations

import numpy as np

from contrastive_text.views.base import TextView, check_rate


class SwapWords(TextView):
    """Swaps neighbouring words.

    Walks through the words from the left and swaps a word with the next one with probability ``rate``; a
    word is carried on when it is swapped again. White space between words becomes one blank where a swap
    took place; a text without a swap stays as it is. Source: random swap of Wei and Zou 2019, EDA
    (https://arxiv.org/abs/1901.11196), section 2. Differs: neighbours only, so that the text stays readable.

    Args:
        rate: Probability of each swap.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> SwapWords(rate=1.0)("a b c", np.random.default_rng(0))
        'b c a'
    """

    def __init__(self, rate: float = 0.1) -> None:
        check_rate("SwapWords", rate)
        self.rate = rate

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Gives the text with some words swapped."""
        words = text.split()
        swaps = rng.random(max(len(words) - 1, 0)) < self.rate
        for i in np.flatnonzero(swaps):
            words[i], words[i + 1] = words[i + 1], words[i]
        return " ".join(words) if swaps.any() else text
