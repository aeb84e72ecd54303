"""Pairings of a test's own that cut the tokens of documents."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import tiny

from contrastive_text.core.types import Example, Row, Tokens
from contrastive_text.pairings import Pairing

LONG = tuple(" ".join(tiny.TEXTS[i : i + 3]) for i in range(10))
SHORT = tiny.TEXTS[:6]
LEAST = 14
"""More tokens than any of the short documents has, and fewer than any of the long ones."""


class Halves(Pairing):
    """Both sides of a random cut, as spans of the document's tokens."""

    token_roles: ClassVar[bool] = True

    def __init__(self, least: int = LEAST) -> None:
        self.least = least

    def accepts_length(self, tokens: int) -> bool:
        return tokens >= self.least

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        tokens = row["text"]
        assert isinstance(tokens, Tokens)
        cut = int(rng.integers(1, len(tokens)))
        return [Example(anchor=tokens.take(range(cut)), positives=(tokens.take(range(cut, len(tokens))),))]

    @staticmethod
    def documents(path: Path) -> str:
        """Writes ten long documents, each with a short one after it as long as there are any."""
        mixed = [text for pair in zip(LONG, SHORT, strict=False) for text in pair]
        return tiny.write_texts(path, (*mixed, *LONG[6:]))


class Alone(Halves):
    """The whole document and no positive."""

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the base's signature
        tokens = row["text"]
        assert isinstance(tokens, Tokens)
        return [Example(anchor=tokens)]
