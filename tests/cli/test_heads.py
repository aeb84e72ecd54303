"""Trained heads in the shell: what a run saves and prints, ``export --as``, ``classify`` and ``rank``."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import tiny
from shells import Shell
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from contrastive_text.cli import run

REFUSED = [
    ("export c.ckpt out --head a", "--head: expected together with --as, got it alone; add --as classifier"),
    (
        "export c.ckpt out --as classifier --separate_adapters",
        "--separate_adapters: expected without --as, got both",
    ),
    (
        "classify TEXTS out.tsv --model BERT",
        "expected all weights of BertForSequenceClassification, got a folder with",
    ),
    ("rank TEXTS TEXTS out.tsv --model BERT --top_k 0", "--top_k: expected 1 or more, got 0"),
    ("score PAIRS out.tsv --model BERT", "expected all weights of BertForSequenceClassification, got a folder"),
    (
        "evaluate BERT --suite retrieval --data PAIRS --rerank_top_k 5",
        "--rerank_top_k: expected it with --rerank",
    ),
    ("evaluate BERT PAIRS --rerank BERT", "--rerank: expected something that reads it"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_a_wrong_head_is_refused_and_nothing_is_written(
    line: str, message: str, shell: Shell, here: Path
) -> None:
    (here / "c.ckpt").touch()
    said = shell.refused(line)
    assert all(part in said for part in message.split(" ... ")), said
    assert not (here / "out").exists() and not (here / "out.tsv").exists()


@pytest.fixture(scope="module")
def runs(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the recipe glue, and of a task of texts with a pair task next to it."""
    folder = tmp_path_factory.mktemp("heads")
    pairs = [f"{text}\t{tiny.TEXTS[i - 9]}\t{i % 2}\n" for i, text in enumerate(tiny.TEXTS)]
    (folder / "pairs.tsv").write_text("".join(["sentence1\tsentence2\tlabel\n", *pairs]))
    texts = [f"{text}\t{i % 5}\n" for i, text in enumerate(tiny.TEXTS)]
    (folder / "texts.tsv").write_text("".join(["text\tlabel\n", *texts]))
    small = [
        "--model.encoder.model_name_or_path", files["bert"], "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.max_steps", "2",
    ]  # fmt: skip
    root = ["--trainer.default_root_dir", str(folder)]
    glue = ["--data.tasks.glue.train", str(folder / "pairs.tsv"), "--export.dirpath", str(folder / "glue")]
    assert run(["fit", "--recipe", "glue", *small, *root, *glue]) == 0
    tasks = [
        f"--data.tasks.sentiment.train={folder / 'texts.tsv'}", f"--data.tasks.similarity.train={files['pairs']}",
        f"--data.tasks.paraphrase.train={folder / 'pairs.tsv'}",
    ]  # fmt: skip
    assert run(["fit", "--recipe", "cs224n", *small, *root, *tasks]) == 0
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.slow
def test_a_run_whose_product_is_a_head_saves_the_head(runs: Path, shell: Shell, here: Path) -> None:
    said = shell(f"classify {runs / 'pairs.tsv'} classes.tsv --model {runs / 'glue'} --score --device cpu").out
    assert "40 predictions written to classes.tsv" in said and "accuracy: " in said
    table = rows(here / "classes.tsv")
    assert list(table[0]) == ["anchor", "positive", "prediction", "probability"]
    hits = sum(row["prediction"] == str(i % 2) for i, row in enumerate(table))
    assert f"accuracy: {100 * hits / 40:.2f} ({hits} of 40)" in said
    card = (runs / "glue" / "README.md").read_text(encoding="utf-8")
    for part in (
        "library_name: transformers",
        "# Classifier",
        "AutoModelForSequenceClassification",
        "CrossEncoder",
    ):
        assert part in card
    assert str(runs) not in card
    shell(f"verify {runs / 'glue'}")
    refused = shell.refused(f"rank TEXTS TEXTS r.tsv --model {runs / 'glue'}")
    assert "Reranker: expected a head with one output, got 2 (0, 1)" in refused
    (here / "wrong.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tmaybe\n")
    refused = shell.refused(f"classify wrong.tsv w.tsv --model {runs / 'glue'} --score")
    assert "expected one of the classes 0, 1, got 'maybe'" in refused and not (here / "w.tsv").exists()


@pytest.mark.slow
def test_a_reranker_orders_documents(runs: Path, shell: Shell, here: Path) -> None:
    said = shell(f"export {runs / 'version_0'} reranker --as reranker").out
    assert "contrastive-text rank QUERIES.txt DOCUMENTS.txt RANKED.tsv --model reranker" in said
    assert "expected a run with a head" in shell.refused("export CHECKPOINT out --as classifier")
    shell("export CHECKPOINT reranker")  # an encoder replaces it
    assert (here / "reranker" / "modules.json").is_file()
    said = shell(f"export {runs / 'version_0'} reranker --as reranker").out
    assert "replacing an older model" in said and not (here / "reranker" / "modules.json").exists()
    said = shell("rank TEXTS TEXTS ranked.tsv --model reranker --top_k 3 --device cpu").out
    assert "40 queries with up to 3 of 40 documents written to ranked.tsv" in said
    table = rows(here / "ranked.tsv")
    assert [row["rank"] for row in table[:4]] == ["1", "2", "3", "1"]
    scores = [float(row["score"]) for row in table[:3]]
    assert scores == sorted(scores, reverse=True)
    assert table[0]["text"] == tiny.TEXTS[int(table[0]["line"]) - 1]


@pytest.mark.slow
def test_the_heads_of_a_run_of_several_tasks_are_named_and_saved_one_by_one(
    runs: Path, shell: Shell, here: Path
) -> None:
    several = f"export {runs / 'version_1'}"
    assert "the run has the heads sentiment, paraphrase, similarity; add --head sentiment" in shell.refused(
        f"{several} x --as classifier"
    )
    refused = shell.refused(f"{several} x --as classifier --head sentiment")
    assert "expected CLSPooler, Linear, Tanh, Linear, got CLSPooler, Linear, ReLU, Linear" in refused
    assert "FineTuningHead(out_features=5), or add --own_format" in refused and not (here / "x").exists()
    shell(f"{several} sentiment --as classifier --head sentiment --own_format")
    shell(f"{several} paraphrase --as classifier --head paraphrase")
    shell(f"{several} similarity --as regressor --head similarity")
    card = (here / "similarity" / "README.md").read_text(encoding="utf-8")
    assert "only contrastive-text loads it" in card and "scores from 0 to 5" in card
    shell("classify TEXTS classes.tsv --model sentiment --device cpu")
    assert {row["prediction"] for row in rows(here / "classes.tsv")} <= {*"01234"}
    shell(f"classify {runs / 'pairs.tsv'} pairs.tsv --model paraphrase --device cpu")
    shell("embed TEXTS v.npy --model paraphrase --device cpu")


@pytest.mark.slow
def test_a_classifier_of_another_program_asks_for_pairs_by_its_option(
    runs: Path, files: dict[str, str], shell: Shell, here: Path
) -> None:
    AutoModelForSequenceClassification.from_pretrained(files["bert"]).save_pretrained(here / "other")
    AutoTokenizer.from_pretrained(files["bert"]).save_pretrained(here / "other")
    line = f"classify {runs / 'pairs.tsv'} classes.tsv --model other --score --device cpu"
    refused = shell.refused(line)
    assert "give --pairs for pairs or --columns text=sentence1 text=sentence2" in refused
    assert "pairing" not in refused
