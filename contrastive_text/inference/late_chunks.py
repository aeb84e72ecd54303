"""Late chunks: vectors of spans of a document, pooled from one pass of the network over the document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Context
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Tokens
from contrastive_text.data import TextTokenizer
from contrastive_text.data.batching import build_row, collate_rows
from contrastive_text.data.tokenizing import TemplatedText
from contrastive_text.encoders.shared_use import shared_network
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.vector_files import Array
from contrastive_text.poolers import pools_tokens

Span: TypeAlias = tuple[int, int]
"""First character and end of a part of a text."""


class _Window(NamedTuple):
    """Part of a text that is one row of the network, and the spans in it.

    Args:
        text: Number of the text.
        tokens: Tokens of the part.
        spans: Number of each span in its text, and its tokens in the part.
    """

    text: int
    tokens: Tokens
    spans: list[tuple[int, range]]


def check_late_chunks(model: ModelParts) -> None:
    """Checks that a model can pool the tokens of a span.

    Raises:
        ValueError: The pooler reads a token at a fixed place, or the encoder gives vectors of texts.
    """
    pooler = model.pooler
    assert pooler is not None
    if model.encoder.pools or not pools_tokens(pooler) or not model.prompts.pooled:
        raise InvalidValueError(
            f"encode_spans: expected a pooler of all tokens of a span, such as MeanPooler, got "
            f"{type(pooler).__name__}{'' if model.prompts.pooled else ' without the tokens of the prompt'}; "
            "encode each span as a text"
        )


def encode_late_chunks(
    network: nn.Module,
    model: ModelParts,
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    batch_size: int,
    normalize: bool,
    width: int,
) -> list[Array]:
    """Encodes spans of texts; see ``SentenceEncoder.encode_spans``.

    Args:
        network: The model, from a batch of S rows to vectors, (S, D).
        model: Parts of the model.
        tokenizer: Tokenizer with the length limit of documents.
        texts: N documents.
        spans: Spans of each document.
        batch_size: Number of documents of a batch.
        normalize: Whether to scale vectors to unit length.
        width: Number of first features to keep.
    """
    if len(texts) != len(spans):
        raise InvalidValueError(f"encode_spans: expected spans for each of {len(texts)} texts, got {len(spans)}")
    check_late_chunks(model)
    template = model.prompts.template(model.prompts.for_kind("document"), tokenizer)
    tokenizer.check_template(template, "encode_spans.prompt")
    around = tokenizer.tokenize_with_template(["a"], template)[0]
    windows = list(_windows(texts, spans, tokenizer, around))
    windows.sort(key=lambda window: -len(window.tokens))  # batches of similar lengths
    found = [np.zeros((len(each), width), dtype=np.float32) for each in spans]
    with shared_network(network) as shared, torch.no_grad():
        for start in range(0, len(windows), batch_size):
            part = windows[start : start + batch_size]
            vectors = _encode(shared, part, tokenizer, around)[:, :width]
            if normalize:
                vectors = nn.functional.normalize(vectors, dim=-1)
            places = [(window.text, number) for window in part for number, _ in window.spans]
            for (text, number), vector in zip(places, vectors.cpu().numpy(), strict=True):
                found[text][number] = vector
    return found


def _encode(
    network: nn.Module, windows: Sequence[_Window], tokenizer: TextTokenizer, around: TemplatedText
) -> Tensor:
    """Encodes the windows of a batch, and returns the vectors of their spans in order."""
    rows = [build_row(around._replace(tokens=window.tokens), tokenizer) for window in windows]
    first = len(tokenizer.prefix) + len(around.before)
    spans = [span for window in windows for _, span in window.spans]
    context = Context(
        rows=collate_rows(tokenizer, rows),
        numbers=torch.repeat_interleave(torch.tensor([len(window.spans) for window in windows])),
        starts=torch.tensor([span.start + first for span in spans]),
        lengths=torch.tensor([len(span) for span in spans]),
    )
    texts = [window.tokens.take(span) for window in windows for _, span in window.spans]
    batch = collate_rows(tokenizer, [build_row(TemplatedText(text), tokenizer) for text in texts])
    device = next(network.parameters()).device
    vectors: Tensor = network(batch.replace(context=context).to(device))
    return vectors


def _windows(
    texts: Sequence[str], spans: Sequence[Sequence[Span]], tokenizer: TextTokenizer, around: TemplatedText
) -> Iterator[_Window]:
    """Yields the windows of texts: a whole text, or parts of a text that is longer than a row.

    A part begins at the first span that is in no earlier part, and has as many tokens as a row takes.
    """
    taken = tokenizer.template_length(around)
    for number, (text, tokens, places) in enumerate(
        zip(texts, tokenizer(list(texts)), tokenizer.token_spans(list(texts)) if texts else [], strict=True)
    ):
        inside = [_tokens_of(text, span, places, number) for span in spans[number]]
        room = len(tokens) if tokenizer.room is None else tokenizer.room - taken
        waiting = sorted(range(len(inside)), key=lambda i: inside[i].start)
        while waiting:
            start = 0 if len(tokens) <= room else inside[waiting[0]].start
            window = range(start, min(start + room, len(tokens)))
            fitting = [i for i in waiting if inside[i].start >= start and inside[i].stop <= window.stop]
            if not fitting:
                first, end = spans[number][waiting[0]]
                raise InvalidValueError(
                    f"encode_spans: expected spans of at most {room:,} tokens, the length of a row, got "
                    f"{len(inside[waiting[0]]):,} from character {first} to {end} of text {number}; split it"
                )
            members = [(i, range(inside[i].start - start, inside[i].stop - start)) for i in fitting]
            yield _Window(number, tokens.take(window), members)
            waiting = [i for i in waiting if i not in fitting]


def _tokens_of(text: str, span: Span, places: Sequence[tuple[int, int, int]], number: int) -> range:
    """Returns the tokens of a text that have a character of a span."""
    start, end = span
    if not 0 <= start < end <= len(text):
        raise InvalidValueError(
            f"encode_spans: expected spans inside the {len(text):,} characters of text {number}, got {start} to "
            f"{end}; give first character and end"
        )
    inside = [i for i, (first, stop, _) in enumerate(places) if first < end and stop > start]
    if not inside:
        raise InvalidValueError(
            f"encode_spans: expected a token in each span, got {text[start:end]!r} from character {start} of "
            f"text {number}; leave it out"
        )
    return range(inside[0], inside[-1] + 1)
