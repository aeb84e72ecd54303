"""Consecutive texts of a document as one row, up to so many tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.files.readers import Table
from contrastive_text.data.token_cache import tokenize_documents
from contrastive_text.data.tokenizing import TextTokenizer


def joined(
    table: Table,
    limit: int,
    tokenizer: TextTokenizer,
    cache_dir: Path | None,
    where: str,
    cut: bool = True,
    taken: int = 0,
) -> Table:
    """Returns a table whose rows are consecutive texts of a document, joined by blanks, and says how many.

    As RoBERTa's pretraining does within documents (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section
    4.2, DOC-SENTENCES): no row goes over the end of a file, or of what a blank line of it ends. A row takes as
    many texts as fit, in their order; a longer text stands alone, to be cut. The tokens that are counted are
    cached as those of documents are: 73,000 sentences take 7 s of one core, and 0.5 s when they are found there.

    Args:
        table: Single texts without labels.
        limit: Tokens of a row, special ones included.
        tokenizer: The encoder's, which splits texts at blanks before all else.
        cache_dir: Folder of the cache; None for the usual one.
        where: The option, for errors.
        taken: Tokens of a row that a prompt takes.
        cut: Whether rows are cut at the encoder's limit; documents that spans are taken of are not.

    Raises:
        ValueError: Other columns than ``text``, no room beside the special tokens, or rows that would be cut.
    """
    if set(table[0]) != {"text"}:
        raise InvalidValueError(
            f"{where}: expected single texts without labels, got rows of {', '.join(table[0])}; leave join "
            "out, or take a pairing and objectives that read text alone"
        )
    room = limit - tokenizer.specials - taken
    most = tokenizer.max_length if cut else None
    if room < 1 or (most is not None and limit > most):
        raise InvalidValueError(
            f"{where}: expected more than the {tokenizer.specials} special tokens"
            f"{'' if most is None else f' and at most the max_length of the encoder, {most}'}, got {limit}; "
            "longer rows are cut"
        )
    texts = [str(row["text"]) for row in table]
    inside = tokenize_documents([f" {text.strip()}" for text in texts], tokenizer, cache_dir).lengths.tolist()
    documents = [
        list(_rows(texts[end - size : end], inside[end - size : end], room, tokenizer))
        for end, size in zip(accumulate(table.sizes), table.sizes, strict=True)
    ]
    rows = tuple({"text": text} for document in documents for text in document)
    long = sum(length > room for length in inside)
    said = f"joined: {len(rows):,} rows of up to {limit} tokens, from {len(texts):,} texts in {len(documents):,} "
    said += f"documents, {long:,} of them longer and alone"
    sizes, understood = tuple(map(len, documents)), f"{table.understood}\n{said}"
    return replace(table, rows=rows, sizes=sizes, files=(), understood=understood, digest="")


def _rows(texts: Sequence[str], inside: Sequence[int], room: int, tokenizer: TextTokenizer) -> Iterator[str]:
    """Yields the rows of one document, from the tokens that each text has after a blank."""
    row: list[str] = []
    taken = 0
    for text, length in zip(texts, inside, strict=True):
        if row and taken + length <= room:
            row.append(text.strip())
            taken += length
            continue
        if row:
            yield " ".join(row)
        row = [text.rstrip()]
        # Without the blank a byte-level tokenizer may need another number of tokens.
        taken = len(tokenizer.ids(row)[0])
    yield " ".join(row)
