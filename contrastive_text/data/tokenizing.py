"""Tokenizers: learn a vocabulary, tokenize texts, add special tokens and cut rows to the length limit."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BatchEncoding, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.libraries import is_panic
from contrastive_text.core.types import (
    MASK,
    NO_FRAME,
    NO_LABEL,
    NO_WORD,
    Frame,
    Text,
    TextPair,
    Tokens,
    Vocabulary,
)

_SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def learn_vocabulary(
    texts: Iterable[str], vocabulary_size: int, new_tokens: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Learns a lower-casing WordPiece vocabulary from a corpus, laid out as BERT's.

    The same corpus gives the same vocabulary in every process.

    Args:
        texts: The corpus.
        vocabulary_size: Largest number of entries, the five special tokens included.
        new_tokens: More special tokens, such as ``[DEL]``.

    Raises:
        ValueError: A size that the characters alone exceed.

    Returns:
        A tokenizer that puts [CLS] before and [SEP] after a text, and another [SEP] after a second one, whose
        tokens have type 1.

    Example:
        >>> tokenizer = learn_vocabulary(["a bird sings", "a bird flies"], vocabulary_size=40)
        >>> tokenizer.convert_ids_to_tokens(tokenizer("Bird").input_ids)
        ['[CLS]', 'bird', '[SEP]']
    """
    specials = [*_SPECIALS.values(), *new_tokens]
    normalizer, words = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    corpus = list(texts)
    counts = Counter(
        character
        for text in corpus
        for word, _ in words.pre_tokenize_str(normalizer.normalize_str(text))
        for character in word
    )
    # WordPiece keeps its whole alphabet, each character twice (at the start of a word and inside one).
    room = max((vocabulary_size - len(specials)) // 3, 1)
    alphabet = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:room])
    # The trainer numbers what is inside a word in the order of a hash map, different in every process, and breaks
    # ties by number: as special tokens they are numbered here.
    numbered = [*specials, *alphabet, *(f"##{character}" for character in alphabet)]
    learning = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learning.normalizer, learning.pre_tokenizer = normalizer, words
    learning.train_from_iterator(
        corpus,
        trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=numbered,
            show_progress=False,
        ),
    )
    tokenizer = Tokenizer(models.WordPiece(learning.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    tokenizer.add_special_tokens(specials)
    if tokenizer.get_vocab_size() > vocabulary_size:
        raise InvalidValueError(
            f"encoder.config.vocab_size: expected room for the corpus's characters, at least "
            f"{tokenizer.get_vocab_size()}, got {vocabulary_size}; give a larger vocab_size"
        )
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return wrap_tokenizer(tokenizer.to_str())


def wrap_tokenizer(description: str) -> PreTrainedTokenizerFast:
    """Returns a learned tokenizer from its JSON, as a checkpoint keeps it."""
    tokenizer = Tokenizer.from_str(description)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIALS)  # type: ignore[no-untyped-call]  # theirs


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


class Framed(NamedTuple):
    """A text's tokens between those of what stands around it: a prompt, a template.

    Args:
        tokens: Of the text, uncut, without special ones.
        before: Ids of what stands before it.
        after: Ids of what stands after it.
        counted: Whether the length limit counts both.
    """

    tokens: Tokens
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    counted: bool = True

    @property
    def length(self) -> int:
        """Tokens, but for the special ones."""
        return len(self.before) + len(self.tokens) + len(self.after)


class TextTokenizer:
    """Tokenises without special tokens, and adds them at the end.

    Args:
        tokenizer: A fast tokenizer.
        max_length: Longest row in tokens, special tokens included; None for no limit.
        spare: By how many tokens a view, or a prompt that is not counted, may make a row longer; None for any.

    Raises:
        ValueError: A limit that leaves no room for a token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None, spare: int | None = 0) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.spare = spare
        bare = self._ids("a")
        encoding = tokenizer("a", return_attention_mask=False)
        whole: list[int] = encoding["input_ids"]
        start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        self.prefix = tuple(whole[:start])
        self.suffix = tuple(whole[start + len(bare) :])
        types: list[int] = encoding.get("token_type_ids") or []
        self._types = (types[:start], types[start], types[start + len(bare) :]) if any(types) else None
        room = None if max_length is None else max_length - len(self.prefix) - len(self.suffix)
        if room is not None and room < 1:
            raise InvalidValueError(
                f"max_length: expected room for a token beside the {len(self.prefix) + len(self.suffix)} special "
                f"tokens, got {max_length}"
            )
        self.room = room

    def vocabulary(self, new_tokens: Sequence[str] = ()) -> Vocabulary:
        """Returns what views may know of the tokenizer.

        Args:
            new_tokens: The tokens that views have asked for.
        """
        table = self.tokenizer.get_vocab()
        if lacking := [token for token in new_tokens if token not in table]:
            raise InvalidValueError(
                f"views: expected a vocabulary with {', '.join(lacking)}, got one learned without; start anew, "
                "or leave out the views that need it"
            )
        added = {token: table[token] for token in new_tokens}
        return Vocabulary(
            size=len(self.tokenizer),
            mask_id=self.tokenizer.mask_token_id,
            special_ids=frozenset(self.tokenizer.all_special_ids) | frozenset(added.values()),
            prefix=len(self.prefix),
            suffix=len(self.suffix),
            added=added,
        )

    def types(self, length: int) -> list[int] | None:
        """Returns the token types of the row of one text; None if all are 0, or the tokenizer gives none.

        Args:
            length: Tokens of the row, with special ones.
        """
        if self._types is None:
            return None
        before, inside, after = self._types
        return [*before, *([inside] * (length - len(before) - len(after))), *after]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._encode([text])["input_ids"][0]
        return ids

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        """Returns each text's tokens, uncut and without special tokens."""
        if not texts:
            return []
        encoding = self._encode(texts)
        words = (encoding.word_ids(i) for i in range(len(texts)))
        return [
            Tokens(ids=tuple(ids), words=tuple(NO_WORD if word is None else word for word in row))
            for ids, row in zip(encoding["input_ids"], words, strict=True)
        ]

    def framed(self, texts: Sequence[str], frame: Frame = NO_FRAME, with_words: bool = True) -> list[Framed]:
        """Returns each text's tokens, uncut and without special ones, between those of what stands around it.

        All is one string to the tokenizer, as in sentence-transformers: a token of the string before and of the
        text, such as a blank with its word, is the text's; one of the text and of the string after that string's.
        Or each is a string of its own, as PromptBERT has it.

        Args:
            texts: The texts.
            frame: Stands around each.
            with_words: Whether anything reads the words; without, every token is of none where no frame is one
                string with the text. That takes half the time.

        Example:
            >>> from contrastive_text.data import learn_vocabulary
            >>> tokenizer = TextTokenizer(learn_vocabulary(["query: a bird"], 60), max_length=None)
            >>> (framed,) = tokenizer.framed(["a bird"], Frame("query: "))
            >>> [tokenizer.tokenizer.decode(list(ids)) for ids in (framed.before, framed.tokens.ids)]
            ['query :', 'a bird']
        """
        frame = self._with_mask(frame)
        if not frame or frame.apart:
            before, after = (tuple(self._ids(part)) if part else () for part in frame[:2])
            each = self(texts) if with_words else self._without_words(texts)
            return [Framed(tokens, before, after, frame.counted) for tokens in each]
        return self._joined(texts, frame) if texts else []

    def _without_words(self, texts: Sequence[str]) -> list[Tokens]:
        return [Tokens(ids=tuple(ids), words=(NO_WORD,) * len(ids)) for ids in self.ids(texts)]

    def _with_mask(self, frame: Frame) -> Frame:
        """Returns a frame with the mask token where it says ``{mask}``."""
        if MASK not in frame.before + frame.after:
            return frame
        token = self.tokenizer.mask_token
        if token is None:
            raise InvalidValueError(
                f"{frame.before + frame.after!r}: expected a vocabulary with a mask token for {MASK}, got none; "
                "use another encoder, or another template"
            )
        return frame._replace(before=frame.before.replace(MASK, token), after=frame.after.replace(MASK, token))

    def _joined(self, texts: Sequence[str], frame: Frame) -> list[Framed]:
        before, after = len(frame.before), frame.after
        encoding = self._encode([f"{frame.before}{text}{after}" for text in texts])
        found = []
        for i, text in enumerate(texts):
            ids, words = tuple(encoding["input_ids"][i]), encoding.word_ids(i)
            ends = [end for _, end in encoding[i].offsets]
            begin = bisect_right(ends, before) if before else 0
            stop = max(bisect_right(ends, before + len(text)), begin) if after else len(ids)
            first = next((word for word in words[begin:stop] if word is not None), 0)
            inside = tuple(NO_WORD if word is None else word - first for word in words[begin:stop])
            found.append(Framed(Tokens(ids[begin:stop], inside), ids[:begin], ids[stop:], frame.counted))
        return found

    def taken(self, around: Frame | Framed) -> int:
        """Returns how many tokens fewer a text may have for what stands around it."""
        if isinstance(around, Frame):
            return self.taken(self.framed(["a"], around)[0]) if around else 0
        tokens = len(around.before) + len(around.after)
        if around.counted:
            return tokens
        return 0 if self.spare is None else max(tokens - self.spare, 0)

    def check_frame(self, frame: Frame, where: str) -> None:
        """Checks that what stands around texts leaves room for a token of theirs.

        Args:
            frame: Stands around each text.
            where: What names it.

        Raises:
            ValueError: It takes the whole row.
        """
        if self.room is None or self.taken(frame) < self.room:
            return
        spare = 0 if frame.counted else self.spare or 0
        beyond = f" and the {spare} beyond it" if spare else ""
        raise InvalidValueError(
            f"{where}: expected fewer tokens than the {self.room + spare} that max_length {self.max_length}"
            f"{beyond} leaves beside the special ones, got {self.taken(frame._replace(counted=True))} of "
            f"{frame.before + frame.after!r}; shorten it, or raise max_length"
        )

    def left_out(self, prompt: str) -> int:
        """Returns how many tokens of a row a pooler leaves out that doesn't read the prompt.

        Those of the prompt alone and the special ones before it, counted as sentence-transformers does: a blank
        at the end that the tokenizer joins to the next word counts too, and stands for that word's first token.
        """
        return len(self.prefix) + len(self.framed([""], Frame(prompt, apart=True))[0].before) if prompt else 0

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns each text's ids, uncut and without special tokens: ``__call__`` without the words."""
        found: list[list[int]] = self._encode(texts)["input_ids"] if texts else []
        return found

    def _encode(self, texts: Sequence[str]) -> BatchEncoding:
        try:
            encoding: BatchEncoding = self.tokenizer(
                list(texts),
                add_special_tokens=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,  # no warning of long texts: they are cut and counted later
            )
        except BaseException as error:
            if not is_panic(error):
                raise
            raise InvalidValueError(
                f"tokenizer: expected one that takes these texts, the first of which is {texts[0][:60]!r}, got a "
                f"panic of the tokenizers library: {first_line(error)}; its normalizer or pre-tokenizer is "
                "damaged, or has a regular expression that takes too long: take another tokenizer.json"
            ) from error
        return encoding

    def text(self, text: Text) -> str:
        """Returns the string that tokens stand for; a string as it is; two strings with a bar between."""
        if isinstance(text, TextPair):
            return f"{text.first} | {text.second}"
        return text if isinstance(text, str) else str(self.tokenizer.decode(list(text.ids)))

    @cached_property
    def pairs(self) -> PairTemplate:
        """How two texts stand in one row.

        Raises:
            ValueError: A tokenizer that puts nothing between them, or a limit that leaves no room for both.
        """
        return PairTemplate(self.tokenizer, self.max_length)

    def cut(self, tokens: Tokens, taken: int = 0, altered: bool = False) -> Tokens:
        """Returns at most as many tokens as there is room for, from the start.

        Args:
            tokens: Of a text.
            taken: Tokens of the row that what stands around the text takes, beside the special ones.
            altered: Whether views have altered them, and may have made them more (``spare``).
        """
        spare = self.spare if altered else 0
        room = None if self.room is None or spare is None else max(self.room + spare - taken, 0)
        return tokens if room is None or len(tokens) <= room else tokens.take(range(room))

    def cuts(self, text: str | TextPair, frame: Frame = NO_FRAME) -> bool:
        """Whether the limit cuts a text, or one of two in a sequence."""
        if isinstance(text, TextPair):
            return self.pairs.row(*self.ids(text)).truncated
        (framed,) = self.framed([text], frame)
        return self.room is not None and len(framed.tokens) > self.room - self.taken(framed)

    def row(self, ids: Sequence[int]) -> list[int]:
        """Returns the ids of the row that enters the encoder: those there is room for, and the special ones."""
        return [*self.prefix, *ids[: self.room], *self.suffix]

    @property
    def specials(self) -> int:
        """The number of special tokens of a row."""
        return len(self.prefix) + len(self.suffix)

    def with_specials(self, tokens: Tokens, before: Sequence[int] = (), after: Sequence[int] = ()) -> Tokens:
        """Returns the row that enters the encoder: the tokens between the special ones.

        Positions, where a view has set them, keep their order after the prefix.

        Args:
            tokens: Of a text.
            before: Ids of what stands before the text, between it and the special ones; no word's.
            after: Ids of what stands after it.
        """
        return _between((*self.prefix, *before), tokens, (*after, *self.suffix))


def _between(prefix: Sequence[int], tokens: Tokens, suffix: Sequence[int]) -> Tokens:
    before, after = len(prefix), len(suffix)
    ids = (*prefix, *tokens.ids, *suffix)
    positions = tokens.positions
    return Tokens(
        ids=ids,
        words=(NO_WORD,) * before + tokens.words + (NO_WORD,) * after,
        positions=None
        if positions is None
        else (*range(before), *(before + p for p in positions), *range(len(ids) - after, len(ids))),
        labels=None if tokens.labels is None else (NO_LABEL,) * before + tokens.labels + (NO_LABEL,) * after,
    )


def single_threaded_tokenizers() -> None:
    """Keeps the tokenizers library from starting threads of its own, before worker processes are forked."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
