"""Pairs and models that mining can't make much of: counted, or refused with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from contrastive_text.data import read_rows
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.mining import Mining, MiningReport, MiningRun, PairTexts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MeanPooler

A, B, C, D, *_ = tiny.TEXTS
Pairs = Sequence[tuple[str, str]]


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder(TransformerEncoder(bert), MeanPooler())


def mined(model: SentenceEncoder, pairs: Pairs, path: Path, **options: Any) -> tuple[MiningReport, list[Any]]:
    """Returns the report, and the rows as training reads them."""
    report = MiningRun(model, PairTexts(pairs), path, Mining(**{"same": None, **options})).finish()
    return report, [row.values() for row in read_rows(path, ("anchor", "positive"))] if report.rows else []


@pytest.mark.parametrize(
    ("pairs", "options", "rows", "short", "none"),
    [
        pytest.param([(A, B)], {"negatives": 1}, 0, 1, 1, id="a corpus of one text"),
        pytest.param([(A, A)], {"negatives": 1}, 0, 1, 1, id="a query that is its only document"),
        pytest.param([(A, B), (C, D)], {"negatives": 9}, 0, 2, 0, id="more negatives than texts, left out"),
        pytest.param([(A, B), (C, D)], {"negatives": 9, "short": "keep"}, 2, 2, 0, id="more than texts, kept"),
        pytest.param([(A, B), (B, A)], {"negatives": 1}, 0, 2, 2, id="queries equal to the documents"),
        pytest.param([(A, B), (B, A), (C, C)], {"negatives": 1}, 3, 0, 0, id="of which one is another's"),
        pytest.param([(A, B), (C, D)], {"negatives": 1, "max_score": -1.0}, 0, 2, 2, id="a bound above all"),
        pytest.param([(A, B), (C, D)], {"negatives": 1, "same": 1e-9}, 0, 2, 2, id="all near-duplicates"),
    ],
)  # fmt: skip
def test_queries_without_enough_negatives_are_counted(
    model: SentenceEncoder,
    tmp_path: Path,
    pairs: Pairs,
    options: dict[str, Any],
    rows: int,
    short: int,
    none: int,
) -> None:
    report, found = mined(model, pairs, tmp_path / "out.jsonl", **options)
    assert (report.queries, report.rows, report.short, report.none) == (len(pairs), rows, short, none)
    for anchor, positive, negative in found:
        assert negative not in (anchor, positive) and (anchor, negative) not in pairs


def test_what_can_not_be_mined_is_refused(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="expected pairs of a query and a positive, got none"):
        PairTexts([])
    with pytest.raises(ValueError, match=r"without the character U\+0000, which training refuses"):
        PairTexts([("a", "b\0c")])
    broken = np.full((2, model.features), np.nan, dtype=np.float32)
    monkeypatch.setattr(SentenceEncoder, "encode_blocks", lambda *_: iter([broken]))
    with pytest.raises(ValueError, match=r"NaN|finite"):
        mined(model, [(A, B), (C, D)], tmp_path / "out.tsv")
    assert not (tmp_path / "out.tsv").exists()


@pytest.mark.parametrize(
    ("corpus", "pairs", "where"),
    [(["a", "b\udc80"], [("q", "p")], "text 1 of the corpus"), ([], [("q", "p"), ("q\ud800", "r")], "pair 1")],
)
def test_half_a_surrogate_pair_is_refused_with_its_place(
    corpus: list[str], pairs: list[tuple[str, str]], where: str
) -> None:
    with pytest.raises(
        ValueError, match=f"expected texts that UTF-8 can hold, got half a surrogate.* in {where};"
    ):
        PairTexts(pairs, corpus)
