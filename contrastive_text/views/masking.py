"""View for masked language modeling: masks tokens and stores the original ids as labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from contrastive_text.core.errors import InvalidValueError, fraction
from contrastive_text.core.types import NO_LABEL, Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit
from contrastive_text.views.tokens import unit_bounds, unit_indices


class MaskTokens(TokenView):
    """Masks tokens for masked language modeling, and stores their original ids in ``labels``.

    Each token is selected independently with probability ``rate``. Of the selected tokens a share ``mask``
    becomes the mask token, a share ``random`` a random ordinary token, and the rest is unchanged. Special tokens,
    including tokens that views have added, are neither selected nor inserted. Tokens that an earlier view has
    masked keep their labels.
    Source: Devlin et al. 2019, BERT (https://arxiv.org/abs/1810.04805), section 3.1, drawn again in every epoch
    (Liu et al. 2019, RoBERTa, section 4.1); used by DeCLUTR, CLEAR and SimCSE.

    Differs: SimCSE's code and Transformers' collator draw random tokens from the whole vocabulary. Here special
    tokens are excluded, because no text has them. BERT's code selects a fixed number of tokens in each text.

    Args:
        rate: Probability that a token, or a word, is selected.
        mask: Share of the selected tokens that the mask token replaces.
        random: Share of the selected tokens that a random token replaces.
        whole_word: Whether all tokens of a word are selected together. Each token is then replaced independently.

    Raises:
        ValueError: ``rate`` is outside [0, 1], or ``mask`` or ``random`` is negative or their sum is above 1.

    Example:
        >>> view = MaskTokens(rate=0.5, mask=1.0, random=0.0)
        >>> view.build(Vocabulary(size=10, mask_id=4, special_ids=frozenset({4})))
        >>> view(Tokens(ids=(5, 6, 7), words=(0, 1, 2)), np.random.default_rng(0))
        Tokens(ids=(5, 4, 4), words=(0, 1, 2), positions=None, labels=(-100, 6, 7))
    """

    sets_labels: ClassVar[bool] = True

    def __init__(
        self, rate: float = 0.15, mask: float = 0.8, random: float = 0.1, whole_word: bool = False
    ) -> None:
        if not (mask >= 0 and random >= 0 and mask + random <= 1):
            raise InvalidValueError(
                "MaskTokens: expected shares mask and random of 0 or more and at most 1 together, got "
                f"{mask} and {random}; BERT's are 0.8 and 0.1"
            )
        self.rate = fraction("MaskTokens.rate", rate)
        self.mask = mask
        self.random = random
        self.whole_word = whole_word
        self.unit: Unit = "word" if whole_word else "token"
        self._mask_id: int | None = None
        self._special_ids: frozenset[int] = frozenset()
        self._ordinary_ids = np.arange(0)

    def build(self, vocabulary: Vocabulary) -> None:
        """Stores the id of the mask token and the ids of special tokens.

        Raises:
            ValueError: The tokenizer has no mask token.
        """
        if vocabulary.mask_id is None:
            raise InvalidValueError(
                "MaskTokens: expected a tokenizer with a mask token, got a tokenizer without a mask token; use a "
                "checkpoint with a mask token, or add it with "
                "tokenizer.add_special_tokens({'mask_token': '[MASK]'})"
            )
        self._mask_id = vocabulary.mask_id
        self._special_ids = vocabulary.special_ids
        self._ordinary_ids = np.setdiff1d(np.arange(vocabulary.size), list(vocabulary.special_ids))

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens with some tokens masked and with ``labels``, also if no token is masked."""
        if self._mask_id is None:
            raise RuntimeError("MaskTokens: expected build(vocabulary) before the first call")
        ids = list(tokens.ids)
        labels = [NO_LABEL] * len(ids) if tokens.labels is None else list(tokens.labels)
        bounds = unit_bounds(tokens, self.unit)
        units = (rng.random(len(bounds) - 1) < self.rate).nonzero()[0].tolist()
        random_indices = rng.integers(len(self._ordinary_ids), size=len(ids))
        draws = rng.random(len(ids))
        for position in unit_indices(bounds, units):
            token = tokens.ids[position]
            if token in self._special_ids:
                continue
            if labels[position] == NO_LABEL:
                labels[position] = token
            draw = draws.item(position)
            if draw < self.mask:
                ids[position] = self._mask_id
            elif draw < self.mask + self.random:
                ids[position] = int(self._ordinary_ids[random_indices[position]])
        return Tokens(ids=tuple(ids), words=tokens.words, positions=tokens.positions, labels=tuple(labels))
