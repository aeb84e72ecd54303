"""The search command over a corpus: its hits in three formats, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from shells import Shell

from contrastive_text.inference.embedding_run import UnfinishedVectors
from contrastive_text.inference.sentence_encoder import SentenceEncoder

QUERIES = ["a bird sings", tiny.TEXTS[7]]
ASKED = " ".join(f"'{query}'" for query in QUERIES)
SEARCH = f"search TEXTS {ASKED} --model BERT --device cpu --format json"


@pytest.fixture(scope="module")
def model(files: dict[str, str]) -> SentenceEncoder:
    with pytest.warns(UserWarning, match="names no pooler"):
        return SentenceEncoder.from_pretrained(files["bert"], device="cpu")


def hits_of(out: str) -> list[list[dict[str, Any]]]:
    """Returns the hits of each query."""
    return [json.loads(line)["hits"] for line in out.splitlines()]


def test_hits_are_those_of_the_dense_search(shell: Shell, here: Path, model: SentenceEncoder) -> None:
    (here / "corpus.txt").write_text("\n".join(["", *tiny.TEXTS]))
    out = shell(f"{SEARCH.replace('TEXTS', 'corpus.txt')} --top_k 3").out
    assert [json.loads(line)["query"] for line in out.splitlines()] == QUERIES
    cosines = model.similarity(np.asarray(model.encode(QUERIES)), np.asarray(model.encode(tiny.TEXTS)))
    for row, hits in zip(cosines.tolist(), hits_of(out), strict=True):
        best = sorted(range(40), key=lambda i: -row[i])[:3]
        # A text of the corpus stands a line lower, for the first line is blank.
        assert [(hit["line"], hit["text"]) for hit in hits] == [(i + 2, tiny.TEXTS[i]) for i in best]
        assert [hit["score"] for hit in hits] == pytest.approx([row[i] for i in best], abs=2e-6)  # six digits
    assert list(here.iterdir()) == [here / "corpus.txt"]


def test_queries_are_taken_from_a_column_that_is_named(shell: Shell, here: Path) -> None:
    (here / "queries.tsv").write_text("id\tasked\tsplit\n1\twho sleeps?\ttrain\n2\twho runs?\ttest\n")
    out, err = shell(f"{SEARCH} --queries queries.tsv --query_column asked --split test")
    assert [json.loads(line)["query"] for line in out.splitlines()] == [*QUERIES, "who runs?"]
    assert "queries.tsv: asked -> text; split: test (1); train (1) left out" in err


def test_a_table_and_a_page_say_the_same(shell: Shell, here: Path) -> None:
    (here / "corpus.csv").write_text('text\n"one\ttext\nof two lines"\nanother text\n')
    said = {}
    for kind in ("text", "tsv", "json"):
        said[kind], err = shell(f"search corpus.csv {ASKED} --model BERT --format {kind}")
        assert "corpus.csv: text -> text; 2 rows" in err
    rows = list(csv.DictReader(said["tsv"].splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [(row["query"], row["rank"]) for row in rows] == [(q, rank) for q in QUERIES for rank in ("1", "2")]
    assert {(row["line"], row["text"]) for row in rows} == {("2", "one text of two lines"), ("4", "another text")}
    hits = [hit for each in hits_of(said["json"]) for hit in each]
    assert [float(row["score"]) for row in rows] == [hit["score"] for hit in hits]
    assert {hit["text"] for hit in hits} == {"one\ttext\nof two lines", "another text"}
    lines = [line for line in said["text"].splitlines() if "  line " in line]
    assert [float(line.split()[0]) for line in lines] == pytest.approx([hit["score"] for hit in hits], abs=5e-5)


def test_a_stopped_search_says_that_no_vector_is_saved(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(UnfinishedVectors, "finish", stop)
    assert shell.status(SEARCH) == 130
    assert "stopped: no vector is saved" in shell.capture.readouterr().err
    assert not list(here.iterdir())
