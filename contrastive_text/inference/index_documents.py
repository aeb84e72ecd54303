"""Documents of an index: ids, texts, metadata and passages, given in Python or read from a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, two_numbers
from contrastive_text.core.storage.text_files import is_blank, lone_surrogate
from contrastive_text.core.types import NO_WORD
from contrastive_text.data import TextTokenizer
from contrastive_text.data.files.readers import Summary, TextsDigest, TextStream
from contrastive_text.data.prompts import DOCUMENT
from contrastive_text.inference.embedding_run import finished_rows
from contrastive_text.inference.encoding import progress_bar
from contrastive_text.inference.late_chunks import Span, check_late_chunks
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Array

WHOLE: Span = (-1, -1)
"""Span of a vector that encodes a whole text."""
_BLOCK = 256
"""Number of documents that are tokenized together."""


class Document(NamedTuple):
    """Document of an index.

    Args:
        id: Its id.
        text: Its text.
        metadata: JSON of its metadata; None if it has none.
        spans: Spans of its passages, each with a vector.

    Example:
        >>> Document("b1", "the dog runs, a bird sings", spans=[(0, 13), (14, 26)]).passages
        ['the dog runs,', 'a bird sings']
    """

    id: str
    text: str
    metadata: str | None = None
    spans: Sequence[Span] = (WHOLE,)

    @property
    def passages(self) -> list[str]:
        """Text of each passage."""
        return [self.text if span == WHOLE else self.text[slice(*span)] for span in self.spans]


def check_documents(
    texts: Sequence[str],
    ids: Sequence[str | int] | None,
    metadata: Sequence[Mapping[str, object] | None] | None,
) -> list[Document]:
    """Checks new documents before they are encoded. Without ids, each id is empty.

    Raises:
        TypeError: A text is not a string, or an id is neither a string nor a whole number.
        ValueError: There is no text; a text is blank; the numbers of texts, ids and metadata differ; an id occurs
            twice; or metadata isn't JSON.

    Example:
        >>> check_documents(["a bird"], [7], [{"year": 2020}])
        [Document(id='7', text='a bird', metadata='{"year": 2020}', spans=((-1, -1),))]
    """
    if isinstance(texts, str):
        raise InvalidTypeError("texts: expected a list of texts, got one string; put it into a list")
    texts = list(texts)
    if not texts:
        raise InvalidValueError("texts: expected at least one text, got an empty list; give texts")
    for name, values in (("ids", ids), ("metadata", metadata)):
        if values is not None and len(values) != len(texts):
            raise InvalidValueError(
                f"{name}: expected {len(texts):,}, one for each text, got {len(values):,}; give as many"
            )
    for place, text in enumerate(texts):
        check_text(text, f"texts: text {place}")
    names = [""] * len(texts) if ids is None else parse_ids(ids)
    return [
        Document(name, text, format_metadata(content, f"metadata: document {place}"))
        for place, (name, text, content) in enumerate(
            zip(names, texts, metadata or [None] * len(texts), strict=True)
        )
    ]


def check_text(text: object, where: str) -> None:
    """Checks that a text is a string with a visible character, which UTF-8 can represent.

    Raises:
        TypeError: It is not a string.
        ValueError: It is blank, or UTF-8 can't represent it.
    """
    if not isinstance(text, str):
        raise InvalidTypeError(f"{where}: expected a string, got {type(text).__name__}; give texts")
    if is_blank(text):
        raise InvalidValueError(f"{where}: expected a visible character, got {text[:60]!r}; remove the text")
    if (surrogate := lone_surrogate(text)) is not None:
        raise InvalidValueError(f"{where}: expected a text that UTF-8 can hold, got {surrogate}; correct it")


def parse_id(value: object, where: str = "ids") -> str:
    """Returns the id of a document as a string. ``where`` is the first word of errors.

    Raises:
        TypeError: It is neither a string nor a whole number.
        ValueError: It is blank, or UTF-8 can't represent it.

    Example:
        >>> parse_id(7), parse_id("b1")
        ('7', 'b1')
    """
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise InvalidTypeError(
            f"{where}: expected ids that are strings or whole numbers, got {str(value)[:60]!r} of "
            f"{type(value).__name__}; convert it"
        )
    name = str(value)
    check_text(name, f"{where}: id")
    return name


def parse_ids(ids: Iterable[object]) -> list[str]:
    """Returns the ids of documents as strings, after checking that there is one and that none occurs twice.

    Raises:
        TypeError: An id is neither a string nor a whole number.
        ValueError: There is no id, or one occurs twice or is blank.
    """
    if isinstance(ids, str | int):
        raise InvalidTypeError(f"ids: expected a list of ids, got {ids!r}; put it into a list")
    names = list(map(parse_id, ids))
    if not names:
        raise InvalidValueError("ids: expected at least one id, got an empty list; give ids")
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InvalidValueError(f"ids: expected each id once, got {name!r} {count} times; give each id once")
    return names


def format_metadata(content: object, where: str) -> str | None:
    """Returns metadata as JSON; None for None.

    Raises:
        ValueError: It is not a mapping, or JSON changes it or can't store it.

    Example:
        >>> format_metadata({"year": 2020, "tags": ["new"]}, "metadata")
        '{"year": 2020, "tags": ["new"]}'
    """
    if content is None:
        return None
    got, text = type(content).__name__, None
    if isinstance(content, Mapping):
        try:
            text = json.dumps(dict(content), ensure_ascii=False, allow_nan=False)
            text.encode()
            got = "" if json.loads(text) == dict(content) else "values that JSON would change, such as a tuple"
        except (TypeError, ValueError, RecursionError) as error:
            got = str(error)[:200]
    if got:
        raise InvalidValueError(
            f"{where}: expected a mapping of names to values of JSON, got {got}; use texts, finite numbers, "
            "true, false, None, lists and mappings"
        )
    return text


def parse_metadata(document: Document) -> Mapping[str, object]:
    """Returns the metadata of a stored document; empty if it has none.

    Raises:
        ValueError: It is not a JSON mapping, because the database was changed.
    """
    if document.metadata is None:
        return {}
    try:
        content = json.loads(document.metadata)
    except (ValueError, RecursionError) as error:
        content = error
    if not isinstance(content, dict):
        raise InvalidValueError(
            f"document {document.id!r}: expected metadata as a JSON mapping, got {str(content)[:60]!r}; build "
            "the index again"
        )
    return content


def read_documents(texts: TextStream, has_ids: bool) -> Iterator[Document]:
    """Reads documents from a file of texts, whose further columns are the id and metadata.

    Args:
        texts: The texts with their further columns.
        has_ids: Whether the first further column is the id. Otherwise ids are numbers from 0.

    Raises:
        TypeError: An id is neither a string nor a whole number.
        ValueError: An id is blank or occurs twice, metadata isn't JSON, or the texts have changed since they were
            read before.
    """
    before = texts.summary
    names = texts.columns[has_ids:]
    seen: set[str] = set()
    for number, (line, text, cells) in enumerate(texts.records()):
        where = f"{texts.path}:{line}"
        name = parse_id(cells[0], where) if has_ids else str(number)
        if has_ids and name in seen:
            raise InvalidValueError(
                f"{texts.path}: expected each id once, got {name!r} twice; name another id column"
            )
        if has_ids:
            seen.add(name)
        metadata = dict(zip(names, cells[has_ids:], strict=True)) or None
        yield Document(name, text, format_metadata(metadata, where))
    if before is not None and before != texts.summary:
        raise InvalidValueError(
            f"{texts.path}: expected the texts that were encoded, got a changed file; run the command again"
        )


_LATE = "/late"
"""End of the text of a window whose passages are pooled from the document."""


@dataclass(frozen=True, slots=True)
class Window:
    """Size of the passages of a document in tokens, without special tokens and prompt.

    A passage begins and ends between two words, so it may have fewer tokens. Only a word that is longer than the
    window is split.

    Args:
        tokens: Largest number of tokens of a passage.
        overlap: Number of tokens that a passage shares with the next one.
        late: Whether the document is encoded once and its passages are pooled from it
            (``SentenceEncoder.encode_spans``). Otherwise each passage is encoded alone.

    Raises:
        ValueError: ``tokens`` is below 1, or ``overlap`` is not below ``tokens``.

    Example:
        >>> Window.parse("128/32/late")
        Window(tokens=128, overlap=32, late=True)
        >>> from contrastive_text.data import TextTokenizer, learn_vocabulary
        >>> tokenizer = TextTokenizer(learn_vocabulary(["a bird sings"], 60), max_length=None)
        >>> list(Window(tokens=2, overlap=1).spans(tokenizer, ["a bird sings"]))
        [[(0, 6), (2, 12)]]
    """

    tokens: int
    overlap: int = 0
    late: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < self.tokens:
            raise InvalidValueError(
                f"passages: expected tokens and a smaller overlap, such as 128/32, got {self}; give "
                "another window"
            )

    def __str__(self) -> str:
        return f"{self.tokens}/{self.overlap}{_LATE if self.late else ''}"

    @classmethod
    def parse(cls, word: str) -> Self:
        """Parses the text of a window, such as ``128/32`` or ``128/32/late``.

        Raises:
            ValueError: The text has another form, or a number is out of range.
        """
        expected = "passages: expected TOKENS/OVERLAP, such as 128/32, or 128/32/late"
        return cls(*two_numbers(expected, word.removesuffix(_LATE)), late=word.endswith(_LATE))

    def check(self, model: SentenceEncoder) -> None:
        """Checks that a model encodes a whole passage.

        Raises:
            ValueError: The passage, with special tokens and prompt, exceeds the length limit of documents; or
                the model can't pool passages from a document.
        """
        if self.late:
            check_late_chunks(model.parts)
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

    def spans(self, tokenizer: TextTokenizer, texts: Iterable[str]) -> Iterator[list[Span]]:
        """Yields the spans of the passages of each text. A text of at most ``tokens`` tokens is one passage."""
        rest = iter(texts)
        while block := list(islice(rest, _BLOCK)):
            for text, tokens in zip(block, tokenizer.token_spans(block), strict=True):
                yield self._spans(tokens) if len(tokens) > self.tokens else [(0, len(text))]

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


def split_documents(
    documents: Iterable[Document], window: Window | None, tokenizer: TextTokenizer
) -> Iterator[Document]:
    """Yields documents with the spans of their passages; without a window, unchanged documents.

    Args:
        documents: Documents without passages.
        window: Size of the passages; None if each text has one vector.
        tokenizer: Tokenizer of the model.
    """
    if window is None:
        yield from documents
        return
    documents, again = tee(documents)
    all_spans = window.spans(tokenizer, (document.text for document in again))
    for document, spans in zip(documents, all_spans, strict=True):
        yield document._replace(spans=spans)


def late_chunk_rows(
    model: SentenceEncoder,
    documents: Callable[[], Iterable[Document]],
    path: Path,
    batch_size: int,
) -> Array:
    """Encodes the spans of many documents to a working file of vectors, (n, D), which is continued if it exists.

    Args:
        model: The model.
        documents: Function that returns the documents with their spans, the same in each call.
        path: The file, ``.npy``.
        batch_size: Number of documents that are encoded together.
    """
    digest, count = TextsDigest(), 0
    for document in documents():
        digest.add(f"{document.text}\0{document.spans}".encode())
        count += len(document.spans)
    origin = {"model": model.identity, "spans": digest.hexdigest(), "batch_size": batch_size}

    def blocks(done: int) -> Iterator[tuple[Array, int]]:
        rest, skipped = iter(documents()), 0
        with progress_bar(range(digest.count), is_shown=True) as advance:
            while block := list(islice(rest, batch_size)):
                advance(len(block))
                if skipped < done:  # a block is on the disk as a whole, or not at all
                    skipped += sum(len(document.spans) for document in block)
                    continue
                texts, spans = [document.text for document in block], [document.spans for document in block]
                yield np.concatenate(model.encode_spans(texts, spans, batch_size)), 0

    return finished_rows(path, origin, count, blocks)


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
        texts, again = tee(self.texts.numbered())
        all_spans = self.window.spans(self.tokenizer, (text for _, text in again))
        for (line, text), spans in zip(texts, all_spans, strict=True):
            for start, end in spans:
                digest.add(text[start:end].encode())
                yield line, text[start:end]
        assert self.texts.summary is not None
        self.summary = Summary(digest.count, digest.hexdigest(), self.texts.summary.description)
