"""The view of masked language modelling: hides tokens and notes what they were."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from contrastive_text.core.checks import share
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import NO_LABEL, Tokens, Vocabulary
from contrastive_text.views.base import TokenView, Unit
from contrastive_text.views.tokens import unit_bounds, unit_places


class MaskTokens(TokenView):
    """Hides tokens for the model to predict, and writes their ids into ``labels``.

    Each token is chosen independently with probability ``rate``; of the chosen ones a share ``mask`` becomes
    the mask token, a share ``random`` any ordinary token, and the rest stays as it is. Special tokens, those
    that views have added included, are neither chosen nor put in. Tokens that an earlier masking chose keep
    their labels. Source: Devlin et al. 2019, BERT (https://arxiv.org/abs/1810.04805), section 3.1, drawn anew
    every time (Liu et al. 2019, RoBERTa, section 4.1); used by DeCLUTR, CLEAR and SimCSE.

    Differs: SimCSE's code and Transformers' collator draw random tokens from the whole table; special ones are
    left out here, because none ever stands inside a text. BERT's code chooses a fixed number in each text.

    Args:
        rate: Probability that a token, or a word, is chosen.
        mask: Share of the chosen tokens that the mask token replaces.
        random: Share of the chosen tokens that a random token replaces.
        whole_word: Whether words are chosen, with all their tokens; each token is then replaced on its own.

    Raises:
        ValueError: A rate outside [0, 1], or shares that are negative or more than 1 together.

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
        self.rate = share("MaskTokens.rate", rate)
        self.mask = mask
        self.random = random
        self.whole_word = whole_word
        self.unit: Unit = "word" if whole_word else "token"
        self._mask_id: int | None = None
        self._special_ids: frozenset[int] = frozenset()
        self._ordinary_ids = np.arange(0)

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the id of the mask token, and which ids are special.

        Raises:
            ValueError: A tokenizer without a mask token.
        """
        if vocabulary.mask_id is None:
            raise InvalidValueError(
                "MaskTokens: expected a tokenizer with a mask token, got one without; choose a checkpoint that "
                "has one, or add it with tokenizer.add_special_tokens({'mask_token': '[MASK]'})"
            )
        self._mask_id = vocabulary.mask_id
        self._special_ids = vocabulary.special_ids
        self._ordinary_ids = np.setdiff1d(np.arange(vocabulary.size), list(vocabulary.special_ids))

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns the tokens with some hidden; ``labels`` is set even where none is."""
        if self._mask_id is None:
            raise RuntimeError("MaskTokens: expected build(vocabulary) before the first call")
        ids = list(tokens.ids)
        labels = [NO_LABEL] * len(ids) if tokens.labels is None else list(tokens.labels)
        bounds = unit_bounds(tokens, self.unit)
        chosen = (rng.random(len(bounds) - 1) < self.rate).nonzero()[0].tolist()
        others = rng.integers(len(self._ordinary_ids), size=len(ids))
        fates = rng.random(len(ids))
        for place in unit_places(bounds, chosen):
            token = tokens.ids[place]
            if token in self._special_ids:
                continue
            if labels[place] == NO_LABEL:
                labels[place] = token
            fate = fates.item(place)
            if fate < self.mask:
                ids[place] = self._mask_id
            elif fate < self.mask + self.random:
                ids[place] = int(self._ordinary_ids[others[place]])
        return Tokens(ids=tuple(ids), words=tokens.words, positions=tokens.positions, labels=tuple(labels))
