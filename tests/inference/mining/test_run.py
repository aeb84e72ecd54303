"""Negatives mined into a file: its rows as training reads them, taken up again after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from contrastive_text.data import read_rows
from contrastive_text.data.prompts import Prompts
from contrastive_text.inference import mining_run as run
from contrastive_text.inference.embedding_run import UnfinishedVectors
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.mining import Mined, Mining, PairTexts, mine
from contrastive_text.inference.mining_run import MiningReport, MiningRun, RowWriter
from contrastive_text.inference.sentence_encoder import SentenceEncoder

A, B, C, D, *_ = tiny.TEXTS
PAIRS = [(tiny.TEXTS[i], tiny.TEXTS[i + 20]) for i in range(20)] + [(tiny.TEXTS[0], tiny.TEXTS[39])]
TWO = PairTexts([("q", "p1"), ("q", "p2"), ("r", "p3")])
FOUND = [Mined(0, [0.9, 0.8], [2], [0.5]), Mined(1, [0.7], [0, 1], [0.6, 0.4])]


def written(path: Path, form: Any, mining: Mining) -> list[dict[str, Any]]:
    """Rows of the two queries above, as training reads them."""
    writer = RowWriter(TWO, mining, form, path)
    lines = [writer.header(), *(line for each in FOUND for line in writer.lines(each))]
    path.write_text("".join(lines))
    labels = ("target",) if form == "pairs" else ()
    return [dict(row) for row in read_rows(path, ("anchor", "positive", *labels))]


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_training_reads_every_form_without_options(tmp_path: Path, suffix: str) -> None:
    triples = written(tmp_path / f"triples{suffix}", "triples", Mining(2, short="keep"))
    assert [tuple(row.values()) for row in triples] == [
        ("q", "p1", "p3"), ("q", "p2", "p3"), ("r", "p3", "p1"), ("r", "p3", "p2"),
    ]  # fmt: skip
    labeled = written(tmp_path / f"pairs{suffix}", "pairs", Mining(2, short="keep"))
    assert [tuple(row.values()) for row in labeled] == [
        ("q", "p1", 1.0), ("q", "p2", 1.0), ("q", "p3", 0.0),
        ("r", "p3", 1.0), ("r", "p1", 0.0), ("r", "p2", 0.0),
    ]  # fmt: skip
    (whole,) = tmp_path.glob(f"triples{suffix}")
    assert "0.9" in whole.read_text() and "0.5" in whole.read_text()


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl"])
def test_a_tuple_has_all_negatives_of_a_pair(tmp_path: Path, suffix: str) -> None:
    texts, path = PairTexts([("r", "p")], corpus=["a", "b"]), tmp_path / f"tuples{suffix}"
    writer = RowWriter(texts, Mining(2), "tuples", path)
    path.write_text(writer.header() + "".join(writer.lines(Mined(0, [0.7], [0, 1], [0.6, 0.4]))))
    (row,) = read_rows(path, ("anchor", "positive"))
    assert row == {"anchor": "r", "positive": "p", "negative": "a", "negative_2": "b"}
    if suffix == ".jsonl":  # tuples of different lengths
        rows = written(path, "tuples", Mining(2, short="keep"))
        assert [row["negative_2"] != "" for row in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "form", "short", "said"),
    [
        ("a.txt", "triples", "drop", "a name that ends in .tsv or .jsonl, got '.txt'"),
        ("a.tsv", "tuples", "keep", "a .jsonl file for tuples of different lengths"),
        ("a.tsv", "triplets", "drop", "form: expected .*triples, .* got 'triplets'"),
    ],
)
def test_files_that_could_not_hold_the_rows_are_refused(name: str, form: Any, short: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RowWriter(TWO, Mining(short=short), form, Path(name))
    with pytest.raises(ValueError, match=r"without tabs and newlines for .tsv, got 'a\\nb'"):
        RowWriter(PairTexts([("a\nb", "c")]), Mining(), "triples", Path("a.tsv"))


@pytest.mark.parametrize("stop", ["encoding", "mining"])
def test_a_run_that_was_killed_keeps_its_vectors_and_ends_with_the_same_bytes(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    monkeypatch.setattr(run, "_QUERIES", 6)
    texts, mining = PairTexts(PAIRS), Mining(2, relative_margin=0.01, take="random", same=0.999)

    def mined(name: str) -> MiningReport:
        return MiningRun(model, texts, tmp_path / name, mining, encoding=Encoding(block_size=10)).finish()

    whole = mined("whole.tsv")
    assert whole.queries == 20 and 0 < whole.short < 20 and whole.rows > 10
    appended, blocks = UnfinishedVectors.append, list[int]()

    def append(self: UnfinishedVectors, *given: Any) -> None:
        appended(self, *given)
        blocks.append(self.done)
        if stop == "encoding" and len(blocks) == 3:
            raise KeyboardInterrupt

    def mine_some(*given: Any) -> Any:
        if given[3].start == 12:
            raise KeyboardInterrupt
        return mine(*given)

    monkeypatch.setattr(UnfinishedVectors, "append", append)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(run, "mine", mine_some)
        mined("killed.tsv")
    assert not (tmp_path / "killed.tsv").exists()
    assert mined("killed.tsv") == whole
    assert blocks == [10, 20, 10, 20]  # no block is encoded twice
    assert (tmp_path / "killed.tsv").read_bytes() == (tmp_path / "whole.tsv").read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["killed.tsv", "whole.tsv"]


def test_queries_and_corpus_have_the_prompts_and_length_limits_of_the_model(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = Prompts({"query": "a dog: ", "document": "a bird: "})
    monkeypatch.setattr(model, "prompts", prompts)
    monkeypatch.setattr(model, "query_length", 7)
    monkeypatch.setattr(model, "document_length", 8)
    spaces: list[Any] = []
    real = run.mine
    monkeypatch.setattr(run, "mine", lambda *given: (spaces.append(given[1]), real(*given))[1])
    texts = PairTexts(PAIRS)
    MiningRun(model, texts, tmp_path / "mined.tsv", Mining(1)).finish()
    ((queries, corpus),) = spaces
    expected = (model.encode_query(texts.queries), model.encode_document(texts.corpus))
    for found, wanted in zip((queries, corpus), expected, strict=True):
        torch.testing.assert_close(found, torch.as_tensor(wanted), rtol=0, atol=1e-5)


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
    pairs: list[tuple[str, str]],
    options: dict[str, Any],
    rows: int,
    short: int,
    none: int,
) -> None:
    path = tmp_path / "out.jsonl"
    report = MiningRun(model, PairTexts(pairs), path, Mining(**{"same": None, **options})).finish()
    found = [row.values() for row in read_rows(path, ("anchor", "positive"))] if rows else []
    assert (report.queries, report.rows, report.short, report.none) == (len(pairs), rows, short, none)
    for anchor, positive, negative in found:
        assert negative not in (anchor, positive) and (anchor, negative) not in pairs
