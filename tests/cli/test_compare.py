"""``contrastive-text compare``: from files and folders to a table, and the answers to wrong inputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from retrieval_files import write_beir
from shells import Shell

from contrastive_text import SentenceEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.poolers import MeanPooler

COMPARE = "compare old new --resamples 50"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, ``old`` and ``new``."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("old", "new")):
        path = tiny.save_bert(folder / f"bert-{name}", seed=seed)
        SentenceEncoder.from_pretrained(path, pooler=MeanPooler(), device="cpu").save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def models(saved: Path, here: Path) -> None:
    """The two models, in the working directory."""
    for name in ("old", "new"):
        (here / name).symlink_to(saved / name)


def test_two_models_are_compared_on_a_file(shell: Shell) -> None:
    said = shell(f"{COMPARE} --data PAIRS").out
    assert said.startswith("Spearman x 100, setting all | pairs.tsv |")
    assert "against the first model | " in said and "neighbors in common" in said
    assert "50 resamples" in said


@pytest.mark.slow
def test_the_output_is_a_document_that_a_program_can_read(shell: Shell) -> None:
    words = "compare old new old --data PAIRS --texts TEXTS --resamples 50 --format json --cache vectors"
    loaded = json.loads(shell(words).out)  # nothing else is printed there
    assert [one["model"] for one in loaded["differences"]] == ["new", "old (2)"]
    assert loaded["differences"][1]["difference"] == 0
    assert loaded["texts"] == 40
    shell(f"{words} --output found.json")
    assert json.loads(Path("found.json").read_text()) == loaded
    assert len(list(Path("vectors").iterdir())) == 2  # of two models; nothing was encoded twice


def test_a_folder_of_data_sets_is_searched_for_tasks(shell: Shell) -> None:
    Path("sts").mkdir()
    tiny.write_pairs(Path("sts/stsb.test.tsv"))
    said = shell(f"{COMPARE} --data . --format markdown").out
    assert "| STS-B |" in said and "n/a" in said
    assert "- STS12: expected " in said


@pytest.mark.slow
def test_transfer_tasks_are_compared_beside_those_of_sts(shell: Shell) -> None:
    tiny.write_pairs(Path("stsb.test.tsv"))
    rows = [f"{i % 2}\t{text}" for i, text in enumerate(tiny.TEXTS)]
    Path("mr.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    said = shell(f"{COMPARE} --data . --suite sts transfer --protocol fast --format json").out
    loaded = json.loads(said)
    assert [one["task"] for one in loaded["differences"]] == ["STS-B", "MR"]
    transfer = loaded["scores"][1]["models"].values()
    accuracies = [task["score"] for row in transfer for task in row["tasks"] if task["task"] == "MR"]
    assert loaded["scores"][1]["title"] == "transfer x 100, fast, torch"
    assert any("missing" in task for row in transfer for task in row["tasks"])
    assert loaded["differences"][1]["difference"] == pytest.approx(accuracies[1] - accuracies[0], abs=1e-9)


def test_retrieval_is_compared_query_by_query(shell: Shell, here: Path) -> None:
    write_beir(here / "small", queries={f"q{i}": text for i, text in enumerate(tiny.TEXTS[:9], start=1)})
    loaded = json.loads(shell(f"{COMPARE} --data small --suite retrieval --format json").out)
    (table,) = loaded["scores"]
    old, new = (row["tasks"][0]["score"] for row in table["models"].values())
    assert table["title"] == "ndcg@10 x 100"
    (difference,) = loaded["differences"]
    assert difference["task"] == "small" and difference["difference"] == pytest.approx(new - old)
    assert any("vectors not compared" in note for note in loaded["notes"])  # two queries have a relevant document


def test_a_file_of_pairs_is_ranked_among_further_texts(shell: Shell, here: Path) -> None:
    rows = zip(["searched", *tiny.TEXTS[:9]], ["clicked", *tiny.TEXTS[9:18]], strict=True)
    Path("clicks.csv").write_text("".join(f"{query},{document}\n" for query, document in rows))
    tiny.write_texts(here / "more.txt", tiny.TEXTS[18:])
    words, named = f"{COMPARE} --data clicks.csv --suite retrieval", "--columns anchor=searched positive=clicked"
    said = shell(f"{words} {named} --corpus more.txt --tasks clicks.csv --format json")
    (difference,) = json.loads(said.out)["differences"]
    assert difference["task"] == "clicks.csv"
    assert f"9 queries, {len({*tiny.TEXTS[9:]})} documents" in said.err
    assert "give --columns anchor=NAME positive=NAME" in shell.refused(words)
    said = shell.refused(f"compare old new --data . {named}")
    assert "--columns: expected a file of pairs for --data, got .;" in said


@pytest.mark.slow
def test_a_model_that_names_no_pooler_is_read_with_the_one_that_is_asked_for(shell: Shell) -> None:
    def scores(more: str) -> list[float]:
        said = shell(f"compare BERT new --data PAIRS --resamples 50 --format json {more}").out
        (table,) = json.loads(said)["scores"]
        return [row["tasks"][0]["score"] for row in table["models"].values()]

    (mean, own), (cls, other) = scores(""), scores("--pooler CLSPooler")
    assert cls != mean and other == own


def test_warnings_are_notes(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedEncoder, "__call__", lambda _, texts: torch.ones(len(texts), 4))  # collapsed
    said = shell(f"{COMPARE} --data PAIRS").err
    assert "note: pairs.tsv: spearman: all 12 values" in said
    assert "UserWarning" not in said
