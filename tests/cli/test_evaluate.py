"""The command evaluate: files of pairs, suites as tables, one encoder for all, wrong input in a few lines."""

from __future__ import annotations

import csv
import io
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sts_files
import tiny
import torch
from retrieval_files import write_beir
from safetensors.torch import load_file, save_file
from scipy.stats import pearsonr

from contrastive_text.cli import run
from contrastive_text.data import read_rows
from contrastive_text.evaluation import CachedEncoder, sts_data, sts_scores, trained_sts_scores
from contrastive_text.evaluation import sts as trained_sts
from contrastive_text.evaluation.classifiers import FAST, SklearnClassifier, TorchClassifier
from contrastive_text.evaluation.senteval import transfer_scores
from contrastive_text.evaluation.sts import pair_cosines
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import FIGURES
from contrastive_text.poolers import CLSPooler

Answer = Callable[[Sequence[str]], str]


@pytest.fixture
def data(here: Path) -> Path:
    """The seven STS tasks as tables."""
    return sts_files.write_tables(here / "data")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], tuple[str, str]]:
    """Runs evaluate; gives what it wrote to standard output and to standard error."""

    def of(words: Sequence[str]) -> tuple[str, str]:
        capsys.readouterr()
        assert run(["evaluate", *words]) == 0
        captured = capsys.readouterr()
        return captured.out, captured.err

    return of


@pytest.fixture
def embed(files: dict[str, str]) -> CachedEncoder:
    with warnings.catch_warnings(action="ignore"):  # the folder names no pooler
        return CachedEncoder(SentenceEncoder.from_pretrained(files["bert"]))


# Suites


def test_the_table_is_all_of_standard_output(
    files: dict[str, str], data: Path, said: Any, embed: CachedEncoder
) -> None:
    out, err = said([files["bert"], "--suite", "sts", "--data", str(data)])
    head, _, row = out.splitlines()
    scores = sts_scores(embed, data)
    names = ["Spearman x 100, all", *(score.task for score in scores), "Avg."]
    assert [cell.strip() for cell in head.split("|")] == names
    mean = sum(score.score for score in scores) / 7
    figures = [f"{figure:.2f}" for figure in (*(score.score for score in scores), mean)]
    assert [cell.strip() for cell in row.split("|")] == [files["bert"], *figures]
    assert "STS15: sts15.test.tsv:" in err and "5 rows without a gold label left out; 3,000 were published" in err
    assert "40 distinct texts encoded; 0 truncated to 32 tokens" in err
    assert "MeanPooler, for it names none, at most 32 tokens" in err
    assert "note:" in err and "names no pooler: taking the mean over tokens" in err


@pytest.mark.parametrize("setting", ["mean", "wmean"])
def test_the_setting_is_that_of_the_scores(
    files: dict[str, str], data: Path, said: Any, embed: CachedEncoder, setting: str
) -> None:
    out, _ = said([files["bert"], "--suite", "sts", "--data", str(data), "--setting", setting, "--format", "csv"])
    figures = {row["task"]: row["score"] for row in csv.DictReader(io.StringIO(out)) if not row["part"]}
    for score in sts_scores(embed, data, setting):
        # equal texts in batches of other texts
        assert float(figures[score.task]) == pytest.approx(score.score, abs=1e-9)


@pytest.mark.slow
def test_several_suites_share_an_encoder_and_an_object(
    files: dict[str, str], data: Path, said: Any, embed: CachedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_sts, "_EPOCHS", 50)
    words = [files["bert"], "--suite", "trained-sts", "sts", "sts-pearson", "--data", str(data), "--format"]
    out, err = said([*words, "json"])
    found = json.loads(out)
    assert list(found) == ["trained-sts", "sts", "sts-pearson"]
    (linear,) = found["sts-pearson"]["models"].values()
    pairs = find_sts(data)["STS-B"]
    assert isinstance(pairs, STSPairs)
    expected_of = pearsonr(pair_cosines(embed, pairs).numpy(), pairs.gold.numpy()).statistic
    assert linear["tasks"][5]["score"] == pytest.approx(100 * expected_of, abs=1e-6)  # float32 vectors
    assert linear["tasks"][5]["metric"] == "pearson"
    (trained,) = found["trained-sts"]["models"].values()
    expected = trained_sts_scores(embed, data)
    assert [task["task"] for task in trained["tasks"]] == [score.task for score in expected]
    for task, score in zip(trained["tasks"], expected, strict=True):
        assert set(task["parts"]) == {"dev pearson", "test pearson"}
        assert task["score"] == pytest.approx(score.score, abs=1e-9)
    (cosine,) = found["sts"]["models"].values()
    assert len(cosine["tasks"][0]["parts"]) == 5
    assert "STS-B (trained): stsb.train.tsv:" in err and "; 5,749 were published" in err
    assert "40 distinct texts encoded" in err
    rows = list(csv.DictReader(io.StringIO(said([*words, "csv"])[0])))
    assert {row["suite"] for row in rows} == {"trained-sts", "sts", "sts-pearson"}
    assert float(rows[0]["score"]) == trained["tasks"][0]["score"]


