"""How many texts and spans the length limit cuts, counted before the first step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from contrastive_text.core.random import fold_each, generator
from contrastive_text.core.types import TextPair
from contrastive_text.data.collator import PAIRING, row_keys
from contrastive_text.data.sampler import Rows
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.pairings import Pairing

_SAMPLE = 1000
"""Texts or documents that are counted, where there are more."""


def cut_texts(texts: Sequence[str | TextPair], tokenizer: TextTokenizer, seed: int) -> str:
    """Returns what share of the texts, two in a sequence together, the limit cuts, as a sample of them tells."""
    sample = [texts[i] for i in generator(seed).permutation(len(texts))[:_SAMPLE]]
    cut = sum(map(tokenizer.cuts, sample))
    return f"{cut / len(sample):.1%} of {len(sample):,} sampled texts are longer and will be cut"


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
    some = len(rows) > _SAMPLE
    numbers = np.sort(generator(seed).permutation(len(rows))[:_SAMPLE]) if some else np.arange(len(rows))
    keys = fold_each(row_keys(seed, task, np.zeros_like(numbers), numbers), PAIRING).tolist()
    lengths = [
        len(span)
        for number, key in zip(numbers.tolist(), keys, strict=True)
        for example in pairing(rows[number], generator(key))
        for span in (example.anchor, *example.positives, *example.negatives)
    ]
    cut = sum(length > room for length in lengths)
    drawn = f"of a sample of {len(numbers):,} documents" if some else "of a first pass"
    said = f"{cut:,} of the {len(lengths):,} spans {drawn} are longer"
    if not cut:
        return said
    return f"{said} ({cut / len(lengths):.1%}) and will be cut at their end, the longest has {max(lengths):,}"
