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
    MASK_PLACEHOLDER,
    NO_LABEL,
    NO_TEMPLATE,
    NO_WORD,
    Template,
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
    """Trains a lower-casing WordPiece vocabulary on a corpus, with the layout of BERT's.

    Equal corpora give equal vocabularies in every process.

    Args:
        texts: The corpus.
        vocabulary_size: Largest number of entries, including the five special tokens.
        new_tokens: Further special tokens, such as ``[DEL]``.

    Raises:
        ValueError: The vocabulary is too small for the characters of the corpus.

    Returns:
        A tokenizer that puts [CLS] before and [SEP] after a text. A second text is followed by another [SEP], and
        its tokens have type 1.

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
    # WordPiece always keeps its alphabet, each character twice: at the start of a word and inside a word.
    room = max((vocabulary_size - len(specials)) // 3, 1)
    alphabet = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:room])
    # The trainer numbers pieces inside words in the order of a hash map, which differs between processes, and
    # breaks ties by number. Passed as special tokens they have fixed numbers.
    ordered_tokens = [*specials, *alphabet, *(f"##{character}" for character in alphabet)]
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer, trained.pre_tokenizer = normalizer, words
    trained.train_from_iterator(
        corpus,
        trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            special_tokens=ordered_tokens,
            show_progress=False,
        ),
    )
    tokenizer = Tokenizer(models.WordPiece(trained.get_vocab(), unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, words
    tokenizer.add_special_tokens(specials)
    if tokenizer.get_vocab_size() > vocabulary_size:
        raise InvalidValueError(
            f"encoder.config.vocab_size: expected room for the corpus's characters, at least "
            f"{tokenizer.get_vocab_size()}, got {vocabulary_size}; give a larger vocab_size"
        )
    special_ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special_ids
    )
    return wrap_tokenizer(tokenizer.to_str())


def wrap_tokenizer(description: str) -> PreTrainedTokenizerFast:
    """Rebuilds a trained tokenizer from its JSON, as stored in a checkpoint."""
    tokenizer = Tokenizer.from_str(description)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIALS)  # type: ignore[no-untyped-call]  # theirs


class TextRow(NamedTuple):
    """Token ids of one row of a batch. A smaller record than ``Tokens``, because a batch has thousands of rows.

    Args:
        ids: Token ids of the row, including special tokens.
        truncated: Whether the text was truncated.
        text_ids: Token ids of the text without its template and special tokens; None for a text without a
            template.
        positions: Positions of the tokens, as in ``Tokens``.
        types: Token type of each token: first or second text.
        labels: Ids to predict, as in ``Tokens``.
        around: Number of tokens of the row before and after the text, including special tokens.
    """

    ids: Sequence[int]
    truncated: bool
    text_ids: Sequence[int] | None = None
    positions: Sequence[int] | None = None
    types: Sequence[int] | None = None
    labels: Sequence[int] | None = None
    template_lengths: tuple[int, int] | None = None


class TemplatedText(NamedTuple):
    """Tokens of a text, with the tokens of its prompt or template.

    Args:
        tokens: Tokens of the text, uncut and without special tokens.
        before: Token ids of the template before the text.
        after: Token ids of the template after the text.
        counted: Whether the length limit includes the template.
    """

    tokens: Tokens
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    counted: bool = True

    @property
    def length(self) -> int:
        """Number of tokens of text and template, without special tokens."""
        return len(self.before) + len(self.tokens) + len(self.after)


class TextTokenizer:
    """Wrapper of a fast tokenizer that adds templates and special tokens, and truncates rows to a length limit.

    Args:
        tokenizer: A fast tokenizer.
        max_length: Largest number of tokens of a row, including special tokens; None for no limit.
        spare: Number of tokens by which views, or a template that isn't counted, may exceed the limit; None for
            any.

    Raises:
        ValueError: The limit leaves no room for a token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int | None, spare: int | None = 0) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.spare = spare
        text_ids = self._ids("a")
        encoding = tokenizer("a", return_attention_mask=False)
        row_ids: list[int] = encoding["input_ids"]
        start = next((i for i in range(len(row_ids)) if row_ids[i : i + len(text_ids)] == text_ids), 0)
        self.prefix = tuple(row_ids[:start])
        self.suffix = tuple(row_ids[start + len(text_ids) :])
        types: list[int] = encoding.get("token_type_ids") or []
        self._types = (types[:start], types[start], types[start + len(text_ids) :]) if any(types) else None
        room = None if max_length is None else max_length - len(self.prefix) - len(self.suffix)
        if room is not None and room < 1:
            raise InvalidValueError(
                "max_length: expected room for a token in addition to the "
                f"{len(self.prefix) + len(self.suffix)} special tokens, got {max_length}"
            )
        self.room = room

    def vocabulary(self, new_tokens: Sequence[str] = ()) -> Vocabulary:
        """Returns the facts about the tokenizer that views may use.

        Args:
            new_tokens: Tokens that views have requested.
        """
        table = self.tokenizer.get_vocab()
        if missing := [token for token in new_tokens if token not in table]:
            raise InvalidValueError(
                f"views: expected a vocabulary with {', '.join(missing)}, got a learned vocabulary without "
                f"them; start a new run, or remove the views that need them"
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
        """Returns the token types of a row of one text; None if all are 0, or the tokenizer has no types.

        Args:
            length: Number of tokens of the row, including special tokens.
        """
        if self._types is None:
            return None
        before, inside, after = self._types
        return [*before, *([inside] * (length - len(before) - len(after))), *after]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._encode([text])["input_ids"][0]
        return ids

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenizes texts, uncut and without special tokens."""
        if not texts:
            return []
        encoding = self._encode(texts)
        words = (encoding.word_ids(i) for i in range(len(texts)))
        return [
            Tokens(ids=tuple(ids), words=tuple(NO_WORD if word is None else word for word in row))
            for ids, row in zip(encoding["input_ids"], words, strict=True)
        ]

    def tokenize_with_template(
        self, texts: Sequence[str], template: Template = NO_TEMPLATE, with_words: bool = True
    ) -> list[TemplatedText]:
        """Tokenizes texts with a template, uncut and without special tokens.

        By default text and template are one string for the tokenizer, as in sentence-transformers. A token that
        spans the string before and the text, such as a blank and a word, belongs to the text. A token that spans
        the text and the string after belongs to the latter. With ``apart`` each is tokenized separately, as in
        PromptBERT.

        Args:
            texts: The texts.
            template: Template of each text.
            with_words: Whether word numbers are needed. Without them tokenization takes half the time. If a
                template is one string with the text, they are computed anyway.

        Example:
            >>> from contrastive_text.data import learn_vocabulary
            >>> tokenizer = TextTokenizer(learn_vocabulary(["query: a bird"], 60), max_length=None)
            >>> (templated,) = tokenizer.tokenize_with_template(["a bird"], Template("query: "))
            >>> [tokenizer.tokenizer.decode(list(ids)) for ids in (templated.before, templated.tokens.ids)]
            ['query :', 'a bird']
        """
        if not texts:
            return []
        if MASK_PLACEHOLDER in template.before + template.after:
            mask = self.tokenizer.mask_token
            if mask is None:
                raise InvalidValueError(
                    f"{template.before + template.after!r}: expected a vocabulary with a mask token for "
                    f"{MASK_PLACEHOLDER}, got one without; use another encoder, or another template"
                )
            template = template._replace(
                before=template.before.replace(MASK_PLACEHOLDER, mask),
                after=template.after.replace(MASK_PLACEHOLDER, mask),
            )
        if not template or template.tokenized_apart:
            before, after = (tuple(self._ids(part)) if part else () for part in template[:2])
            token_lists = (
                self(texts)
                if with_words
                else [Tokens(ids=tuple(ids), words=(NO_WORD,) * len(ids)) for ids in self.ids(texts)]
            )
            return [TemplatedText(tokens, before, after, template.counts_to_limit) for tokens in token_lists]
        start = len(template.before)
        encoding = self._encode([f"{template.before}{text}{template.after}" for text in texts])
        templated_texts = []
        for i, text in enumerate(texts):
            ids, words = tuple(encoding["input_ids"][i]), encoding.word_ids(i)
            ends = [end for _, end in encoding[i].offsets]
            begin = bisect_right(ends, start) if start else 0
            stop = max(bisect_right(ends, start + len(text)), begin) if template.after else len(ids)
            first = next((word for word in words[begin:stop] if word is not None), 0)
            word_numbers = tuple(NO_WORD if word is None else word - first for word in words[begin:stop])
            templated_texts.append(
                TemplatedText(
                    Tokens(ids[begin:stop], word_numbers), ids[:begin], ids[stop:], template.counts_to_limit
                )
            )
        return templated_texts

    def template_length(self, template: Template | TemplatedText) -> int:
        """Returns the number of tokens by which a template shortens the text."""
        if isinstance(template, Template):
            return self.template_length(self.tokenize_with_template(["a"], template)[0]) if template else 0
        tokens = len(template.before) + len(template.after)
        if template.counted:
            return tokens
        return 0 if self.spare is None else max(tokens - self.spare, 0)

    def check_template(self, template: Template, where: str) -> None:
        """Checks that a template leaves room for at least one token of the text.

        Args:
            template: The template.
            where: Name of its option, for the error.

        Raises:
            ValueError: The template takes the whole row.
        """
        if self.room is None or self.template_length(template) < self.room:
            return
        spare = 0 if template.counts_to_limit else self.spare or 0
        spare_note = f" and the {spare} beyond it" if spare else ""
        raise InvalidValueError(
            f"{where}: expected fewer tokens than the {self.room + spare} that max_length {self.max_length}"
            f"{spare_note} leaves for a text and its template, got "
            f"{self.template_length(template._replace(counts_to_limit=True))} of "
            f"{template.before + template.after!r}; shorten it, or raise max_length"
        )

    def count_unpooled(self, prompt: str) -> int:
        """Returns the number of tokens at the start of a row that a pooler skips, if it doesn't read the prompt.

        These are the tokens of the prompt alone and the special tokens before it, counted as in
        sentence-transformers. A blank at its end counts as a token even if the tokenizer joins it to the next
        word, whose first token is then skipped.
        """
        return (
            len(self.prefix)
            + len(self.tokenize_with_template([""], Template(prompt, tokenized_apart=True))[0].before)
            if prompt
            else 0
        )

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text, uncut and without special tokens: ``__call__`` without words."""
        ids: list[list[int]] = self._encode(texts)["input_ids"] if texts else []
        return ids

    def token_spans(self, texts: Sequence[str]) -> list[list[tuple[int, int, int]]]:
        """Returns first character, end and word number of each token of each text, without special tokens."""
        encoding = self._encode(texts, return_offsets_mapping=True)
        words = (encoding.word_ids(i) for i in range(len(texts)))
        return [
            [
                (start, end, NO_WORD if word is None else word)
                for (start, end), word in zip(row, numbers, strict=True)
            ]
            for row, numbers in zip(encoding["offset_mapping"], words, strict=True)
        ]

    def _encode(self, texts: Sequence[str], **options: Any) -> BatchEncoding:  # Any: those of the tokenizer
        options = {"add_special_tokens": False, "return_token_type_ids": False, **options}
        try:
            # Without the warning about long texts, which are truncated and counted later.
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
        """Decodes tokens to a string. A string is returned unchanged; two strings are joined by a bar."""
        if isinstance(text, TextPair):
            return f"{text.first} | {text.second}"
        return text if isinstance(text, str) else str(self.tokenizer.decode(list(text.ids)))

    @cached_property
    def pair_template(self) -> str:
        """Template of two texts in one row, such as ``[CLS] a [SEP] b [SEP], token types 0 and 1``.

        BERT has ``[CLS] first [SEP] second [SEP]`` with types 0 and 1, RoBERTa ``<s> first </s></s> second </s>``
        without types.

        Raises:
            ValueError: The tokenizer puts no special token between two texts, or the limit has no room for both.
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
                f"max_length: expected room for a token of each text in addition to the {specials} special "
                f"tokens of a pair, got {self.max_length}"
            )
        type_note = f"token types {types[first]} and {types[second]}" if any(types) else "no token types"
        return f"{tokens}, {type_note}"

    def pair_rows(self, pairs: Sequence[TextPair]) -> list[TextRow]:
        """Returns the token row of each text pair: both texts with special tokens.

        If a pair is too long, the longer text is truncated first.
        """
        if not pairs or not self.pair_template:  # which checks the tokenizer
            return []
        encoding = self._encode(
            [pair.first for pair in pairs],
            text_pair=[pair.second for pair in pairs],
            truncation=self.max_length is not None,
            max_length=self.max_length,
            add_special_tokens=True,
            return_token_type_ids=True,
        )
        rows = zip(encoding["input_ids"], encoding["token_type_ids"], strict=True)
        return [
            TextRow(ids, truncated=bool(encoding[i].overflowing), types=types if any(types) else None)
            for i, (ids, types) in enumerate(rows)
        ]

    def truncate(self, tokens: Tokens, taken: int = 0, altered: bool = False) -> Tokens:
        """Truncates a text's tokens at the end, to the number of tokens that fit into the row.

        Args:
            tokens: Tokens of a text.
            taken: Number of tokens of the template in the row, without special tokens.
            altered: Whether views have altered the tokens, and may exceed the limit by ``spare``.
        """
        spare = self.spare if altered else 0
        room = None if self.room is None or spare is None else max(self.room + spare - taken, 0)
        return tokens if room is None or len(tokens) <= room else tokens.take(range(room))

    def is_truncated(self, text: str | TextPair, template: Template = NO_TEMPLATE) -> bool:
        """Returns whether the length limit truncates a text, or one of two texts in a sequence."""
        if isinstance(text, TextPair):
            return self.pair_rows([text])[0].truncated
        (templated,) = self.tokenize_with_template([text], template)
        return self.room is not None and len(templated.tokens) > self.room - self.template_length(templated)

    @property
    def specials(self) -> int:
        """Number of special tokens of a row."""
        return len(self.prefix) + len(self.suffix)

    def with_specials(self, tokens: Tokens, before: Sequence[int] = (), after: Sequence[int] = ()) -> Tokens:
        """Adds special tokens and the ids of a template to the tokens of a text.

        Positions that a view has set keep their order after the prefix.

        Args:
            tokens: Tokens of a text.
            before: Token ids of the template before the text. They belong to no word.
            after: Token ids of the template after the text.
        """
        prefix, suffix = (*self.prefix, *before), (*after, *self.suffix)
        start, end = len(prefix), len(suffix)
        ids = (*prefix, *tokens.ids, *suffix)
        positions, labels = tokens.positions, tokens.labels
        if positions is not None:
            shifted = (start + position for position in positions)
            positions = (*range(start), *shifted, *range(len(ids) - end, len(ids)))
        return Tokens(
            ids=ids,
            words=(NO_WORD,) * start + tokens.words + (NO_WORD,) * end,
            positions=positions,
            labels=None if labels is None else (NO_LABEL,) * start + labels + (NO_LABEL,) * end,
        )


def single_threaded_tokenizers() -> None:
    """Prevents the tokenizers library from starting threads before worker processes are forked."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