def test_trained_pairs_are_read_once(
    files: dict[str, str], data: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_sts, "_EPOCHS", 1)
    paths: list[str] = []
    monkeypatch.setattr(
        sts_data, "read_rows", lambda path, **options: [paths.append(path), read_rows(path, **options)][1]
    )
    said([files["bert"], "--suite", "trained-sts", "--data", str(data)])
    assert len(paths) == len(set(paths)) == 6


@pytest.mark.parametrize(
    ("form", "begins"), [("text", "Spearman x"), ("markdown", "| Spear"), ("latex", r"\begin")]
)
def test_a_table_for_each_year_has_its_sub_sets(
    files: dict[str, str], data: Path, said: Any, form: str, begins: str
) -> None:
    words = [files["bert"], "--suite", "sts", "--data", str(data), "--subsets", "--format", form]
    first, *years = said(words)[0].split("\n\n")
    assert first.startswith(begins)
    assert len(years) == 5
    assert "STS16, subsets" in years[-1] and "plagiarism" in years[-1]


def test_a_missing_set_is_named_and_leaves_no_mean(files: dict[str, str], data: Path, said: Any) -> None:
    (data / "sts13.test.tsv").unlink()
    out, _ = said([files["bert"], "--suite", "sts", "--data", str(data)])
    _, _, row, note = out.splitlines()
    assert [cell.strip() for cell in row.split("|")][2] == "n/a" == row.split("|")[-1].strip()
    assert note.startswith("STS13: expected sts13.test.tsv") and str(data) in note


def test_vectors_in_a_cache_are_not_encoded_again_and_tables_go_to_a_file(
    files: dict[str, str], data: Path, said: Any, here: Path
) -> None:
    words = [files["bert"], "--cache", "vectors", "--suite", "sts", "--data", str(data), "--format", "json"]
    first, _ = said(words)
    out, err = said([*words, "--output", "scores.json"])
    assert out == ""
    assert "\n0 distinct texts encoded" in err and "scores written to scores.json" in err
    assert (here / "scores.json").read_text() == first


def test_collapsed_vectors_are_noted_with_the_task(
    files: dict[str, str], data: Path, said: Any, here: Path
) -> None:
    collapsed = altered(Path(files["bert"]), here / "collapsed", 0.0)
    out, err = said([str(collapsed), "--suite", "sts", "--data", str(data)])
    assert out.splitlines()[2].split("|")[1].strip() == "0.00"
    assert "note: STS12: spearman: all 25 values of the first argument are equal" in " ".join(err.split())


@pytest.mark.parametrize("classifier", ["torch", pytest.param("sklearn", marks=pytest.mark.slow)])
def test_the_suites_of_classifiers_get_protocol_and_classifier(
    files: dict[str, str], data: Path, said: Any, embed: CachedEncoder, classifier: str
) -> None:
    rows = [(f"{len(text) % 2}", text) for text in tiny.TEXTS]
    sts_files.write_rows(data / "mr.tsv", ("label", "text"), rows)
    words = [files["bert"], "--data", str(data), "--suite", "sts", "transfer", "--format", "csv"]
    out, err = said([*words, "--protocol", "fast", "--classifier", classifier])
    table, _ = said([*words[:-1], "text", "--protocol", "fast", "--classifier", classifier])
    assert f"\n\ntransfer x 100, fast, {classifier} " in table
    (found,) = (r for r in csv.DictReader(io.StringIO(out)) if (r["task"], r["part"]) == ("MR", ""))
    chosen = {"torch": TorchClassifier, "sklearn": SklearnClassifier}[classifier]()
    (expected,) = transfer_scores(embed, data, protocol=FAST, classifier=chosen, tasks=("MR",))
    # a row may lie on the border of the classes in one batch and beyond it in another
    assert float(found["score"]) == pytest.approx(expected.score, abs=2.5)
    assert "40 distinct texts encoded" in err


