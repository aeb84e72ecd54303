"""Spans of a document: anchors, and positives that lie around or inside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.random import draw_spans
from contrastive_text.core.types import Example, Row, Tokens
from contrastive_text.pairings.base import Pairing

Strategy = Literal["any", "subsuming", "adjacent"]
"""Place of a positive: overlapping or touching its anchor, inside it, or next to it."""

Start = Literal["grid", "uniform"]
"""Start of anchors: inside blocks of a grid, or anywhere."""

TooShort = Literal["error", "skip", "shrink"]
"""Treatment of a document without room for its anchors."""

TooLong = Literal["error", "cut"]
"""Treatment of a span that is longer than a row of the encoder."""


def span_length(beta: Sequence[float], shortest: int, longest: int, rng: np.random.Generator) -> int:
    """Draws the length of a span, ``floor(Beta(a, b) * (longest - shortest) + shortest)``."""
    a, b = beta
    return int(rng.beta(a, b) * (longest - shortest) + shortest)


def anchor_blocks(tokens: int, anchors: int, length: int, rng: np.random.Generator) -> list[int]:
    """Draws a block for each anchor and gives their starts; no two blocks touch.

    Args:
        tokens: Length of the document, at least ``2 * anchors * length``.
        anchors: Number of anchors.
        length: Length of a block; tokens after the last whole block are in none.
        rng: Source of the draws.
    """
    left = list(range(0, tokens - length + 1, length))
    chosen = []
    for missing in range(anchors, 0, -1):
        # An edge block takes one neighbour with it, not two: so 2 * anchors - 1 blocks are always enough.
        few = len(left) // missing < missing
        i = _choose((0, len(left) - 1) if few else range(len(left)), rng)
        chosen.append(left[i])
        left = left[: max(i - 1, 0)] + left[i + 2 :]
    return chosen


def grid_starts(tokens: int, lengths: Sequence[int], longest: int, rng: np.random.Generator) -> list[int]:
    """Draws the starts of anchors, each inside a block of the longest span's length."""
    blocks = anchor_blocks(tokens, len(lengths), length=longest, rng=rng)
    offsets = [int(rng.integers(longest - length + 1)) for length in lengths]
    return [block + offset for block, offset in zip(blocks, offsets, strict=True)]


def uniform_starts(tokens: int, lengths: Sequence[int], longest: int, rng: np.random.Generator) -> list[int]:
    """Draws the starts of anchors, ``2 * longest`` apart or more, in the order of the text.

    All starts that fit the lengths are equally likely.
    """
    # Only the last anchor can pass the end. So the starts that fit are those of stretches of 2 * longest
    # tokens without overlap, if the text is continued by what the last stretch has beyond its anchor.
    distance = 2 * longest
    continued = tokens - lengths[-1] + distance
    return draw_spans(continued, len(lengths), length=distance, rng=rng)


def longest_positive(strategy: Strategy, anchor: range, longest: int, tokens: int) -> int:
    """Returns the greatest length of a positive: of any span, of its anchor, or of the wider side of that."""
    if strategy == "subsuming":
        return len(anchor)
    return min(longest, max(anchor.start, tokens - anchor.stop)) if strategy == "adjacent" else longest


def positive_starts(
    strategy: Strategy, anchor: range, length: int, tokens: int, at_start: bool = True
) -> Sequence[int]:
    """Returns the starts that a positive may have, all equally likely.

    Args:
        strategy: Where the positive lies.
        anchor: Place of its anchor.
        length: Its length, at most ``longest_positive``.
        tokens: Length of the document.
        at_start: Whether a left neighbour may start at token 0 although there is a right one.

    Example:
        >>> positive_starts("any", range(700, 1052), length=192, tokens=2048)
        range(508, 1053)
    """
    if strategy == "any":
        return range(max(0, anchor.start - length), min(anchor.stop, tokens - length) + 1)
    if strategy == "subsuming":
        return range(anchor.start, anchor.stop - length + 1)
    left, right = anchor.start - length, [anchor.stop] if anchor.stop + length <= tokens else []
    return [left, *right] if left > 0 or (left == 0 and (at_start or not right)) else right


