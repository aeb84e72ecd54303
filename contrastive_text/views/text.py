"""Views of the string: templates and swapped words; and the words of a text for views that replace words."""

from __future__ import annotations

import re

import numpy as np

from contrastive_text.core.checks import share
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import SLOT, Frame
from contrastive_text.views.base import TextView, Words

_WORD = re.compile(r"(\w+(?:['\u2019-]\w+)*)")
_LETTERS = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def split_words(text: str) -> list[str]:
    """Returns a text in pieces: words at the odd places, what stands around them at the even ones.

    A word is a run of letters and digits, with apostrophes and hyphens inside.

    Example:
        >>> split_words("Well-known, isn't it?")
        ['', 'Well-known', ', ', "isn't", ' ', 'it', '?']
    """
    return _WORD.split(text)


def tab_fields(line: str) -> list[str]:
    """Returns the fields of a line of a tab-separated file, without the newline."""
    return re.sub(r"\r?\n\Z", "", line).split("\t")


def is_word(text: str) -> bool:
    """Whether a text is one word, and that of letters."""
    return _LETTERS.fullmatch(text) is not None


def match_case(word: str, model: str) -> str:
    """Returns a lower-case word with capitals where the model word has them: all, the first letter or none.

    Example:
        >>> match_case("large", "Big"), match_case("large", "BIG"), match_case("one", "I")
        ('Large', 'LARGE', 'One')
    """
    if model.islower():  # most words: first, because a view asks this of every word it replaces
        return word
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


class Prompt(TextView):
    """Puts the text into a template; two templates make two views of one text.

    Source: contrastive learning with two templates of Jiang et al. 2022, PromptBERT
    (https://arxiv.org/abs/2201.04337), section 4. The vector of its mask token is ``MaskTokenPooler``'s. No view
    alters the template, wherever in the chain it stands, and of a text that is too long the text is cut, never
    the template.

    Args:
        template: A text with ``{text}`` in it once, and with ``{mask}`` where the mask token is wanted; other
            braces stand for themselves. It stands within the model's prompt. Where both have something after the
            text, these texts have the template alone: the model's prompt is dropped, before the text too.
        apart: Whether its two parts and the text are tokenised each by itself, as in PromptBERT's code; otherwise
            they are one string, in which a byte-level vocabulary joins a blank to the word after it.
        counted: Whether the length limit counts the template, as in SNCSE; otherwise it is the text's own, as in
            PromptBERT, as far as the network takes longer rows.

    Raises:
        ValueError: A template without ``{text}``, or with more than one.

    Example:
        >>> Prompt("This sentence: {text} means")("It rains.", np.random.default_rng(0))
        'This sentence: It rains. means'
    """

    def __init__(self, template: str = SLOT, apart: bool = False, counted: bool = True) -> None:
        if SLOT not in template:
            raise InvalidValueError(f"Prompt.template: expected {SLOT} exactly once, got {template!r} without it")
        self.template = template
        self.apart, self.counted = apart, counted
        self.around = Frame.of(template, "Prompt.template", apart, counted)

    def __call__(self, text: str, rng: np.random.Generator) -> str:  # noqa: ARG002  # the contract
        """Returns the template with the text in it."""
        return self.template.replace(SLOT, text)


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

    words: Words | None = "blanks"

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = share("SwapWords.rate", rate)

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some words swapped."""
        words = text.split()
        swaps = rng.random(max(len(words) - 1, 0)) < self.rate
        for i in np.flatnonzero(swaps):
            words[i], words[i + 1] = words[i + 1], words[i]
        return " ".join(words) if swaps.any() else text
