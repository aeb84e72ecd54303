"""The view that puts synonyms in the place of words."""

from __future__ import annotations

from itertools import repeat
from typing import Literal

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import TextView, Words, check_rate
from contrastive_text.views.text import match_case, split_words
from contrastive_text.views.words.lexicon import SynonymSource, SynonymTable
from contrastive_text.views.words.wordnet import WordNetSynonyms


class SubstituteSynonyms(TextView):
    """Puts a synonym in the place of a share of the words.

    Of the m words that have a synonym ``round(rate * m)`` are chosen at random; each gets one of its synonyms,
    all equally likely, with its capitals. Everything else, the number of words and the white space included,
    stays. Source: synonym substitution of Wu et al. 2020, CLEAR (https://arxiv.org/abs/2012.15466), section 3.3,
    which takes 30 % and leaves open of which words. 30 % of all (``of: all``) is nearly every word that has a
    synonym: two views then change the same places, and such words are hardly ever seen as they are. Here it is
    30 % of those that have one.

    Args:
        rate: Share of the words to replace.
        source: Where synonyms come from; None for ``WordNetSynonyms()``.
        of: What the rate is a share of: the words that have a synonym, ``replaceable``, or ``all`` words, where
            those with a synonym are taken until there are so many.

    Raises:
        ValueError: A rate outside [0, 1], something else that it is a share of, or no WordNet for the default
            source.

    Example:
        >>> class Two(SynonymSource):
        ...     def table(self):
        ...         return {"": {"big": ("large",), "dog": ("hound",)}}
        >>> SubstituteSynonyms(rate=1.0, source=Two())("Big dogs, a big dog!", np.random.default_rng(0))
        'Large dogs, a large hound!'
    """

    def __init__(
        self,
        rate: float = 0.3,
        source: SynonymSource | None = None,
        of: Literal["replaceable", "all"] = "replaceable",
    ) -> None:
        check_rate("SubstituteSynonyms", rate)
        if of not in ("replaceable", "all"):
            raise InvalidValueError(
                f"SubstituteSynonyms.of: expected replaceable or all, got {of!r}; the rate is a share of the "
                "words that have a synonym, or of all words"
            )
        self.rate = rate
        self.source = source
        self.of = of
        self._source = WordNetSynonyms() if source is None else source
        self._table: SynonymTable | None = None

    @property
    def words(self) -> Words:
        """Runs of letters and digits."""
        return "letters"

    def build(self, vocabulary: Vocabulary) -> None:  # noqa: ARG002  # the contract
        """Makes the table of synonyms, so that workers get it ready-made."""
        self._table = self._source.table()

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words replaced."""
        if self._table is None:
            self._table = self._source.table()
        pieces = split_words(text)
        words = pieces[1::2]
        tags = self._source.parts_of_speech(words)
        no_words: dict[str, tuple[str, ...]] = {}
        lists = (
            repeat(self._table.get("", no_words))
            if tags is None
            else (self._table.get(tag, no_words) for tag in tags)
        )
        found = []
        for place, (word, synonyms_of) in enumerate(zip(words, lists, strict=False)):  # repeat has no end
            synonyms = synonyms_of.get(word)
            if synonyms is None:
                synonyms = synonyms_of.get(word.lower())
            if synonyms:
                found.append((place, synonyms))
        count = min(round(self.rate * len(words if self.of == "all" else found)), len(found))
        if count == 0:
            return text
        draws = rng.random(count).tolist()
        for i, draw in zip(rng.permutation(len(found))[:count].tolist(), draws, strict=True):
            place, synonyms = found[i]
            pieces[2 * place + 1] = match_case(synonyms[int(draw * len(synonyms))], model=words[place])
        return "".join(pieces)
