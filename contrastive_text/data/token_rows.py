"""From the texts of a batch to rows of token ids: tokenised once each, altered, cut, with what stands around."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from contrastive_text.core.types import Text, TextPair, Tokens
from contrastive_text.data.tokenizing import Framed, TextTokenizer


class Frame(NamedTuple):
    """What stands around the texts of a slot; neither altered nor cut.

    Args:
        before: A prompt, then what a view's template has before the text.
        after: What the template has after it.
        unpooled: Tokens of a row that the pooler leaves out, at its start.
    """

    before: str = ""
    after: str = ""
    unpooled: int = 0


class TextRow(NamedTuple):
    """What a batch keeps of a text: less than ``Tokens``, because there is one for each of thousands.

    Args:
        ids: Of the row, special tokens among them.
        truncated: Whether the text was cut.
        bare: The ids without the frame's; None for a text without a frame.
        positions: As ``Tokens`` has them, as are the labels.
        types: Of which of two texts each token is.
        labels: Ids to predict.
    """

    ids: Sequence[int]
    truncated: bool
    bare: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    types: Sequence[int] | None = None
    labels: Sequence[int] | None = None


class Tokenised:
    """Texts of a batch that have one frame, each tokenised once, wherever it stands.

    Args:
        texts: The texts.
        tokenizer: Owner of special tokens and lengths.
        frame: What stands around each.
        with_words: Whether views will ask for words.
    """

    def __init__(self, texts: Iterable[Text], tokenizer: TextTokenizer, frame: Frame, with_words: bool) -> None:
        self.tokenizer = tokenizer
        self.frame = frame
        strings = list(dict.fromkeys(string for text in texts for string in _strings(text)))
        self._framed: dict[str, Framed] = {}
        self._ids: dict[str, Sequence[int]] = {}
        if frame.before or frame.after:
            framed = tokenizer.framed(strings, frame.before, frame.after)
            self._framed = dict(zip(strings, framed, strict=True))
        elif with_words:
            self._framed = {s: Framed(tokens) for s, tokens in zip(strings, tokenizer(strings), strict=True)}
            self._ids = {string: framed.tokens.ids for string, framed in self._framed.items()}
        else:
            self._ids = dict(zip(strings, tokenizer.ids(strings), strict=True))
        self._plain: dict[Text, TextRow] = {}

    @cached_property
    def _around(self) -> Framed:
        return self.tokenizer.framed(["a"], self.frame.before, self.frame.after)[0]

    def plain(self, text: Text) -> TextRow:
        """Returns the row of a text that stays as it is."""
        if isinstance(text, TextPair):
            pair = self.tokenizer.pairs.row(self._ids[text.first], self._ids[text.second])
            return TextRow(pair.ids, pair.truncated, types=pair.types)
        if text not in self._plain:
            self._plain[text] = self._row(text)
        return self._plain[text]

    def _row(self, text: str | Tokens) -> TextRow:
        if self.frame.before or self.frame.after:
            return framed_row(self.framed(text), self.tokenizer)
        ids = self._ids[text] if isinstance(text, str) else text.ids
        row = self.tokenizer.row(ids)
        return TextRow(row, truncated=len(row) < len(ids) + self.tokenizer.specials)

    def framed(self, text: Text) -> Framed:
        """Returns the tokens of a text, uncut and without special ones, between those of its frame."""
        assert not isinstance(text, TextPair)  # refused with the pairing
        if isinstance(text, str):
            return self._framed[text]
        return Framed(text) if not (self.frame.before or self.frame.after) else self._around._replace(tokens=text)


class Alteration(Protocol):
    """Alters the tokens of a text; or, told that they are after special tokens, those of its whole row."""

    def __call__(self, tokens: Tokens, *, after_specials: bool = False) -> Tokens: ...


def _unaltered(tokens: Tokens, *, after_specials: bool = False) -> Tokens:  # noqa: ARG001  # the contract
    return tokens


def framed_row(framed: Framed, tokenizer: TextTokenizer, alter: Alteration = _unaltered) -> TextRow:
    """Returns the row of a text between what stands around it, of which nothing is cut.

    Args:
        framed: The text's tokens and those around them.
        tokenizer: Owner of special tokens and lengths.
        alter: What is done to the tokens of the text, cut to the room there is, and then to those of the row.
            What it makes longer is cut to the network's limit alone.
    """
    taken = len(framed.before) + len(framed.after)
    tokens = tokenizer.cut(framed.tokens, taken)
    altered = tokenizer.cut(alter(tokens), taken, altered=True)
    row = alter(tokenizer.with_specials(altered, framed.before, framed.after), after_specials=True)
    return TextRow(
        row.ids,
        truncated=len(tokens) < len(framed.tokens),
        bare=altered.ids if taken else None,
        positions=row.positions,
        labels=row.labels,
    )


def _strings(text: Text) -> tuple[str, ...]:
    if isinstance(text, TextPair):
        return text
    return (text,) if isinstance(text, str) else ()
