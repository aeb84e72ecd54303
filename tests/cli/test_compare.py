"""``contrastive-text compare``: from files and folders to a table, and the answers to wrong inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny
import torch
from retrieval_files import write_beir

from contrastive_text import SentenceEncoder
from contrastive_text.cli import run
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.poolers import MeanPooler

Answer = Callable[[Sequence[str]], str]


@pytest.fixture
def models(here: Path) -> list[str]:
    for seed, name in enumerate(("old", "new")):
        path = tiny.save_bert(here / f"bert-{name}", seed=seed)
        SentenceEncoder.from_pretrained(path, pooler=MeanPooler(), device="cpu").save_pretrained(here / name)
    return ["old", "new"]


def test_two_models_are_compared_on_a_file(
    models: list[str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *models, "--data", files["pairs"], "--resamples", "50"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Spearman x 100, setting all | pairs.tsv |")
    assert "against the first model | " in said and "neighbours in common" in said
    assert "50 resamples" in said


def test_the_output_is_a_document_that_a_program_can_read(
    models: list[str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *models, "old", "--data", files["pairs"], "--texts", files["texts"], "--resamples", "50"]
    words += ["--format", "json", "--cache", "vectors"]
    assert run(words) == 0
    loaded = json.loads(capsys.readouterr().out)  # nothing else is printed there
    assert [one["model"] for one in loaded["differences"]] == ["new", "old (2)"]
    assert loaded["differences"][1]["difference"] == 0
    assert loaded["texts"] == 40
    assert run([*words, "--output", "found.json"]) == 0
    assert json.loads(Path("found.json").read_text()) == loaded
    assert len(list(Path("vectors").iterdir())) == 2  # of two models; nothing was encoded twice


def test_a_folder_of_data_sets_is_searched_for_tasks(
    models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sts").mkdir()
    tiny.write_pairs(Path("sts/stsb.test.tsv"))
    assert run(["compare", *models, "--data", ".", "--resamples", "50", "--format", "markdown"]) == 0
    said = capsys.readouterr().out
    assert "| STS-B |" in said and "n/a" in said
    assert "- STS12: expected " in said


def test_transfer_tasks_are_compared_beside_those_of_sts(
    models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_pairs(Path("stsb.test.tsv"))
    rows = [f"{i % 2}\t{text}" for i, text in enumerate(tiny.TEXTS)]
    Path("mr.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    words = ["compare", *models, "--data", ".", "--suite", "sts", "transfer", "--protocol", "fast"]
    assert run([*words, "--resamples", "50", "--format", "json"]) == 0
    loaded = json.loads(capsys.readouterr().out)
    assert [one["task"] for one in loaded["differences"]] == ["STS-B", "MR"]
    transfer = loaded["scores"][1]["models"].values()
    accuracies = [task["score"] for row in transfer for task in row["tasks"] if task["task"] == "MR"]
    assert loaded["scores"][1]["title"] == "transfer x 100, fast, torch"
    assert any("missing" in task for row in transfer for task in row["tasks"])
    assert loaded["differences"][1]["difference"] == pytest.approx(accuracies[1] - accuracies[0], abs=1e-9)


def test_retrieval_is_compared_query_by_query(
    models: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_beir(
        here / "small", queries={f"q{number}": text for number, text in enumerate(tiny.TEXTS[:9], start=1)}
    )
    options = "--data small --suite retrieval --resamples 50 --format json"
    assert run(["compare", *models, *options.split()]) == 0
    loaded = json.loads(capsys.readouterr().out)
    (table,) = loaded["scores"]
    old, new = (row["tasks"][0]["score"] for row in table["models"].values())
    assert table["title"] == "ndcg@10 x 100"
    (difference,) = loaded["differences"]
    assert difference["task"] == "small" and difference["difference"] == pytest.approx(new - old)
    assert any("vectors not compared" in note for note in loaded["notes"])  # two queries have a relevant document


def test_a_file_of_pairs_is_ranked_among_further_texts(
    models: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = zip(["searched", *tiny.TEXTS[:9]], ["clicked", *tiny.TEXTS[9:18]], strict=True)
    Path("clicks.csv").write_text("".join(f"{query},{document}\n" for query, document in rows))
    tiny.write_texts(here / "more.txt", tiny.TEXTS[18:])
    words = ["compare", *models, "--data", "clicks.csv", "--suite", "retrieval", "--resamples", "50"]
    named = ["--columns", "anchor=searched", "positive=clicked"]
    assert run([*words, *named, "--corpus", "more.txt", "--tasks", "clicks.csv", "--format", "json"]) == 0
    printed = capsys.readouterr()
    (difference,) = json.loads(printed.out)["differences"]
    assert difference["task"] == "clicks.csv"
    assert f"9 queries, {len({*tiny.TEXTS[9:]})} documents" in printed.err
    assert run(words) == 2
    assert "give --columns anchor=NAME positive=NAME" in capsys.readouterr().err
    assert run(["compare", *models, "--data", ".", *named]) == 2
    assert "--columns: expected a file of pairs for --data, got .;" in capsys.readouterr().err


def test_a_model_that_names_no_pooler_is_read_with_the_one_that_is_asked_for(
    models: list[str], files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", files["bert"], models[1], "--data", files["pairs"], "--resamples", "50"]

    def scores(*more: str) -> list[float]:
        assert run([*words, *more, "--format", "json"]) == 0
        (table,) = json.loads(capsys.readouterr().out)["scores"]
        return [row["tasks"][0]["score"] for row in table["models"].values()]

    (mean, own), (cls, other) = scores(), scores("--pooler", "CLSPooler")
    assert cls != mean and other == own


def test_warnings_are_notes(
    models: list[str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        CachedEncoder,
        "__call__",
        lambda _, texts: torch.ones(len(texts), 4),  # collapsed
    )
    assert run(["compare", *models, "--data", files["pairs"], "--resamples", "10"]) == 0
    said = capsys.readouterr().err
    assert "note: pairs.tsv: spearman: all 12 values" in said
    assert "UserWarning" not in said
