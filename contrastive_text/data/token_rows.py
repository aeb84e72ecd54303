"""From texts to rows of token ids, tokenised once each, altered, cut, with what stands around; and to a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, hash_rows, text_id
from contrastive_text.core.types import NO_LABEL, Frame, Slot, Text, TextPair, Tokens
from contrastive_text.data.tokenizing import Framed, TextTokenizer


class TextRow(NamedTuple):
    """What a batch keeps of a text: less than ``Tokens``, because there is one for each of thousands.

    Args:
        ids: Of the row, special tokens among them.
        truncated: Whether the text was cut.
        bare: The ids without the frame's; None for a text without a frame.
        positions: As ``Tokens`` has them, as are the labels.
        types: Of which of two texts each token is.
        labels: Ids to predict.
        around: Tokens of the row before the text and after it, the special ones among them.
    """

    ids: Sequence[int]
    truncated: bool
    bare: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    types: Sequence[int] | None = None
    labels: Sequence[int] | None = None
    around: tuple[int, int] | None = None


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
        if frame:
            framed = tokenizer.framed(strings, frame)
            self._framed = dict(zip(strings, framed, strict=True))
        elif with_words:
            self._framed = {s: Framed(tokens) for s, tokens in zip(strings, tokenizer(strings), strict=True)}
            self._ids = {string: framed.tokens.ids for string, framed in self._framed.items()}
        else:
            self._ids = dict(zip(strings, tokenizer.ids(strings), strict=True))
        self._plain: dict[Text, TextRow] = {}

    @cached_property
    def _around(self) -> Framed:
        return self.tokenizer.framed(["a"], self.frame)[0]

    def plain(self, text: Text) -> TextRow:
        """Returns the row of a text that stays as it is."""
        if isinstance(text, TextPair):
            pair = self.tokenizer.pairs.row(self._ids[text.first], self._ids[text.second])
            return TextRow(pair.ids, pair.truncated, types=pair.types)
        if text not in self._plain:
            self._plain[text] = self._row(text)
        return self._plain[text]

    def _row(self, text: str | Tokens) -> TextRow:
        if self.frame:
            return framed_row(self.framed(text), self.tokenizer)
        ids = self._ids[text] if isinstance(text, str) else text.ids
        row = self.tokenizer.row(ids)
        return TextRow(row, truncated=len(row) < len(ids) + self.tokenizer.specials)

    def framed(self, text: Text) -> Framed:
        """Returns the tokens of a text, uncut and without special ones, between those of its frame."""
        assert not isinstance(text, TextPair)  # refused with the pairing
        if isinstance(text, str):
            return self._framed[text]
        return self._around._replace(tokens=text) if self.frame else Framed(text)


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
    taken = tokenizer.taken(framed)
    around = len(tokenizer.prefix) + len(framed.before), len(framed.after) + len(tokenizer.suffix)
    has_frame = bool(framed.before or framed.after)
    if alter is _unaltered:  # nearly all in use
        ids = framed.tokens.ids
        kept = ids if tokenizer.room is None else ids[: max(tokenizer.room - taken, 0)]
        whole = [*tokenizer.prefix, *framed.before, *kept, *framed.after, *tokenizer.suffix]
        return TextRow(whole, len(kept) < len(ids), bare=kept if has_frame else None, around=around)
    tokens = tokenizer.cut(framed.tokens, taken)
    altered = tokenizer.cut(alter(tokens), len(framed.before) + len(framed.after), altered=True)
    row = alter(tokenizer.with_specials(altered, framed.before, framed.after), after_specials=True)
    return TextRow(
        row.ids,
        truncated=len(tokens) < len(framed.tokens),
        bare=altered.ids if has_frame else None,
        positions=row.positions,
        labels=row.labels,
        around=around,
    )


def _strings(text: Text) -> tuple[str, ...]:
    if isinstance(text, TextPair):
        return text
    return (text,) if isinstance(text, str) else ()


def batch_of(
    rows: Sequence[TextRow], tokenizer: TextTokenizer, slots: tuple[Slot, ...], keys: Tensor, text_ids: Tensor
) -> Batch:
    """Returns rows as a ragged batch, without targets.

    Args:
        rows: Slot by slot.
        tokenizer: Owner of special tokens.
        slots: The slots.
        keys: Key of the draws of each row, (S,).
        text_ids: As ``Batch`` has them.
    """
    types = [row.types or tokenizer.types(len(row.ids)) for row in rows]
    examples, specials = len(rows) // len(slots), (len(tokenizer.prefix), len(tokenizer.suffix))
    return Batch(
        ids=flat([row.ids for row in rows]),
        lengths=flat([[len(row.ids) for row in rows]]),
        slots=slots,
        row_slots=torch.arange(len(slots)).repeat_interleave(examples),
        draw_keys=keys,
        text_ids=text_ids,
        seed=fold(*keys[:examples].tolist()),
        positions=flat([row.positions or range(len(row.ids)) for row in rows])
        if any(row.positions is not None for row in rows)
        else None,
        types=flat([own or (0,) * len(row.ids) for own, row in zip(types, rows, strict=True)])
        if any(types)
        else None,
        labels=flat([row.labels or (NO_LABEL,) * len(row.ids) for row in rows])
        if any(row.labels is not None for row in rows)
        else None,
        around=torch.tensor([row.around or specials for row in rows])
        if any(row.bare is not None for row in rows)
        else None,
        truncated=sum(row.truncated for row in rows),
    )


def collate_texts(tokenizer: TextTokenizer, texts: Sequence[Framed], unpooled: int = 0) -> Batch:
    """Returns tokenised texts as a batch of unaltered anchors: the way to the encoder outside training.

    Args:
        tokenizer: Owner of special tokens and lengths.
        texts: The texts with what stands around each, as ``tokenizer.framed`` gives them.
        unpooled: Tokens that the pooler leaves out at the start of each row.

    Raises:
        ValueError: A text without a token, for a tokenizer that adds no special tokens.
    """
    rows = [framed_row(text, tokenizer) for text in texts]
    lengths = [len(row.ids) for row in rows]
    if 0 in lengths:
        raise InvalidValueError(
            f"texts[{lengths.index(0)}]: expected at least one token, got ''; this tokenizer adds no special "
            "tokens, so leave empty texts out"
        )
    text_ids = flat([[text_id(np.array(text.tokens.ids).tobytes()) for text in texts]])
    keys = torch.zeros(len(rows), dtype=torch.long)
    batch = batch_of(rows, tokenizer, (Slot("anchor", 0),), keys, text_ids)
    return batch.replace(unpooled=torch.full_like(batch.lengths, unpooled)) if unpooled else batch


def edited_ids(rows: Sequence[TextRow], tokenizer: TextTokenizer) -> Tensor:
    """Returns a hash of each row's ids, (S,); where some texts have a frame, of the ids of all texts alone."""
    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    if all(row.bare is None for row in rows):
        kept: list[Sequence[int]] = [row.ids for row in rows]
    else:
        kept = [row.ids[before : len(row.ids) - after] if row.bare is None else row.bare for row in rows]
    return hash_rows(flat(kept), flat([[len(each) for each in kept]]))


def flat(rows: Sequence[Sequence[int]]) -> Tensor:
    """Returns the numbers of all rows one after another, (T,), int64."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=sum(map(len, rows))))