class Spans(Pairing):
    """Spans of one document belong together: anchors, each with positives that lie around or inside it.

    An anchor has ``floor(Beta(4, 2) * (max_length - min_length) + min_length)`` tokens, a positive the same
    with Beta(2, 4). Source: Giorgi, Nitski, Wang, Bader 2021, DeCLUTR (https://arxiv.org/abs/2006.03659),
    section 3.1, and the authors' code (github.com/JohnGiorgi/DeCLUTR, declutr/common/contrastive_utils.py).

    Two anchors of a document have ``max_length`` tokens or more between them. On the ``grid`` of the authors'
    code each lies inside a block of ``max_length`` tokens, no two blocks touch, and what follows the last whole
    block is in no anchor; with three anchors or more the first is always at an edge of a document of the least
    length. With ``uniform``, as in the paper, anchors start anywhere, ``2 * max_length`` apart or more: given
    their lengths, all such starts are equally likely.

    A positive's start is uniform over those that fit: with ``any`` over all that overlap the anchor or touch
    it; with ``subsuming`` over those inside the anchor, whose length takes the place of ``max_length``; with
    ``adjacent`` over its left and its right neighbour, which are no longer than the wider side.

    Differs: spans are slices of token ids; the authors' go back to text and are tokenised again. Theirs end
    the run at a short document, and cut spans to the encoder's limit without a word. Theirs refuse a left
    neighbour at token 0, and fail where no right one fits either; that is taken here even with
    ``adjacent_at_start`` off. Where neither side has room for ``min_length``, which a single anchor may meet,
    the neighbour fills the wider one.

    Args:
        anchors: Anchors of a document, A.
        positives: Positives of an anchor, P; 0 gives anchors alone, for masked language modelling.
        min_length: Tokens of a span, at least.
        max_length: Tokens of a span, at most.
        anchor_beta: Both parameters of the Beta distribution of the anchors' lengths.
        positive_beta: The same for positives.
        strategy: Where positives lie: ``any``, ``subsuming`` or ``adjacent``.
        start: Where anchors start: ``grid`` or ``uniform``.
        too_short: What becomes of a document of fewer than ``2 * anchors * max_length`` tokens: ``error``
            ends the run, ``skip`` leaves it out, ``shrink`` lowers ``max_length`` for it alone to what it has
            room for, and leaves it out if that isn't above ``min_length``.
        too_long: What becomes of spans above the encoder's own ``max_length`` less its special tokens: ``error``
            refuses such a ``max_length`` here before the first step, ``cut`` has them cut at their end. The
            run's summary says how many.
        min_document_tokens: Tokens that a document must have even where the spans need fewer: with 2,048, one
            anchor sees the same documents as two. None for what they need.
        adjacent_at_start: Whether a left neighbour may start at token 0; off as in the authors' code.

    Raises:
        ValueError: A number out of range, lengths in the wrong order or an unknown word.

    Example:
        >>> document = Tokens(ids=tuple(range(16)), words=tuple(range(16)))
        >>> pairing = Spans(anchors=2, positives=1, min_length=2, max_length=4)
        >>> [example.anchor.ids for example in pairing({"text": document}, np.random.default_rng(0))]
        [(9, 10, 11), (1, 2)]
    """

    reads_tokens: ClassVar[bool] = True

    def __init__(
        self,
        anchors: int = 2,
        positives: int = 2,
        min_length: int = 32,
        max_length: int = 512,
        anchor_beta: tuple[float, float] = (4.0, 2.0),
        positive_beta: tuple[float, float] = (2.0, 4.0),
        strategy: Strategy = "any",
        start: Start = "grid",
        too_short: TooShort = "skip",
        too_long: TooLong = "error",
        min_document_tokens: int | None = None,
        adjacent_at_start: bool = True,
    ) -> None:
        for name, beta in (("anchor_beta", anchor_beta), ("positive_beta", positive_beta)):
            if len(beta) != 2 or not all(0 < parameter < math.inf for parameter in beta):
                raise InvalidValueError(
                    f"Spans.{name}: expected two positive numbers, got {beta}; see numpy's beta"
                )
        self.anchors = at_least("Spans.anchors", anchors, 1)
        self.positives = at_least("Spans.positives", positives, 0)
        self.min_length = at_least("Spans.min_length", min_length, 1)
        self.max_length = at_least("Spans.max_length", max_length, min_length)
        self.anchor_beta = anchor_beta
        self.positive_beta = positive_beta
        self.strategy: Strategy = one_of("Spans.strategy", strategy, Strategy)
        self.start: Start = one_of("Spans.start", start, Start)
        self.too_short: TooShort = one_of("Spans.too_short", too_short, TooShort)
        self.too_long: TooLong = one_of("Spans.too_long", too_long, TooLong)
        self.min_document_tokens = at_least(
            "Spans.min_document_tokens",
            min_document_tokens,
            self._room_for_anchors,
            "leave it out for what the anchors need, or lower anchors or max_length",
        )
        self.adjacent_at_start = adjacent_at_start

    @property
    def _room_for_anchors(self) -> int:
        least = min(self.max_length, self.min_length + 1) if self.too_short == "shrink" else self.max_length
        return 2 * self.anchors * least

    @property
    def min_tokens(self) -> int:
        """Tokens that a document must have."""
        return self.min_document_tokens or self._room_for_anchors

    def serves(self, tokens: int) -> bool:
        """Whether a document of so many tokens has room for the anchors, and ``min_document_tokens``.

        Raises:
            ValueError: It hasn't, and ``too_short`` is ``error``.
        """
        if tokens < self.min_tokens and self.too_short == "error":
            why = "2 x anchors x max_length" if self.min_document_tokens is None else "min_document_tokens"
            raise InvalidValueError(
                f"Spans.too_short: expected documents of {self.min_tokens:,} tokens or more ({why}), got one of "
                f"{tokens:,}; set skip to leave it out or shrink to take shorter spans of it, or lower "
                "min_document_tokens, anchors or max_length"
            )
        return tokens >= self.min_tokens

    def check_room(self, room: int) -> None:
        """Checks that a row of the encoder holds the longest span.

        Raises:
            ValueError: It doesn't, and ``too_long`` is ``error``.
        """
        if self.max_length > room and self.too_long == "error":
            raise InvalidValueError(
                f"Spans.max_length: expected spans that the encoder's max_length holds, {room:,} tokens beside "
                f"the special ones, got up to {self.max_length:,}; raise model.encoder.max_length by "
                f"{self.max_length - room:,}, lower data.task.pairing.max_length, or set "
                "data.task.pairing.too_long: cut"
            )

    def shrinks(self, tokens: int) -> bool:
        """Whether a document of so many tokens gets spans below ``max_length``."""
        return self.serves(tokens) and tokens < 2 * self.anchors * self.max_length

    def place(self, tokens: int, rng: np.random.Generator) -> list[tuple[range, list[range]]]:
        """Draws where the anchors of a document of so many tokens lie, each with its positives.

        Raises:
            ValueError: A document that is too short.
        """
        if not self.serves(tokens):
            raise InvalidValueError(
                f"Spans: expected {self.min_tokens:,} tokens or more, got {tokens:,}; leave shorter documents out"
            )
        longest = min(self.max_length, tokens // (2 * self.anchors))
        lengths = [span_length(self.anchor_beta, self.min_length, longest, rng) for _ in range(self.anchors)]
        draw = uniform_starts if self.start == "uniform" else grid_starts
        starts = draw(tokens, lengths, longest, rng)
        anchors = [range(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        return [
            (anchor, [self._positive(anchor, tokens, longest, rng) for _ in range(self.positives)])
            for anchor in anchors
        ]

    def _positive(self, anchor: range, tokens: int, longest: int, rng: np.random.Generator) -> range:
        longest = longest_positive(self.strategy, anchor, longest, tokens)
        length = span_length(self.positive_beta, min(self.min_length, longest), longest, rng)
        start = _choose(positive_starts(self.strategy, anchor, length, tokens, self.adjacent_at_start), rng)
        return range(start, start + length)

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns an example for each anchor of the document, with its positives.

        Raises:
            TypeError: A text that isn't tokenised.
            ValueError: A document that is too short.
        """
        document = row["text"]
        if not isinstance(document, Tokens):
            raise InvalidTypeError(
                f"Spans: expected Tokens, got {type(document).__name__}; tokenise the document first"
            )
        return [
            Example(anchor=document.take(anchor), positives=tuple(document.take(span) for span in positives))
            for anchor, positives in self.place(len(document), rng)
        ]


def _choose(options: Sequence[int], rng: np.random.Generator) -> int:
    return options[int(rng.integers(len(options)))]
