"""Two texts in one row: where special tokens stand, which token is of which text, and what is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from contrastive_text.core.errors import InvalidValueError


class PairRow(NamedTuple):
    """The row of two texts.

    Args:
        ids: Token ids, special ones among them.
        types: Of which text each token is, by the tokenizer's numbers; None where it has none.
        truncated: Whether a text was cut.
    """

    ids: list[int]
    types: list[int] | None
    truncated: bool


class PairTemplate:
    """How a tokenizer puts two texts into one row, as Transformers' ``tokenizer(first, second)`` does.

    BERT has ``[CLS] first [SEP] second [SEP]`` with types 0 and 1, RoBERTa ``<s> first </s></s> second </s>``
    without types. What is too long is cut as ``longest_first`` there: the longer text until both are of one
    length, then both.

    Args:
        tokenizer: A fast tokenizer.
        max_length: Longest row in tokens, special tokens included; None for no limit.

    Raises:
        ValueError: A tokenizer that puts nothing between two texts, or a limit without room for a token of each.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> None:
        encoding = tokenizer("a", "b", return_attention_mask=False, return_token_type_ids=True)
        ids: list[int] = encoding["input_ids"]
        types: list[int] = encoding["token_type_ids"]
        texts = encoding.sequence_ids(0)
        begin, second = texts.index(0), texts.index(1)
        end, second_end = (len(texts) - texts[::-1].index(text) for text in (0, 1))
        self.tokens = [str(tokenizer.convert_ids_to_tokens(number)) for number in ids]
        if end == second:
            raise InvalidValueError(
                "pairing OneSequence: expected a tokenizer that puts special tokens between two texts, got "
                f"{' '.join(self.tokens)} of it; take another tokenizer, or pairing: Given"
            )
        around = (slice(begin), slice(end, second), slice(second_end, None))
        self._ids = tuple(ids[part] for part in around)
        self._types = tuple(types[part] for part in around)
        self._text_types = types[begin], types[second]
        self.typed = any(types)
        self.specials = sum(map(len, self._ids))
        self.room = None if max_length is None else max_length - self.specials
        if self.room is not None and self.room < 2:
            raise InvalidValueError(
                f"max_length: expected room for a token of each text beside the {self.specials} special tokens "
                f"of a pair, got {max_length}"
            )

    def row(self, first: Sequence[int], second: Sequence[int]) -> PairRow:
        """Returns the row of two texts, which are given by their token ids without special ones."""
        lengths = self._lengths(len(first), len(second))
        texts = [ids[:length] for ids, length in zip((first, second), lengths, strict=True)]
        types = [[number] * length for number, length in zip(self._text_types, lengths, strict=True)]
        return PairRow(
            ids=_interleaved(self._ids, texts),
            types=_interleaved(self._types, types) if self.typed else None,
            truncated=sum(lengths) < len(first) + len(second),
        )

    def _lengths(self, first: int, second: int) -> tuple[int, int]:
        """Returns how many tokens of each text there is room for."""
        if self.room is None or first + second <= self.room:
            return first, second
        half = self.room // 2
        if min(first, second) > half:  # of an odd room the longer text has one more, of equal ones the second
            return (self.room - half, half) if first > second else (half, self.room - half)
        return (first, self.room - first) if first <= second else (self.room - second, second)

    def describe(self) -> str:
        """Returns the template in words, such as ``[CLS] a [SEP] b [SEP], token types 0 and 1``."""
        types = f"token types {self._text_types[0]} and {self._text_types[1]}" if self.typed else "no token types"
        return f"{' '.join(self.tokens)}, {types}"


def _interleaved(around: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[int]:
    (before, between, after), (first, second) = around, texts
    return list(chain(before, first, between, second, after))
