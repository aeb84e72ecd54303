"""The command that writes hard negatives, and a run on what it has written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from shells import Shell


@pytest.mark.slow
def test_mined_triples_train_a_model(shell: Shell, here: Path) -> None:
    rows = [f'{{"query": "{tiny.TEXTS[i]}", "answer": "{tiny.TEXTS[i + 8]}"}}\n' for i in range(16)]
    (here / "pairs.jsonl").write_text("".join(rows))
    said = shell(
        "mine pairs.jsonl triples.tsv --model BERT --corpus TEXTS --negatives 2 --relative_margin 0.01 "
        "--range_min 1 --device cpu"
    ).out
    assert "16 pairs of 16 queries; a corpus of 40 texts" in said
    assert "equal to the query" in said and "--relative_margin 0.01" in said
    assert "the nearest 1 of all candidates were skipped" in said
    assert "50%" in said and "#" in said and "rows written to triples.tsv" in said
    names = "anchor\tpositive\tnegative\tpositive_cosine\tnegative_cosine\n"
    assert (here / "triples.tsv").read_text().startswith(names)
    fit = "fit --recipe simcse/sup TINY --data.train triples.tsv --trainer.max_steps 1"
    assert "negative" in shell(fit).out
