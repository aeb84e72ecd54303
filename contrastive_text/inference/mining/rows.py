"""Mined negatives as rows of a file that training reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.inference.mining.nearest import Mined
from contrastive_text.inference.mining.options import Mining
from contrastive_text.inference.mining.texts import PairTexts

Form: TypeAlias = Literal["triples", "tuples", "pairs"]
"""A row for each negative; for each pair, with all of its negatives; or for each text, with a label."""
SUFFIXES = (".tsv", ".jsonl")
_BREAKS = re.compile(r"[\t\r\n]")


class RowWriter:
    """Turns what was mined into the lines of a ``.tsv`` or ``.jsonl`` file.

    - ``triples``: ``anchor``, ``positive``, ``negative``, ``positive_cosine``, ``negative_cosine``.
    - ``tuples``: the same with all negatives of a pair: ``negative``, ``negative_2``, ..., in ``.jsonl`` a list.
    - ``pairs``: ``sentence1``, ``sentence2``, ``label`` (1 for a positive, 0 for a negative), ``cosine``.

    Columns are named so that training takes texts and labels, and no cosine for one.

    Args:
        texts: Queries, corpus and positives.
        mining: How many negatives, and what becomes of queries with fewer.
        form: What a row holds.
        path: The file, whose suffix counts.

    Raises:
        ValueError: Another suffix or form, or texts that a ``.tsv`` file can't hold.
    """

    def __init__(self, texts: PairTexts, mining: Mining, form: Form, path: Path) -> None:
        self.texts = texts
        self.mining = mining
        self.form = form
        self.lists = path.suffix == ".jsonl"
        if path.suffix not in SUFFIXES:
            raise InvalidValueError(
                f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}, got {path.suffix!r}"
            )
        if form not in _ROWS:
            raise InvalidValueError(f"mine.form: expected one of {', '.join(_ROWS)}, got {form!r}")
        if form == "tuples" and mining.short == "keep" and not self.lists:
            raise InvalidValueError(
                f"{path}: expected a .jsonl file for tuples of different lengths, got .tsv; name such a file, or "
                "leave short: keep out"
            )
        broken = next((text for text in (*texts.queries, *texts.corpus) if _BREAKS.search(text)), None)
        if broken is not None and not self.lists:
            raise InvalidValueError(
                f"{path}: expected texts without tabs and newlines for .tsv, got {broken[:60]!r}; name a .jsonl "
                "file"
            )

    def header(self) -> str:
        """Returns what stands before all lines."""
        if self.lists:
            return ""
        names = {"triples": _TRIPLE, "tuples": _tuple_names(self.mining.negatives), "pairs": _PAIR}[self.form]
        return "\t".join(names) + "\n"

    def lines(self, found: Mined) -> Iterator[str]:
        """Yields the lines of a query; none for one that is left out."""
        for row in _ROWS[self.form](self.texts, found):
            yield (json.dumps(row, ensure_ascii=False) if self.lists else "\t".join(_cells(row))) + "\n"


Row: TypeAlias = Mapping[str, str | float | Sequence[str] | Sequence[float]]
_TRIPLE = ("anchor", "positive", "negative", "positive_cosine", "negative_cosine")
_PAIR = ("sentence1", "sentence2", "label", "cosine")


def _tuple_names(count: int) -> list[str]:
    numbers = ["", *(f"_{number}" for number in range(2, count + 1))]
    texts = [f"negative{number}" for number in numbers]
    return ["anchor", "positive", *texts, "positive_cosine", *(f"cosine_of_{text}" for text in texts)]


def _cells(row: Row) -> Iterator[str]:
    for value in row.values():
        yield from map(str, value) if isinstance(value, list) else [str(value)]


def _pairs_of(texts: PairTexts, found: Mined) -> Iterator[tuple[str, str, float]]:
    for place, score in zip(texts.positives[found.query], found.positives, strict=True):
        yield texts.queries[found.query], texts.corpus[place], round(score, 6)


def _negatives_of(texts: PairTexts, found: Mined) -> list[tuple[str, float]]:
    return [
        (texts.corpus[place], round(score, 6)) for place, score in zip(found.negatives, found.scores, strict=True)
    ]


def _triples(texts: PairTexts, found: Mined) -> Iterator[Row]:
    for query, positive, cosine in _pairs_of(texts, found):
        for negative, score in _negatives_of(texts, found):
            yield dict(zip(_TRIPLE, (query, positive, negative, cosine, score), strict=True))


def _tuples(texts: PairTexts, found: Mined) -> Iterator[Row]:
    negatives = _negatives_of(texts, found)
    for query, positive, cosine in _pairs_of(texts, found) if negatives else ():
        yield {
            "anchor": query,
            "positive": positive,
            "negative": [text for text, _ in negatives],
            "positive_cosine": cosine,
            "negative_cosines": [score for _, score in negatives],
        }


def _labelled(texts: PairTexts, found: Mined) -> Iterator[Row]:
    positives = [(text, 1, cosine) for _, text, cosine in _pairs_of(texts, found)]
    negatives = [(text, 0, score) for text, score in _negatives_of(texts, found)]
    for text, label, cosine in (*positives, *negatives):
        yield dict(zip(_PAIR, (texts.queries[found.query], text, label, cosine), strict=True))


_ROWS = {"triples": _triples, "tuples": _tuples, "pairs": _labelled}
