"""Tokenizers: learn a vocabulary, tokenize texts, add special tokens and cut rows to the length limit."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

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


class TextRow(NamedTuple):
    """Token ids of one row of a batch; a smaller record than ``Tokens``, because a batch has thousands of rows.

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
    """Tokenizes without special tokens, and adds them at the end.

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
        if not texts:
            return []
        if MASK in frame.before + frame.after:
            mask = self.tokenizer.mask_token
            if mask is None:
                raise InvalidValueError(
                    f"{frame.before + frame.after!r}: expected a vocabulary with a mask token for {MASK}, got "
                    "none; use another encoder, or another template"
                )
            frame = frame._replace(before=frame.before.replace(MASK, mask), after=frame.after.replace(MASK, mask))
        if not frame or frame.apart:
            before, after = (tuple(self._ids(part)) if part else () for part in frame[:2])
            each = (
                self(texts)
                if with_words
                else [Tokens(ids=tuple(ids), words=(NO_WORD,) * len(ids)) for ids in self.ids(texts)]
            )
            return [Framed(tokens, before, after, frame.counted) for tokens in each]
        start = len(frame.before)
        encoding = self._encode([f"{frame.before}{text}{frame.after}" for text in texts])
        found = []
        for i, text in enumerate(texts):
            ids, words = tuple(encoding["input_ids"][i]), encoding.word_ids(i)
            ends = [end for _, end in encoding[i].offsets]
            begin = bisect_right(ends, start) if start else 0
            stop = max(bisect_right(ends, start + len(text)), begin) if frame.after else len(ids)
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

    def _encode(self, texts: Sequence[str], **options: Any) -> BatchEncoding:  # Any: those of the tokenizer
        options = {"add_special_tokens": False, "return_token_type_ids": False, **options}
        try:
            # No warning of long texts: they are cut and counted later.
            encoding: BatchEncoding = self.tokenizer(
                list(texts), return_attention_mask=False, verbose=False, **options
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
    def pair_template(self) -> str:
        """Template of two texts in one row, such as ``[CLS] a [SEP] b [SEP], token types 0 and 1``.

        BERT has ``[CLS] first [SEP] second [SEP]`` with types 0 and 1, RoBERTa ``<s> first </s></s> second </s>``
        without types.

        Raises:
            ValueError: A tokenizer that puts nothing between two texts, or a limit without room for both.
        """
        encoding = self.tokenizer("a", "b", return_token_type_ids=True)
        texts, types, tokens = encoding.sequence_ids(0), encoding["token_type_ids"], " ".join(encoding.tokens())
        first, second, specials = texts.index(0), texts.index(1), texts.count(None)
        if texts[second - 1] is not None:
            raise InvalidValueError(
                f"pairing OneSequence: expected a tokenizer that puts special tokens between two texts, got "
                f"{tokens}; take another tokenizer, or pairing: Given"
            )
        if self.max_length is not None and self.max_length < specials + 2:
            raise InvalidValueError(
                f"max_length: expected room for a token of each text beside the {specials} special tokens "
                f"of a pair, got {self.max_length}"
            )
        said = f"token types {types[first]} and {types[second]}" if any(types) else "no token types"
        return f"{tokens}, {said}"

    def pair_rows(self, pairs: Sequence[TextPair]) -> list[TextRow]:
        """Returns the row of each two texts; of texts that are too long the longer one is cut first."""
        if not pairs or not self.pair_template:  # which is checked
            return []
        encoding = self._encode(
            [pair.first for pair in pairs],
            text_pair=[pair.second for pair in pairs],
            truncation=self.max_length is not None,
            max_length=self.max_length,
            add_special_tokens=True,
            return_token_type_ids=True,
        )
        each = zip(encoding["input_ids"], encoding["token_type_ids"], strict=True)
        return [
            TextRow(ids, truncated=bool(encoding[i].overflowing), types=types if any(types) else None)
            for i, (ids, types) in enumerate(each)
        ]

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
            return self.pair_rows([text])[0].truncated
        (framed,) = self.framed([text], frame)
        return self.room is not None and len(framed.tokens) > self.room - self.taken(framed)

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
        prefix, suffix = (*self.prefix, *before), (*after, *self.suffix)
        start, end = len(prefix), len(suffix)
        ids = (*prefix, *tokens.ids, *suffix)
        positions, labels = tokens.positions, tokens.labels
        if positions is not None:
            moved = (start + position for position in positions)
            positions = (*range(start), *moved, *range(len(ids) - end, len(ids)))
        return Tokens(
            ids=ids,
            words=(NO_WORD,) * start + tokens.words + (NO_WORD,) * end,
            positions=positions,
            labels=None if labels is None else (NO_LABEL,) * start + labels + (NO_LABEL,) * end,
        )


def single_threaded_tokenizers() -> None:
    """Keeps the tokenizers library from starting threads of its own, before worker processes are forked."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