def test_several_poolers_are_rows_of_each_table(files: dict[str, str], data: Path, said: Any, here: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        SentenceEncoder.from_pretrained(files["bert"], pooler=CLSPooler()).save_pretrained(here / "cls")
    words = ["cls", "--pooler", "MeanPooler", "CLSPooler"]
    out, err = said([*words, "--suite", "sts", "--data", str(data), "--subsets"])
    names = ["cls (MeanPooler)", "cls (CLSPooler)"]
    first, *years = [[line.split("|")[0].strip() for line in table.splitlines()] for table in out.split("\n\n")]
    assert first[2:] == names and [year[2:] for year in years] == 5 * [names]
    assert "cls: MeanPooler, asked for in place of its own CLSPooler, at most" in err
    assert "cls: CLSPooler, at most" in err and err.count("40 distinct texts encoded") == 1
    (alone,) = said(["cls", "--suite", "sts", "--data", str(data)])[0].splitlines()[2:]
    assert alone.split()[1:] == out.splitlines()[3].split()[2:]
    pairs = said(["cls", files["pairs"], *words[1:]])[0]
    assert all(f"│ {name} " in pairs for name in names)


def test_frequent_tokens_are_left_out_by_several_numbers_in_one_pass(
    files: dict[str, str], data: Path, said: Any
) -> None:
    words = [files["bert"], "--suite", "sts", "--data", str(data)]
    (plain,) = said(words)[0].splitlines()[2:]
    out, _ = said([*words, "--without_frequent", "0", "3"])
    rows = [line.split("|") for line in out.splitlines()[2:]]
    assert [row[0].split()[-2:] for row in rows] == [["without", "0"], ["without", "3"]]
    # rounding, of sums in another order
    figures = [[float(cell) for cell in row[1:]] for row in (*rows, plain.split("|"))]
    assert figures[0] == pytest.approx(figures[2], abs=0.011) and figures[1] != pytest.approx(figures[2], abs=0.1)
    out, err = said([*words, "--without_frequent", "3", "--frequencies", files["texts"]])
    assert "texts.txt: " in err and "tokens of 40 texts" in out


# Files


def test_files_share_their_vectors_and_a_cache(files: dict[str, str], said: Any, here: Path) -> None:
    other = tiny.write_pairs(here / "other.tsv", count=6)
    out, _ = said([files["bert"], files["pairs"], other, "--cache", "vectors"])
    again, _ = said([files["bert"], files["pairs"], other, "--cache", "vectors"])
    different = {cell for path in (files["pairs"], other) for line in Path(path).read_text().splitlines()[1:]
                 for cell in line.split("\t")[:2]}  # fmt: skip
    assert f"{len(different)} distinct texts encoded" in out
    assert "\n0 distinct texts encoded; 0 truncated to 32 tokens\n" in again
    assert out.splitlines()[-4:] == again.splitlines()[-4:]


def test_what_a_file_leaves_out_is_said_and_has_no_part_in_the_score(
    files: dict[str, str], said: Any, here: Path
) -> None:
    whole = Path(files["pairs"]).read_text(encoding="utf-8")
    further = ["a bird\ta dog\t-1", "\ta dog\t3", ""]
    (here / "with.tsv").write_text(whole + "\n".join(further) + "\n", encoding="utf-8")
    out, _ = said([files["bert"], files["pairs"], "with.tsv"])
    left_out = "1 blank line left out; 1 row with an empty text left out; 1 row without a gold label left out"
    assert f"with.tsv: sentence1 -> anchor, sentence2 -> positive, score -> target; 12 rows; {left_out}\n" in out
    (other, alike) = (line.split()[-5:] for line in out.splitlines() if line.rstrip().endswith("│"))
    assert other == alike


def test_a_file_of_collapsed_vectors_is_noted(files: dict[str, str], said: Any, here: Path) -> None:
    collapsed = altered(Path(files["bert"]), here / "collapsed", 0.0)
    out, _ = said([str(collapsed), files["pairs"]])
    assert f"note: {files['pairs']}: spearman: all 12 values" in " ".join(out.split())


def test_texts_that_an_earlier_run_has_cut_are_said(files: dict[str, str], said: Any, here: Path) -> None:
    rows = [("1", "a bird", 20 * "the old bird sings "), ("2", "a bird", "a dog")]
    sts_files.write_rows(here / "long.tsv", ("score", "sentence1", "sentence2"), rows)
    assert (
        "distinct texts encoded; 1 truncated to 32 tokens\n"
        in said([files["bert"], "long.tsv", "--cache", "v"])[0]
    )
    again, _ = said([files["bert"], "long.tsv", "--cache", "v"])
    assert "0 distinct texts encoded; 0 truncated to 32 tokens, 1 of earlier runs\n" in again


def test_files_of_one_name_are_told_apart(files: dict[str, str], said: Any, here: Path) -> None:
    for folder in ("[x]", "y"):
        (here / folder).mkdir()
        tiny.write_pairs(here / folder / "pairs.tsv", count=6)
    tiny.write_pairs(here / "other.tsv", count=6)
    out, _ = said([files["bert"], "[x]/pairs.tsv", "y/pairs.tsv", "y/../other.tsv"])
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == ["[x]/pairs.tsv", "y/pairs.tsv", "other.tsv"]


# Wrong input


def altered(folder: Path, copy: Path, value: float) -> Path:
    """A copy of a model whose last layer's weights all have a value."""
    with warnings.catch_warnings(action="ignore"):  # the folder names no pooler
        SentenceEncoder.from_pretrained(folder).save_pretrained(copy)
    (path,) = copy.rglob("model.safetensors")
    weights = load_file(path)
    for name in weights:
        if "layer.1.output.LayerNorm" in name:
            weights[name] = torch.full_like(weights[name], value if "weight" in name else value + 1)
    save_file(weights, path, metadata={"format": "pt"})
    (copy / "contrastive_text.manifest.json").unlink()  # which would find the altered weights
    return copy


def test_labelled_pairs_have_the_accuracy_of_cosines_above_a_threshold(
    files: dict[str, str], here: Path, said: Callable[[Sequence[str]], tuple[str, str]], embed: CachedEncoder
) -> None:
    texts = tiny.TEXTS[:24]
    cosines = pair_cosines(embed, STSPairs(texts[:12], texts[12:], torch.zeros(12), ["a"] * 12))
    threshold = float(cosines.sort().values[4:6].mean())  # five pairs below it, seven above
    labels = [i % 3 == 0 for i in range(12)]
    lines = [f"{texts[i]}\t{texts[i + 12]}\t{int(label)}\t{'xy'[i % 2]}" for i, label in enumerate(labels)]
    (here / "asked.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel\tgenre", *lines]) + "\n")
    out, _ = said([files["bert"], "asked.tsv", "--threshold", f"{threshold:.9f}"])
    right = [(float(cosine) > threshold) == label for cosine, label in zip(cosines, labels, strict=True)]
    expected = [f"{100 * sum(rows) / len(rows):.2f}" for rows in (right, right[::2], right[1::2])]
    cells = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    assert [row[-2].strip() for row in cells] == expected
    assert len({*expected}) > 1


