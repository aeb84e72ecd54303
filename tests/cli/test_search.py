"""The search command: the same hits with an index and without, in three formats, and what it refuses."""

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
MADE = "contrastive_text.cli.embed.EmbeddingRun"
"""The function that encodes a corpus; a test that removes it shows that no text is encoded again."""


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


@pytest.mark.slow
def test_parts_that_embed_has_written_are_one_index(shell: Shell, here: Path) -> None:
    embed = "embed TEXTS i.npy --model BERT --device cpu --shard"
    for number, count in ((3, 14), (1, 13)):
        said = shell(f"{embed} {number}/3").out
        assert f"{count} vectors of 16 features written to i-0000{number}-of-00003.npy" in said
    said = shell.refused(f"{SEARCH} --index i.npy")
    assert "expected all 3 parts, got 2; run contrastive-text embed with --shard 2/3" in said
    shell(f"{embed} 2/3")
    found = [hits_of(shell(f"{SEARCH} {options}").out) for options in ("", "--index i.npy")]
    lines = [[[hit["line"] for hit in hits] for hits in each] for each in found]
    assert lines[0] == lines[1]
    assert not (here / "i.npy").exists()


def test_an_index_is_made_once_and_gives_the_same_hits(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [shell(f"{SEARCH} {options}").out for options in ("", "--index i.npy")]
    monkeypatch.setattr(MADE, None)
    assert [shell(f"{SEARCH} --index i.npy").out] * 2 == first
    assert sorted(path.name for path in here.iterdir()) == ["i.npy", "i.npy.json"]


def test_what_embed_wrote_is_an_index(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("embed TEXTS v.npy --model BERT --truncate_dim 9 --normalize")
    monkeypatch.setattr(MADE, None)
    _, (best, *_) = hits_of(shell(f"{SEARCH} --index v.npy").out)
    assert (best["line"], best["score"]) == (8, pytest.approx(1, abs=2e-6))


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


def test_an_index_of_another_corpus_or_model_is_refused(shell: Shell, here: Path) -> None:
    shell(f"{SEARCH} --index i.npy")
    tiny.write_texts(here / "other.txt", tiny.TEXTS[:39])
    other = f"{SEARCH.replace('TEXTS', 'other.txt')} --index i.npy"
    said = shell.refused(other)
    assert "i.npy: expected an index of this model and these texts, got other texts" in said
    assert "delete it, and it is built again, or name another file" in said
    tiny.save_bert(here / "other", seed=1)
    assert "got another model" in shell.refused(f"{SEARCH} --index i.npy --model other")
    shell(f"{other} --restart")
    assert len(np.load(here / "i.npy")) == 39


@pytest.mark.parametrize(
    ("options", "said"), [("", "no vector is saved"), ("--index i.npy", "40 of 40 texts are")]
)
def test_a_stopped_search_says_what_it_keeps(
    shell: Shell, here: Path, options: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(UnfinishedVectors, "finish", stop)
    assert shell.status(f"{SEARCH} {options}") == 130
    assert f"stopped: {'the vectors of ' if options else ''}{said}" in shell.capture.readouterr().err
    assert len(list(here.iterdir())) == len(options.split())
