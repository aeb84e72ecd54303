"""How many texts and spans the length limit cuts, counted before the first step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from contrastive_text.core.random import fold_each, generator
from contrastive_text.core.types import Frame, TextPair
from contrastive_text.data.collator import PAIRING, row_keys
from contrastive_text.data.sampler import Rows
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing

_SAMPLE = 1000
"""Rows or documents that are counted, where there are more."""


def sample_rows(sizes: Sequence[int], seed: int) -> list[list[int]]:
    """Returns which rows of each task are looked at, in the file's order: a thousand of all together at most.

    Args:
        sizes: Rows of each task.
        seed: Of the draw.

    Example:
        >>> sample_rows([3, 2], seed=0)
        [[0, 1, 2], [0, 1]]
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    drawn = generator(seed).choice(total, _SAMPLE, replace=False) if total > _SAMPLE else np.arange(total)
    parts = np.split(np.sort(drawn), np.searchsorted(np.sort(drawn), ends))
    return [(part - end + size).tolist() for part, end, size in zip(parts[:-1], ends, sizes, strict=True)]


def cut_texts(texts: Sequence[tuple[Frame, str | TextPair]], tokenizer: TextTokenizer) -> str:
    """Returns what share of sampled texts, each in its frame, two in a sequence together, the limit cuts."""
    cut = sum(tokenizer.cuts(text, frame) for frame, text in texts)
    return f"{cut / len(texts):.1%} of {len(texts):,} sampled texts are longer and will be cut"


def cut_spans(rows: Rows, pairing: Pairing, room: int, task: str, seed: int) -> str:
    """Returns how many spans have more tokens than there is room for.

    Counted are the spans that the first pass over the documents draws: all of them where there are a thousand
    documents or fewer, else those of a sample.

    Args:
        rows: The documents, as tokens.
        pairing: What draws the spans.
        room: Tokens of a row beside the special ones, at most.
        task: Name of the data set, part of every draw's key.
        seed: Seed of every draw.
    """
    (sampled,) = sample_rows([len(rows)], seed)
    numbers = np.array(sampled, dtype=np.int64)
    keys = fold_each(row_keys(seed, task, np.zeros_like(numbers), numbers), PAIRING).tolist()
    lengths = [
        len(span)
        for number, key in zip(numbers.tolist(), keys, strict=True)
        for example in pairing(rows[number], generator(key))
        for span in (example.anchor, *example.positives, *example.negatives)
    ]
    cut = sum(length > room for length in lengths)
    which = f"of a sample of {len(numbers):,} documents" if len(numbers) < len(rows) else "of a first pass"
    said = f"{cut:,} of the {len(lengths):,} spans {which} are longer"
    if not cut:
        return said
    return f"{said} ({cut / len(lengths):.1%}) and will be cut at their end, the longest has {max(lengths):,}"