def test_a_damaged_model_has_no_score(
    files: dict[str, str], data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = altered(Path(files["bert"]), here / "damaged", float("nan"))
    for words in (["--suite", "sts", "--data", str(data)], [files["pairs"]]):
        capsys.readouterr()
        assert run(["evaluate", str(damaged), *words]) == 2
        captured = capsys.readouterr()
        assert "Spearman" not in captured.out
        assert "Traceback" not in captured.err
        said = captured.err.splitlines()[-1]
        assert said.startswith("error: ") and "expected finite vectors" in said and "weights are damaged" in said


# Retrieval


def test_retrieval_is_scored_by_what_finds_what(files: dict[str, str], here: Path, said: Any) -> None:
    write_beir(here / "small")
    out, err = said([files["bert"], "--suite", "retrieval", "--data", "small", "--subsets"])
    assert [cell.strip() for cell in out.splitlines()[0].split("|")] == ["small, x 100", *FIGURES]
    assert "\n\n" not in out.strip()  # one table of the only task
    assert "small: small, test: 2 queries, 4 documents, 3 relevant" in err
    Path("pairs.tsv").write_text("searched\tpositive\na bird\tit sings\na dog\tit runs\n")
    Path("more.txt").write_text("it sleeps\n")
    options = "--suite retrieval --data pairs.tsv --corpus more.txt --columns anchor=searched --format json"
    (row,) = json.loads(said([files["bert"], *options.split()])[0])["retrieval"]["models"].values()
    (task,) = row["tasks"]
    assert (task["task"], task["size"]) == ("pairs.tsv", 2) and task["parts"]["recall@10"] == 100


def test_scores_of_files_are_written_for_a_program(files: dict[str, str], here: Path, said: Any) -> None:  # noqa: ARG001  # the working directory
    lines = [f"{one}\t{two}\t{i % 6}\tpart {i % 2}" for i, (one, two, _) in enumerate(tiny.scored_pairs(12))]
    Path("parts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore\tgenre", *lines, ""]))
    words = [files["bert"], files["pairs"], "parts.tsv"]
    shown = said(words)[0]
    out, err = said([*words, "--format", "json"])
    tables = json.loads(out)
    assert tables.keys() == {"spearman", "pearson"} and "12 rows" in err
    (row,) = tables["spearman"]["models"].values()
    names = [task["task"] for task in row["tasks"]]
    assert names == [Path(files["pairs"]).name, "parts.tsv", "parts.tsv, part 0", "parts.tsv, part 1"]
    assert all(f"{task['score']:.2f}" in shown for task in row["tasks"])
    assert row["average"] == pytest.approx(sum(task["score"] for task in row["tasks"][:2]) / 2)
    assert "scores written to scores.csv" in said([*words, "--format", "csv", "--output", "scores.csv"])[1]
    assert Path("scores.csv").read_text().startswith("suite,model,task")
