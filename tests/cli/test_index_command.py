"""The index commands: build, add, remove, info, and search in an index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tiny
from covering import rest_slow
from shells import Shell

from contrastive_text.inference.embedding_run import UnfinishedVectors
from contrastive_text.inference.index import Index

TAB = "\t"
BUILD = "index build TEXTS i --model BERT --device cpu"
ENCODED = "contrastive_text.inference.embedding_run.EmbeddingRun.finish"


def hits_of(out: str) -> list[dict[str, Any]]:
    """Returns the hits of a query."""
    (line,) = out.splitlines()
    hits: list[dict[str, Any]] = json.loads(line)["hits"]
    return hits


@pytest.fixture
def table(here: Path) -> None:
    rows = [f"d{number}\t{text}\t{1990 + number}\tx" for number, text in enumerate(tiny.TEXTS)]
    (here / "docs.tsv").write_text("\n".join(["key\ttext\tyear\tother", *rows]) + "\n")


@pytest.mark.usefixtures("table")
def test_an_index_is_built_grows_shrinks_and_is_searched_alone(shell: Shell, here: Path) -> None:
    columns = "--id_column key --metadata_columns year"
    out = shell(f"index build docs.tsv i --model BERT --device cpu {columns}").out
    assert "docs.tsv: text -> text; other ignored; 40 rows" in out and "40 documents written to i (" in out
    (here / "docs.tsv").unlink()
    (here / "more.jsonl").write_text('{"text": "a bird sings", "key": "new", "year": 2026}\n')
    out = shell("index add i more.jsonl --device cpu").out  # the columns of build
    assert "1 documents added to i, which now has 41 (" in out
    command = "search i 'a bird sings' --device cpu --top_k 41 --format"
    best, *_ = hits_of(shell(f"{command} json").out)
    assert best == {
        "score": pytest.approx(1, abs=2e-6),
        "id": "new",
        "text": "a bird sings",
        "metadata": {"year": 2026},
    }
    (here / "gone.txt").write_text("d1\nd2\n")
    assert "3 documents removed from i, which now has 38 (" in shell("index remove i new --ids gone.txt").out
    assert not {"new", "d1", "d2"} & {hit["id"] for hit in hits_of(shell(f"{command} json").out)}
    info = json.loads(shell("index info i --format json").out)
    assert (info["documents"], info["vectors"], info["removed"]) == (38, 40, 2)
    assert sorted(path.name for path in (here / "i").iterdir())[0] == "index.sqlite"


@pytest.mark.slow
def test_vectors_of_embed_are_indexed_without_encoding(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        shell(f"embed TEXTS v.npy --model BERT --device cpu --truncate_dim 9 --shard {number}/3")
    with monkeypatch.context() as patched:
        patched.setattr(ENCODED, None)
        shell(f"{BUILD} --vectors v.npy")
    info = shell("index info i").out
    assert "features            9" in info and "documents           40" in info
    shell("index add i TEXTS --device cpu")
    head, *lines = shell(f"search i '{tiny.TEXTS[7]}' --format tsv").out.splitlines()
    assert head.split(TAB) == ["query", "rank", "score", "id", "text"]
    ids = [line.split(TAB)[3] for line in lines]
    assert {*ids} >= {"7", "47"}
    text = shell(f"search i '{tiny.TEXTS[7]}'").out
    assert all(f"  id {name}  " in text for name in ids)
    (here / "less.txt").write_text("\n".join(tiny.TEXTS[:39]))
    said = shell.refused("index build less.txt j --model BERT --vectors v.npy")
    assert "expected vectors of this model and these texts, got other texts" in said
    said = shell.refused(f"{BUILD.replace(' i ', ' j ')} --vectors v.npy --passages 4/1")
    assert "--passages: expected it without --vectors" in said
    assert not (here / "j").exists()


@pytest.mark.parametrize("place", ["encoded", pytest.param("written", marks=pytest.mark.slow)])
def test_a_stopped_build_resumes(shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if place == "encoded":
            patched.setattr(UnfinishedVectors, "finish", stop)
            assert shell.status(BUILD) == 130
            assert "the same command resumes after them" in shell.capture.readouterr().err
        else:
            replace = os.replace
            patched.setattr("os.replace", lambda *paths: (stop if "sqlite" in str(paths[1]) else replace)(*paths))
            with pytest.raises(KeyboardInterrupt):
                shell(BUILD)
    assert "expected the folder of an index" in shell.refused("index info i")
    out = shell(BUILD).out
    assert "40 of 40 texts are encoded already; resuming after them" in out or place == "written"
    assert sorted(path.name for path in (here / "i").iterdir()) == ["index.sqlite", "vectors-0.npy"]


@pytest.mark.slow
@pytest.mark.usefixtures("table")
def test_a_hit_in_an_index_of_passages_has_its_span(shell: Shell, here: Path, files: dict[str, str]) -> None:
    out = shell("index build docs.tsv i --model BERT --device cpu --passages 4/1").out
    assert "40 documents in " in out and " passages written to i" in out
    best, *_ = hits_of(shell("search i 'a bird' --device cpu --format json").out)
    text = tiny.TEXTS[int(best["id"])]
    assert text[slice(*best["span"])] == best["text"] != text
    with pytest.warns(UserWarning, match="names no pooler"):
        index = Index.open(here / "i", files["bert"], device="cpu")
    assert index.search("a bird")[0][0].passage == best["text"]


@pytest.mark.parametrize(
    ("line", "said"),
    rest_slow(
        [
            ("index bild", "contrastive-text index: expected one of build, add, remove or info, got 'bild'"),
            ("index build docs.tsv i --model BERT --id_column none", "one of its columns key, text, year, other"),
            ("index build docs.tsv i --model BERT --id_column other", "expected each id once, got 'x' twice"),
            ("index build docs.tsv i --model BERT --passages 64/8", "passages: expected at most 30 tokens"),
            ("index build docs.tsv docs.tsv --model BERT", "docs.tsv"),
            ("index add i docs.tsv", "i: expected the folder of an index, got a folder without index.sqlite"),
            ("index remove i 3", "i: expected the folder of an index, got a folder without index.sqlite"),
            ("index info i", "i: expected the folder of an index, got a folder without index.sqlite"),
            ("search docs.tsv bird", "--model: expected a model to encode the corpus, got nothing"),
        ],
        quick=3,
    ),
)
@pytest.mark.usefixtures("table")
def test_a_wrong_command_is_refused(shell: Shell, here: Path, line: str, said: str) -> None:
    assert said in shell.refused(line)
    assert [path.name for path in here.iterdir()] == ["docs.tsv"]


def test_the_help_of_index_lists_its_actions(shell: Shell) -> None:
    for line in ("index", "index --help"):
        out = shell(line).out
        assert all(f"\n  {action} " in out for action in ("build", "add", "remove", "info"))
    assert "usage: contrastive-text index build [options] --model" in shell("index build --help").out
