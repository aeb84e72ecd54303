"""Pairings: which texts of a row belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from contrastive_text.types import Example, Row


class Pairing(ABC):
    """Base class of pairings.

    Every row must give the same number of examples with the same number of positives and negatives.

    Attributes:
        reads: The columns that a row must have.
        reads_tokens: Whether the texts come tokenised, as ``Tokens`` without special tokens and uncut.
    """

    reads: tuple[str, ...] = ("text",)
    reads_tokens: ClassVar[bool] = False

    def serves(self, tokens: int) -> bool:  # noqa: ARG002  # the contract
        """Tells whether a text of so many tokens can be paired; those that can't are left out and counted.

        Asked only with ``reads_tokens``.
        """
        return True

    def shrinks(self, tokens: int) -> bool:  # noqa: ARG002  # the contract
        """Tells whether a text of so many tokens is served with less than was asked for; these are counted."""
        return False

    @abstractmethod
    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Gives the examples of a row; all randomness comes from ``rng``."""


class SameText(Pairing):
    """The text is its own positive: what differs is dropout, or the views (SimCSE, ConSERT, CLEAR).

    Example:
        >>> SameText()({"text": "hello"}, np.random.default_rng(0))
        [Example(anchor='hello', positives=('hello',), negatives=(), target=None)]
    """

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the contract
        """Gives one example, the text twice."""
        text = str(row["text"])
        return [Example(anchor=text, positives=(text,))]


class Given(Pairing):
    """The data file names the pairs: columns ``anchor`` and ``positive``, hard negatives if there are any.

    Files of scored pairs, which are read for evaluation, have a target too.

    Example:
        >>> Given()({"anchor": "a", "positive": "b", "negative": "c"}, np.random.default_rng(0))
        [Example(anchor='a', positives=('b',), negatives=('c',), target=None)]
    """

    reads = ("anchor", "positive")

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the contract
        """Gives one example: the row's texts in their columns' roles."""
        score = row.get("target")
        return [
            Example(
                anchor=str(row["anchor"]),
                positives=(str(row["positive"]),),
                negatives=tuple(str(text) for name, text in row.items() if name.startswith("negative")),
                target=float(score) if isinstance(score, int | float) else None,
            )
        ]


class Neighbours(Pairing):
    """A text and the one that follows it in the file: the next-sentence positives of SimCSE's ablation.

    Gao et al. 2021, SimCSE, section 3, table 2 ("next sentence"). The file holds one text a line, in the order
    of a running document; the last line has no successor and is no anchor.

    Example:
        >>> Neighbours()({"text": "It rains.", "next": "We stay."}, np.random.default_rng(0))
        [Example(anchor='It rains.', positives=('We stay.',), negatives=(), target=None)]
    """

    reads = ("text", "next")

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the contract
        """Gives one example: the text and its successor."""
        return [Example(anchor=str(row["text"]), positives=(str(row["next"]),))]
