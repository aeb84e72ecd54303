"""Small data sets in BEIR's layout, as its own code writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCUMENTS = {
    "d10": ("birds", "a bird sings in the tree"),
    "d2": ("", "two dogs run over the field"),
    "d1": ("cats", "a cat sleeps on the chair"),
    "d3": ("", "rain falls on the town"),
}
QUERIES = {"q1": "what sings?", "q2": "which animals run?", "q3": "of another split"}
JUDGED = [("q1", "d10", 2), ("q1", "d3", 0), ("q2", "d2", 1), ("q2", "d10", 1)]


def write_beir(
    folder: Path,
    documents: Mapping[str, tuple[str, str]] = DOCUMENTS,
    queries: Mapping[str, str] = QUERIES,
    judged: Sequence[tuple[str, str, int]] = JUDGED,
    split: str = "test",
) -> Path:
    """Writes corpus, queries and judgments; returns the folder."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": name, "title": title, "text": text} for name, (title, text) in documents.items()]
    asked = [{"_id": name, "text": text, "metadata": {}} for name, text in queries.items()]
    for name, rows in (("corpus", corpus), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in judged)]
    (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder
