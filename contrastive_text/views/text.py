"""Views that alter the string of a text, and functions that split a text into words."""

from __future__ import annotations

import re

import numpy as np

from contrastive_text.core.errors import InvalidValueError, fraction
from contrastive_text.core.types import TEXT_PLACEHOLDER, Template
from contrastive_text.views.base import TextView, Words

_WORD = re.compile(r"(\w+(?:['\u2019-]\w+)*)")
_LETTERS = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def split_words(text: str) -> list[str]:
    """Splits a text into pieces: words at odd indices, and the text between words at even indices.

    A word is a sequence of letters and digits, which may have apostrophes and hyphens inside.

    Example:
        >>> split_words("Well-known, isn't it?")
        ['', 'Well-known', ', ', "isn't", ' ', 'it', '?']
    """
    return _WORD.split(text)


def tab_fields(line: str) -> list[str]:
    """Splits a line of a tab-separated file into its fields, without the newline."""
    return re.sub(r"\r?\n\Z", "", line).split("\t")


def is_word(text: str) -> bool:
    """Returns True if a text is a single word of letters."""
    return _LETTERS.fullmatch(text) is not None


def match_case(word: str, model: str) -> str:
    """Returns a lower-case word with the capitalization of another word: all letters, the first letter or none.

    Args:
        word: Word in lower case.
        model: Word whose capitalization is copied.

    Example:
        >>> match_case("large", "Big"), match_case("large", "BIG"), match_case("one", "I")
        ('Large', 'LARGE', 'One')
    """
    if model.islower():  # first, because most words are
        return word
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


class Prompt(TextView):
    """Puts each text into a template. Two templates give two views of the same text (PromptBERT).

    Source: contrastive learning with two templates of Jiang et al. 2022, PromptBERT
    (https://arxiv.org/abs/2201.04337), section 4. ``MaskTokenPooler`` reads the vector of the template's mask
    token. No view of the chain alters the template. If a row is too long, the text is truncated, not the
    template.

    Args:
        template: Text with ``{text}`` once, and ``{mask}`` for the mask token; other braces are literal. The
            template is put inside the model's prompt. If both have text after ``{text}``, the whole prompt is
            dropped for these texts.
        apart: Whether the two parts of the template and the text are tokenized separately, as in PromptBERT's
            code. If false, they are tokenized as one string, in which a byte-level vocabulary joins a blank to
            the next word.
        counted: Whether the length limit includes the template, as in SNCSE. If false, the limit applies to the
            text only, as in PromptBERT, up to the limit of the network.

    Raises:
        ValueError: The template doesn't have ``{text}`` exactly once.

    Example:
        >>> Prompt("This sentence: {text} means")("It rains.", np.random.default_rng(0))
        'This sentence: It rains. means'
    """

    def __init__(self, template: str = TEXT_PLACEHOLDER, apart: bool = False, counted: bool = True) -> None:
        if TEXT_PLACEHOLDER not in template:
            raise InvalidValueError(
                f"Prompt.template: expected {TEXT_PLACEHOLDER} exactly once, got {template!r}"
            )
        self.template = template
        self.apart, self.counted = apart, counted
        self.text_template = Template.parse(template, "Prompt.template", apart, counted)

    def __call__(self, text: str, rng: np.random.Generator) -> str:  # noqa: ARG002  # the base's signature
        """Returns the template with the text inserted."""
        return self.template.replace(TEXT_PLACEHOLDER, text)


class SwapWords(TextView):
    """Swaps neighboring words of a text at random.

    From left to right, each word is swapped with the next word with probability ``rate``. A swapped word may be
    swapped again and move on. In a text with swaps, white space between words becomes one blank; a text without
    swaps is unchanged. Source: random swap of Wei and Zou 2019, EDA (https://arxiv.org/abs/1901.11196), section
    2.

    Differs: only neighbors are swapped, so that the text stays readable.

    Args:
        rate: Probability of each swap.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> SwapWords(rate=1.0)("a b c", np.random.default_rng(0))
        'b c a'
    """

    words: Words | None = "blanks"

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = fraction("SwapWords.rate", rate)

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text with some neighboring words swapped."""
        words = text.split()
        swaps = rng.random(max(len(words) - 1, 0)) < self.rate
        for i in np.flatnonzero(swaps):
            words[i], words[i + 1] = words[i + 1], words[i]
        return " ".join(words) if swaps.any() else text
