"""Passages: overlapping windows of long documents, with the characters that each window covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self, TypeAlias

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import NO_WORD
from contrastive_text.data import TextTokenizer
from contrastive_text.data.files.readers import Summary, TextsDigest, TextStream
from contrastive_text.data.prompts import DOCUMENT
from contrastive_text.inference.sentence_encoder import SentenceEncoder

Span: TypeAlias = tuple[int, int]
"""First character of a passage in its document, and the end."""
_BLOCK = 256
"""Number of documents that are tokenized together."""


@dataclass(frozen=True, slots=True)
class Window:
    """Size of the passages of a document in tokens, without special tokens and prompt.

    A passage begins and ends between two words, so it may have fewer tokens. Only a word that is longer than the
    window is split.

    Args:
        tokens: Largest number of tokens of a passage.
        overlap: Number of tokens that a passage shares with the next one.

    Raises:
        ValueError: ``tokens`` is below 1, or ``overlap`` is not below ``tokens``.

    Example:
        >>> Window.parse("128/32")
        Window(tokens=128, overlap=32)
        >>> from contrastive_text.data import TextTokenizer, learn_vocabulary
        >>> tokenizer = TextTokenizer(learn_vocabulary(["a bird sings"], 60), max_length=None)
        >>> Window(tokens=2, overlap=1).spans(tokenizer, ["a bird sings"])
        [[(0, 6), (2, 12)]]
    """

    tokens: int
    overlap: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < self.tokens:
            raise InvalidValueError(
                f"passages: expected tokens and a smaller overlap, such as 128/32, got {self}; give "
                "another window"
            )

    def __str__(self) -> str:
        return f"{self.tokens}/{self.overlap}"

    @classmethod
    def parse(cls, word: str) -> Self:
        """Parses the text of a window, such as ``128/32``.

        Raises:
            ValueError: The text has another form, or a number is out of range.
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", word, flags=re.ASCII)
        if match is None:
            raise InvalidValueError(
                f"passages: expected TOKENS/OVERLAP, such as 128/32, got {word!r}; give two numbers"
            )
        return cls(int(match[1]), int(match[2]))

    def check(self, model: SentenceEncoder) -> None:
        """Checks that a model encodes a whole passage.

        Raises:
            ValueError: The passage, with special tokens and prompt, exceeds the length limit of documents.
        """
        tokenizer = model.tokenizer
        if model.document_length is not None:
            tokenizer = TextTokenizer(tokenizer.tokenizer, model.document_length)
        if tokenizer.room is None:
            return
        template = model.prompts.template(model.prompts.for_kind(DOCUMENT), tokenizer)
        room = tokenizer.room - tokenizer.template_length(template)
        if self.tokens > room:
            raise InvalidValueError(
                f"passages: expected at most {room} tokens, which the limit of {tokenizer.max_length} leaves "
                f"next to special tokens and prompt, got {self.tokens}; give a smaller window"
            )

    def spans(self, tokenizer: TextTokenizer, texts: Sequence[str]) -> list[list[Span]]:
        """Returns the spans of the passages of each text. A text of at most ``tokens`` tokens is one passage."""
        return [
            self._spans(tokens) if len(tokens) > self.tokens else [(0, len(text))]
            for text, tokens in zip(texts, tokenizer.token_spans(texts), strict=True)
        ]

    def _spans(self, tokens: Sequence[tuple[int, int, int]]) -> list[Span]:
        spans, start = [], 0
        while True:
            end = min(start + self.tokens, len(tokens))
            if end < len(tokens):
                end = _word_start(tokens, end, after=start)
            spans.append((tokens[start][0], tokens[end - 1][1]))
            if end == len(tokens):
                return spans
            start = _word_start(tokens, end - self.overlap, after=start)


def _word_start(tokens: Sequence[tuple[int, int, int]], place: int, after: int) -> int:
    """Returns the last start of a word up to a token and after another one; the token itself if there is none."""
    place = max(place, after + 1)
    for start in range(place, after, -1):
        if tokens[start][2] == NO_WORD or tokens[start][2] != tokens[start - 1][2]:
            return start
    return place


class PassageStream(TextStream):
    """Stream of the passages of all texts of another stream, as ``EmbeddingRun`` reads texts.

    Args:
        texts: Stream of the documents.
        window: Size of the passages.
        tokenizer: Tokenizer of the model.
    """

    def __init__(self, texts: TextStream, window: Window, tokenizer: TextTokenizer) -> None:
        super().__init__(texts.path)
        self.texts = texts
        self.window = window
        self.tokenizer = tokenizer

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yields each passage with the line of its document."""
        digest = TextsDigest()
        for block in _blocks(self.texts.numbered()):
            spans = self.window.spans(self.tokenizer, [text for _, text in block])
            for (line, text), text_spans in zip(block, spans, strict=True):
                for start, end in text_spans:
                    digest.add(text[start:end].encode())
                    yield line, text[start:end]
        assert self.texts.summary is not None
        self.summary = Summary(digest.count, digest.hexdigest(), self.texts.summary.description)


def _blocks(texts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    rest = iter(texts)
    while block := list(islice(rest, _BLOCK)):
        yield block
