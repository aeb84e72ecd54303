"""The view that lets a masked language model put other words into a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.views.base import TextView, Words, check_rate
from contrastive_text.views.text import is_word, match_case, split_words
from contrastive_text.views.words.filler import Filler, Gaps, check_architecture


class ContextualSubstitute(TextView):
    """Replaces a share of the words by words that a masked language model expects there.

    Of n words ``round(rate * n)`` are chosen at random among those of letters. One pass sees the text with a
    mask token for each of them, as masked language models are trained; each gets a draw from the model's
    distribution over the words that are one token, its own word left out. One pass for each word would
    condition the draws on each other, at several times the cost. Source: the MLM row of Gao et al. 2021, SimCSE
    (https://arxiv.org/abs/2104.08821), table 1 (15 % of the words, by BERT); Kobayashi 2018
    (https://arxiv.org/abs/1805.06201) for drawing in place of taking the best.

    A draw depends on its text and generator only; the other texts of a batch change scores by rounding alone.
    The model is loaded by each process that uses the view. Words beyond its length limit stay.

    Args:
        model_name_or_path: Hub name or folder of a model with a masked-language-model head.
        rate: Share of the words to replace.
        top_k: Number of most probable words to draw from; None for all.
        temperature: Divides the scores; above 1 for more variety.
        batch_size: Texts in one pass of the model.
        device: Where the model runs; with worker processes, the CPU.

    Raises:
        ValueError: A rate outside [0, 1], a temperature of 0 or less, another number below 1, a model that can't
            be found or an architecture without such a head; in use, a checkpoint without its weights.
    """

    def __init__(
        self,
        model_name_or_path: str,
        rate: float = 0.15,
        top_k: int | None = 50,
        temperature: float = 1.0,
        batch_size: int = 32,
        device: str = "cpu",
    ) -> None:
        check_rate("ContextualSubstitute", rate)
        for name, number in (("top_k", top_k), ("batch_size", batch_size)):
            if number is not None and number < 1:
                raise InvalidValueError(f"ContextualSubstitute.{name}: expected 1 or more, got {number}")
        if not temperature > 0:
            raise InvalidValueError(f"ContextualSubstitute.temperature: expected more than 0, got {temperature}")
        check_architecture(model_name_or_path)
        self.model_name_or_path = model_name_or_path
        self.rate = rate
        self.top_k = top_k
        self.temperature = temperature
        self.batch_size = batch_size
        self.device = device
        self._filler: Filler | None = None

    def __getstate__(self) -> dict[str, Any]:  # Any: as in object.__getstate__
        """Returns the state without the model."""
        return {**self.__dict__, "_filler": None}

    @property
    def words(self) -> Words:
        """Runs of letters and digits."""
        return "letters"

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words replaced."""
        return self.alter_all([text], [rng])[0]

    def alter_all(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Returns the texts with some words replaced, by passes over texts of similar length."""
        altered = list(texts)
        gaps = [self._gaps(text, rng) for text, rng in zip(texts, rngs, strict=True)]
        by_length = sorted((i for i, each in enumerate(gaps) if each.places), key=lambda i: len(texts[i]))
        for start in range(0, len(by_length), self.batch_size):
            rows = by_length[start : start + self.batch_size]
            for row, text in zip(rows, self._fill([gaps[row] for row in rows]), strict=True):
                altered[row] = text
        return altered

    def _gaps(self, text: str, rng: np.random.Generator) -> Gaps:
        pieces = split_words(text)
        eligible = [place for place in range(1, len(pieces), 2) if is_word(pieces[place])]
        count = min(round(self.rate * (len(pieces) // 2)), len(eligible))
        places = [eligible[i] for i in rng.permutation(len(eligible))[:count].tolist()]
        return Gaps(pieces, dict(zip(places, rng.random(count).tolist(), strict=True)))

    def _fill(self, texts: Sequence[Gaps]) -> list[str]:
        if self._filler is None:
            self._filler = Filler(self.model_name_or_path, self.device)
        places, scores = self._filler.score(texts)
        scores = scores / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[1]:
            cut = scores.topk(self.top_k).values[:, -1:]
            scores = scores.masked_fill(scores < cut, -torch.inf)
        # In the order of the vocabulary, not of the scores: rounding can't exchange two neighbours.
        shares = scores.softmax(dim=1).cumsum(dim=1)
        draws = torch.tensor([texts[row].places[place] for row, place in places], dtype=torch.float64)
        drawn = torch.searchsorted(shares, draws.unsqueeze(1) * shares[:, -1:], right=True).flatten().tolist()
        altered = [list(text.pieces) for text in texts]
        for (row, place), choice in zip(places, drawn, strict=True):
            altered[row][place] = match_case(self._filler.words[choice], model=altered[row][place])
        return ["".join(pieces) for pieces in altered]
