"""Counts the spans that the encoder's length limit cuts, and the overlap of anchors and positives that remains.

    python benchmarks/spans.py --encoder FOLDER --train DOCUMENTS.jsonl.gz [...] --limits 24 66

Spans are drawn as by ``Spans``, from the documents themselves; a limit counts the special tokens, as the
encoder's ``max_length`` does.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any, get_args

from runs import RESULTS, markdown, publish
from transformers import AutoTokenizer

from contrastive_text.core.random import fold_key, generator
from contrastive_text.data import TextTokenizer, read_rows
from contrastive_text.data.files.mapped import tokenize_documents
from contrastive_text.pairings import Spans
from contrastive_text.pairings.spans import Strategy

Place = list[tuple[range, list[range]]]


def shares(drawn: list[Place], room: int) -> tuple[float, float]:
    """Returns the share of spans that are cut, and of positives with a token of their anchor, both in per cent.

    Example:
        >>> shares([[(range(4, 10), [range(8, 11), range(4, 6)])]], room=3)
        (33.33333333333333, 50.0)
    """
    pairs = [(anchor, positive) for place in drawn for anchor, positives in place for positive in positives]
    spans = [span for place in drawn for anchor, positives in place for span in (anchor, *positives)]
    cut = sum(len(span) > room for span in spans) / len(spans)
    common = sum(bool(set(anchor[:room]) & set(positive[:room])) for anchor, positive in pairs) / len(pairs)
    return 100 * cut, 100 * common


def measure(
    lengths: list[int], pairing: Spans, limits: list[int], specials: int, seed: int
) -> list[dict[str, Any]]:
    """Returns a row for each limit of one choice of spans."""
    served = [tokens for tokens in lengths if pairing.accepts_length(tokens)]
    drawn = [pairing.draw_spans(tokens, generator(fold_key(seed, i))) for i, tokens in enumerate(served)]
    rows = []
    for limit in limits:
        cut, common = shares(drawn, limit - specials)
        row = {"strategy": pairing.strategy, "anchors": pairing.anchors, "positives": pairing.positives}
        row |= {"max_length": limit, "documents": len(served)}
        rows.append({**row, "spans cut, %": cut, "positives with a token of the anchor, %": common})
    return rows


def main() -> None:
    """Draws one epoch's spans of each strategy and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, required=True)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--limits", type=int, nargs="+", default=[24, 66])
    parser.add_argument("--min_length", type=int, default=16)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    tokenizer = TextTokenizer(AutoTokenizer.from_pretrained(options.encoder), max_length=None)
    texts = [str(row["text"]) for row in read_rows(list(map(str, options.train)), reads=("text",), split="train")]
    lengths = tokenize_documents(texts, tokenizer).lengths.tolist()
    rows = []
    for strategy in get_args(Strategy):
        pairing = Spans(strategy=strategy, min_length=options.min_length, max_length=options.max_length)
        rows += measure(lengths, pairing, options.limits, tokenizer.specials, options.seed)
    header = list(rows[0])
    cells = [
        [f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows
    ]
    today = datetime.date.today().isoformat()
    said = (
        f"{today}. Spans of {options.min_length} to {options.max_length} tokens, one pass, seed {options.seed}."
    )
    lines = ["# Spans that the length limit cuts", "", f"{said} Written by `benchmarks/spans.py`.", ""]
    lines += markdown(header, cells)
    print(publish("spans", lines, rows, vars(options), folder=options.out).read_text())


if __name__ == "__main__":
    main()
