"""Pairing of spans of a document (DeCLUTR): anchor spans with overlapping, contained or adjacent positives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, at_least, one_of
from contrastive_text.core.random import draw_spans
from contrastive_text.core.types import Example, Row, Tokens
from contrastive_text.pairings.base import Pairing

Strategy = Literal["any", "subsuming", "adjacent"]
"""Names of the positions of a positive span: overlapping or touching its anchor, inside it, or next to it."""

Start = Literal["grid", "uniform"]
"""Names of the ways to draw the start of an anchor span: inside a block of a grid, or anywhere."""

SpanContext = Literal["span", "document"]
"""Names of the text that the network reads to encode a span: the span alone, or the document around it."""

TooShort = Literal["error", "skip", "shrink"]
"""Names of the treatments of a document that is too short for its anchors."""

TooLong = Literal["error", "cut"]
"""Names of the treatments of a span that is longer than a row of the encoder."""


def span_length(beta: Sequence[float], shortest: int, longest: int, rng: np.random.Generator) -> int:
    """Draws the length of a span in tokens, ``floor(Beta(a, b) * (longest - shortest) + shortest)``.

    Args:
        beta: Parameters a and b of the Beta distribution.
        shortest: Lower bound of the length.
        longest: Upper bound of the length.
        rng: Generator of the draw.
    """
    a, b = beta
    return int(rng.beta(a, b) * (longest - shortest) + shortest)


def anchor_blocks(tokens: int, anchors: int, length: int, rng: np.random.Generator) -> list[int]:
    """Draws a block of a grid for each anchor, without adjacent blocks, and returns the starts of the blocks.

    Args:
        tokens: Length of the document in tokens, at least ``2 * anchors * length``.
        anchors: Number of anchors.
        length: Length of a block in tokens. Tokens after the last whole block belong to no block.
        rng: Generator of the draws.
    """
    free = list(range(0, tokens - length + 1, length))
    starts = []
    for count in range(anchors, 0, -1):
        # A block at an edge excludes one neighbor, not two, so that 2 * anchors - 1 blocks are always enough.
        is_scarce = len(free) // count < count
        i = _choose((0, len(free) - 1) if is_scarce else range(len(free)), rng)
        starts.append(free[i])
        free = free[: max(i - 1, 0)] + free[i + 2 :]
    return starts


def grid_starts(tokens: int, lengths: Sequence[int], longest: int, rng: np.random.Generator) -> list[int]:
    """Draws the starts of anchor spans, each span inside a block of the longest span's length.

    Args:
        tokens: Length of the document in tokens.
        lengths: Length of each anchor.
        longest: Length of a block.
        rng: Generator of the draws.
    """
    blocks = anchor_blocks(tokens, len(lengths), length=longest, rng=rng)
    offsets = [int(rng.integers(longest - length + 1)) for length in lengths]
    return [block + offset for block, offset in zip(blocks, offsets, strict=True)]


def uniform_starts(tokens: int, lengths: Sequence[int], longest: int, rng: np.random.Generator) -> list[int]:
    """Draws the starts of anchor spans, at least ``2 * longest`` apart, in the order of the text.

    All starts that fit the lengths are equally likely.

    Args:
        tokens: Length of the document in tokens.
        lengths: Length of each anchor.
        longest: Half of the smallest distance between starts.
        rng: Generator of the draws.
    """
    # Only the last anchor can pass the end of the document. The valid starts are therefore the starts of spans of
    # 2 * longest tokens without overlap, in a document that is extended by the rest of the last span.
    distance = 2 * longest
    extended = tokens - lengths[-1] + distance
    return draw_spans(extended, len(lengths), length=distance, rng=rng)


def longest_positive(strategy: Strategy, anchor: range, longest: int, tokens: int) -> int:
    """Returns the largest length of a positive span in tokens.

    With ``subsuming`` it is the length of the anchor, with ``adjacent`` at most the longer side of the anchor.

    Args:
        strategy: Position of the positive relative to the anchor.
        anchor: Tokens of the anchor.
        longest: Largest length of any span.
        tokens: Length of the document.
    """
    if strategy == "subsuming":
        return len(anchor)
    return min(longest, max(anchor.start, tokens - anchor.stop)) if strategy == "adjacent" else longest


def positive_starts(
    strategy: Strategy, anchor: range, length: int, tokens: int, at_start: bool = True
) -> Sequence[int]:
    """Returns the possible starts of a positive span, which are equally likely.

    Args:
        strategy: Position of the positive relative to the anchor.
        anchor: Tokens of the anchor.
        length: Length of the positive, at most ``longest_positive``.
        tokens: Length of the document.
        at_start: Whether a left neighbor may start at token 0 if there is a right neighbor.

    Example:
        >>> positive_starts("any", range(700, 1052), length=192, tokens=2048)
        range(508, 1053)
    """
    if strategy == "any":
        return range(max(0, anchor.start - length), min(anchor.stop, tokens - length) + 1)
    if strategy == "subsuming":
        return range(anchor.start, anchor.stop - length + 1)
    before, after = anchor.start - length, [anchor.stop] if anchor.stop + length <= tokens else []
    return [before, *after] if before > 0 or (before == 0 and (at_start or not after)) else after


class Spans(Pairing):
    """Pairs spans of the same document: anchor spans, each with positives that overlap, lie inside or adjoin it.

    An anchor has ``floor(Beta(4, 2) * (max_length - min_length) + min_length)`` tokens. A positive has the same
    with Beta(2, 4). Source: Giorgi, Nitski, Wang, Bader 2021, DeCLUTR (https://arxiv.org/abs/2006.03659), section
    3.1, and the authors' code (github.com/JohnGiorgi/DeCLUTR, declutr/common/contrastive_utils.py).

    At least ``max_length`` tokens separate two anchors of a document. With ``grid``, as in the authors' code,
    each anchor is inside a block of ``max_length`` tokens, and blocks are not adjacent. Tokens after the last
    whole block are in no anchor. With three or more anchors, the first is at an edge of a document of the
    smallest length. With ``uniform``, as in the paper, starts are at least ``2 * max_length`` apart, and all such
    starts are equally likely.

    The start of a positive is uniform over the possible starts. With ``any`` the positive overlaps or touches the
    anchor. With ``subsuming`` it is inside the anchor, whose length replaces ``max_length``. With ``adjacent`` it
    is the left or right neighbor of the anchor, and no longer than the longer side.

    Differs: spans are slices of token ids; the authors' code converts spans to text and tokenizes them again. It
    stops at a short document, and truncates spans at the encoder's limit without a message. It excludes a left
    neighbor at token 0, and fails if no right neighbor fits either; here the left neighbor is then used, even
    with ``adjacent_at_start`` off. If neither side has ``min_length`` tokens, which can happen with one anchor,
    the neighbor fills the longer side.

    Args:
        anchors: Number of anchors of a document, A.
        positives: Number of positives of an anchor, P; 0 gives anchors only, for masked language modeling.
        min_length: Smallest number of tokens of a span.
        max_length: Largest number of tokens of a span.
        anchor_beta: Parameters a and b of the Beta distribution of the anchors' lengths.
        positive_beta: Parameters a and b of the Beta distribution of the positives' lengths.
        strategy: Position of positives relative to the anchor: ``any``, ``subsuming`` or ``adjacent``.
        start: Starts of anchors: ``grid`` or ``uniform``.
        too_short: Treatment of a document of fewer than ``2 * anchors * max_length`` tokens. ``error`` stops the
            run. ``skip`` skips the document. ``shrink`` lowers ``max_length`` for the document until its spans
            fit, and skips the document if that is not above ``min_length``.
        too_long: Treatment of spans that are longer than the encoder's ``max_length`` without special tokens.
            ``error`` raises an error before the first step. ``cut`` truncates spans at their end; the run's
            summary has their number.
        min_document_tokens: Smallest number of tokens of a document, even if its spans need fewer. With 2,048,
            one anchor and two anchors read the same documents. None: the number that the spans need.
        adjacent_at_start: Whether a left neighbor may start at token 0. The authors' code has false.
        context: What the network reads: each span alone, as DeCLUTR, or the document. Anchor and positives are
            then pooled from one pass over the document, as in late chunking (Günther et al. 2024,
            https://arxiv.org/abs/2409.04701). A longer document is cut to the part around them.

    Raises:
        ValueError: A number is out of range, ``min_length`` is above ``max_length``, or a name is unknown.

    Example:
        >>> document = Tokens(ids=tuple(range(16)), words=tuple(range(16)))
        >>> pairing = Spans(anchors=2, positives=1, min_length=2, max_length=4)
        >>> [example.anchor.ids for example in pairing({"text": document}, np.random.default_rng(0))]
        [(9, 10, 11), (1, 2)]
    """

    token_roles: ClassVar[bool] = True

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
        context: SpanContext = "span",
    ) -> None:
        for name, beta in (("anchor_beta", anchor_beta), ("positive_beta", positive_beta)):
            if len(beta) != 2 or not all(0 < parameter < math.inf for parameter in beta):
                raise InvalidValueError(
                    f"Spans.{name}: expected two positive numbers, got {beta}; give a and b of a Beta "
                    "distribution"
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
            "remove it for the number that the anchors need, or lower anchors or max_length",
        )
        self.adjacent_at_start = adjacent_at_start
        self.context: SpanContext = one_of("Spans.context", context, SpanContext)
        self.in_context = context == "document"

    @property
    def _room_for_anchors(self) -> int:
        longest = min(self.max_length, self.min_length + 1) if self.too_short == "shrink" else self.max_length
        return 2 * self.anchors * longest

    @property
    def min_tokens(self) -> int:
        """Smallest number of tokens of a document that the pairing doesn't skip."""
        return self.min_document_tokens or self._room_for_anchors

    def accepts_length(self, tokens: int) -> bool:
        """Returns True if a document with a number of tokens is long enough for its anchors.

        Raises:
            ValueError: The document is too short, and ``too_short`` is ``error``.
        """
        if tokens < self.min_tokens and self.too_short == "error":
            source = "2 x anchors x max_length" if self.min_document_tokens is None else "min_document_tokens"
            raise InvalidValueError(
                f"Spans.too_short: expected documents of {self.min_tokens:,} tokens or more ({source}), got a "
                f"document of {tokens:,}; set skip to skip it or shrink for shorter spans, or lower "
                "min_document_tokens, anchors or max_length"
            )
        return tokens >= self.min_tokens

    def check_length_limit(self, room: int) -> None:
        """Checks that the longest span fits into a row of the encoder.

        Args:
            room: Largest number of tokens of a row without its special tokens.

        Raises:
            ValueError: The span doesn't fit, and ``too_long`` is ``error``; or an anchor with a positive on each
                side doesn't fit, and the network reads them together.
        """
        if self.in_context and 3 * self.max_length > room:
            raise InvalidValueError(
                f"Spans.max_length: expected at most {room // 3:,} with context: document, so that an anchor and "
                f"a positive on each side fit into {room:,} tokens, got {self.max_length:,}; lower "
                "data.task.pairing.max_length, or raise model.encoder.max_length"
            )
        if self.max_length > room and self.too_long == "error":
            raise InvalidValueError(
                f"Spans.max_length: expected at most {room:,}, the tokens of the encoder's rows without special "
                f"tokens, got {self.max_length:,}; raise model.encoder.max_length by "
                f"{self.max_length - room:,}, lower data.task.pairing.max_length, or set "
                "data.task.pairing.too_long: cut"
            )

    def shortens_spans(self, tokens: int) -> bool:
        """Returns True if a document with a number of tokens gets spans shorter than ``max_length``."""
        return self.accepts_length(tokens) and tokens < 2 * self.anchors * self.max_length

    def draw_spans(self, tokens: int, rng: np.random.Generator) -> list[tuple[range, list[range]]]:
        """Draws the anchor spans of a document, and the positive spans of each anchor, as ranges of tokens.

        Args:
            tokens: Length of the document in tokens.
            rng: Generator of the draws.

        Raises:
            ValueError: The document is too short.
        """
        if not self.accepts_length(tokens):
            raise InvalidValueError(
                f"Spans: expected {self.min_tokens:,} tokens or more, got {tokens:,}; skip shorter documents"
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
        """Returns an example for each anchor span of the document, with its positive spans.

        Raises:
            TypeError: The text isn't tokenized.
            ValueError: The document is too short.
        """
        document = row["text"]
        if not isinstance(document, Tokens):
            raise InvalidTypeError(
                f"Spans: expected Tokens, got {type(document).__name__}; tokenize the document first"
            )
        context = document if self.in_context else None
        return [
            Example(
                anchor=document.take(anchor),
                positives=tuple(document.take(span) for span in positives),
                context=context,
                spans=() if context is None else (anchor, *positives),
            )
            for anchor, positives in self.draw_spans(len(document), rng)
        ]


def _choose(options: Sequence[int], rng: np.random.Generator) -> int:
    return options[int(rng.integers(len(options)))]
