"""The search command: the same hits with an index and without, in three formats, and what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny

from contrastive_text.cli import run
from contrastive_text.inference.embedding_run import UnfinishedVectors
from contrastive_text.inference.sentence_encoder import SentenceEncoder

Answer = Callable[[Sequence[str]], str]
QUERIES = ["a bird sings", tiny.TEXTS[7]]


@pytest.fixture(scope="module")
def model(files: dict[str, str]) -> SentenceEncoder:
    with pytest.warns(UserWarning, match="names no pooler"):
        return SentenceEncoder.from_pretrained(files["bert"], device="cpu")


def words_of(files: dict[str, str], corpus: str, *options: str) -> list[str]:
    return ["search", corpus, *QUERIES, "--model", files["bert"], "--device", "cpu", *options]


def hits_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_hits_are_those_of_the_dense_search(
    files: dict[str, str], here: Path, model: SentenceEncoder, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "corpus.txt").write_text("\n".join(["", *tiny.TEXTS]))
    assert run(words_of(files, "corpus.txt", "--top_k", "3", "--format", "json")) == 0
    found = hits_of(capsys)
    cosines = model.similarity(np.asarray(model.encode(QUERIES)), np.asarray(model.encode(tiny.TEXTS)))
    for query, row, answer in zip(QUERIES, cosines.tolist(), found, strict=True):
        best = sorted(range(40), key=lambda i: -row[i])[:3]
        assert answer["query"] == query
        hits = answer["hits"]
        assert isinstance(hits, list)
        # A text of the corpus stands a line lower, for the first line is blank.
        assert [(hit["line"], hit["text"]) for hit in hits] == [(i + 2, tiny.TEXTS[i]) for i in best]
        assert [hit["score"] for hit in hits] == pytest.approx([row[i] for i in best], abs=2e-6)  # six digits
    assert list(here.iterdir()) == [here / "corpus.txt"]


def test_parts_that_embed_has_written_are_one_index(
    files: dict[str, str], here: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    embed = ["embed", files["texts"], "i.npy", "--model", files["bert"], "--device", "cpu"]
    search = words_of(files, files["texts"], "--format", "json")
    for number in (3, 1):
        assert run([*embed, "--shard", f"{number}/3"]) == 0
    assert f"13 vectors of 16 features written to i-0000{number}-of-00003.npy" in capsys.readouterr().out
    assert "expected all 3 parts, got 2; run contrastive-text embed with --shard 2/3" in answer(
        [*search, "--index", "i.npy"]
    )
    assert run([*embed, "--shard", "2/3"]) == 0
    found = []
    for options in ([], ["--index", "i.npy"]):
        capsys.readouterr()
        assert run([*search, *options]) == 0
        found.append([[hit["line"] for hit in each["hits"]] for each in hits_of(capsys)])
    assert found[0] == found[1]
    assert not (here / "i.npy").exists()


def test_an_index_is_made_once_and_gives_the_same_hits(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of(files, files["texts"], "--format", "json")
    found = []
    for options in ([], ["--index", "i.npy"], ["--index", "i.npy"]):
        capsys.readouterr()
        assert run([*words, *options]) == 0
        found.append(hits_of(capsys))
        if options:
            monkeypatch.setattr("contrastive_text.cli.embed.EmbeddingRun", None)  # nothing is encoded again
    assert found[0] == found[1] == found[2]
    assert sorted(path.name for path in here.iterdir()) == ["i.npy", "i.npy.json"]


def test_what_embed_wrote_is_an_index(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["embed", files["texts"], "v.npy", "--model", files["bert"], "--truncate_dim", "9", "--normalize"]
    assert run(words) == 0
    monkeypatch.setattr("contrastive_text.cli.embed.EmbeddingRun", None)
    capsys.readouterr()
    assert run(words_of(files, files["texts"], "--index", "v.npy", "--format", "json")) == 0
    hits = hits_of(capsys)[1]["hits"]
    assert isinstance(hits, list)
    assert (hits[0]["line"], hits[0]["score"]) == (8, pytest.approx(1, abs=2e-6))
    del here


def test_queries_are_taken_from_a_column_that_is_named(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "queries.tsv").write_text("id\tasked\tsplit\n1\twho sleeps?\ttrain\n2\twho runs?\ttest\n")
    options = ["--queries", "queries.tsv", "--query_column", "asked", "--split", "test", "--format", "json"]
    assert run(words_of(files, files["texts"], *options)) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["query"] for line in captured.out.splitlines()] == [*QUERIES, "who runs?"]
    assert "queries.tsv: asked -> text; split: test (1); train (1) left out" in captured.err


def test_a_table_and_a_page_say_the_same(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "corpus.csv").write_text('text\n"one\ttext\nof two lines"\nanother text\n')
    said = {}
    for kind in ("text", "tsv", "json"):
        assert run(words_of(files, "corpus.csv", "--format", kind)) == 0
        captured = capsys.readouterr()
        said[kind] = captured.out
        assert "corpus.csv: text -> text; 2 rows" in captured.err
    rows = list(csv.DictReader(said["tsv"].splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [(row["query"], row["rank"]) for row in rows] == [(q, rank) for q in QUERIES for rank in ("1", "2")]
    assert {(row["line"], row["text"]) for row in rows} == {("2", "one text of two lines"), ("4", "another text")}
    hits = [hit for line in said["json"].splitlines() for hit in json.loads(line)["hits"]]
    assert [float(row["score"]) for row in rows] == [hit["score"] for hit in hits]
    assert {hit["text"] for hit in hits} == {"one\ttext\nof two lines", "another text"}
    lines = [line for line in said["text"].splitlines() if "  line " in line]
    assert [float(line.split()[0]) for line in lines] == pytest.approx([hit["score"] for hit in hits], abs=5e-5)


def test_an_index_of_another_corpus_or_model_is_refused(
    files: dict[str, str], here: Path, answer: Answer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words_of(files, files["texts"], "--index", "i.npy")) == 0
    other = tiny.write_texts(here / "other.txt", tiny.TEXTS[:39])
    said = answer(words_of(files, other, "--index", "i.npy"))
    assert "i.npy: expected an index of this model and these texts, got other texts" in said
    assert "delete it to have it made anew, or name another file" in said
    model = tiny.save_bert(here / "other", seed=1)
    assert "got another model" in answer(words_of({"bert": model}, files["texts"], "--index", "i.npy"))
    capsys.readouterr()
    assert run(words_of(files, other, "--index", "i.npy", "--restart", "--format", "json")) == 0
    assert len(np.load(here / "i.npy")) == 39


@pytest.mark.parametrize(
    ("options", "said"), [([], "no vector is saved"), (["--index", "i.npy"], "40 of 40 texts are")]
)
def test_a_stopped_search_says_what_it_keeps(
    files: dict[str, str],
    here: Path,
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(UnfinishedVectors, "finish", stop)
    with pytest.raises(SystemExit) as left:
        run(words_of(files, files["texts"], *options))
    assert left.value.code == 130
    assert f"stopped: {'the vectors of ' if options else ''}{said}" in capsys.readouterr().err
    assert len(list(here.iterdir())) == len(options)
