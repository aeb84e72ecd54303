"""The command evaluate: files of pairs, suites as tables, one encoder for all, wrong input in a few lines."""

from __future__ import annotations

import csv
import io
import json
import warnings
from pathlib import Path

import pytest
import sts_files
import tiny
import torch
from covering import rest_slow
from retrieval_files import write_beir
from safetensors.torch import load_file, save_file
from scipy.stats import pearsonr
from shells import Shell

from contrastive_text.data import read_rows
from contrastive_text.evaluation import CachedEncoder, sts_data, sts_scores, trained_sts_scores
from contrastive_text.evaluation import sts as trained_sts
from contrastive_text.evaluation.classifiers import FAST, SklearnClassifier, TorchClassifier
from contrastive_text.evaluation.senteval import transfer_scores
from contrastive_text.evaluation.sts import pair_cosines
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import RETRIEVAL_METRICS
from contrastive_text.poolers import CLSPooler

STS = "evaluate BERT --data data --suite sts"


@pytest.fixture
def data(here: Path) -> Path:
    """The seven STS tasks as tables, in the folder of that name."""
    return sts_files.write_tables(here / "data")


@pytest.fixture(scope="module")
def embed(files: dict[str, str]) -> CachedEncoder:
    with warnings.catch_warnings(action="ignore"):  # the folder names no pooler
        return CachedEncoder(SentenceEncoder.from_pretrained(files["bert"]))


def cells(line: str, between: str = "|") -> list[str]:
    return [cell.strip() for cell in line.split(between)]


# Suites


def test_the_table_is_all_of_standard_output_and_a_missing_set_leaves_no_mean(
    shell: Shell, files: dict[str, str], data: Path, embed: CachedEncoder
) -> None:
    said = shell(STS)
    head, _, row = said.out.splitlines()
    scores = sts_scores(embed, data)
    assert cells(head) == ["Spearman x 100, all", *(score.task for score in scores), "Avg."]
    mean = sum(score.score for score in scores) / 7
    assert cells(row) == [files["bert"], *(f"{each:.2f}" for each in (*(score.score for score in scores), mean))]
    for part in (
        "STS15: sts15.test.tsv:",
        "5 rows without a gold label left out; 3,000 were published",
        "40 distinct texts encoded; 0 truncated to 32 tokens",
        "MeanPooler, for it names none, at most 32 tokens",
        "names no pooler: taking the mean over tokens",
    ):
        assert part in said.err
    (data / "sts13.test.tsv").unlink()
    _, _, row, note = shell(STS).out.splitlines()
    assert cells(row)[2] == "n/a" == cells(row)[-1]
    assert note.startswith("STS13: expected sts13.test.tsv") and "data" in note


@pytest.mark.parametrize("setting", rest_slow(["mean", "wmean"]))
def test_the_setting_is_that_of_the_scores(shell: Shell, data: Path, embed: CachedEncoder, setting: str) -> None:
    out = shell(f"{STS} --setting {setting} --format csv").out
    figures = {row["task"]: row["score"] for row in csv.DictReader(io.StringIO(out)) if not row["part"]}
    for score in sts_scores(embed, data, setting):
        # equal texts in batches of other texts
        assert float(figures[score.task]) == pytest.approx(score.score, abs=1e-9)


@pytest.mark.slow
def test_several_suites_share_an_encoder_and_an_object(
    shell: Shell, data: Path, embed: CachedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained_sts, "_EPOCHS", 50)
    words = "evaluate BERT --suite trained-sts sts sts-pearson --data data --format"
    said = shell(f"{words} json")
    found = json.loads(said.out)
    assert list(found) == ["trained-sts", "sts", "sts-pearson"]
    (linear,) = found["sts-pearson"]["models"].values()
    pairs = find_sts(data)["STS-B"]
    assert isinstance(pairs, STSPairs)
    embed = CachedEncoder(embed.model)  # vectors of few tokens at a time, as in other tests, round differently
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
    assert "STS-B (trained): stsb.train.tsv:" in said.err and "; 5,749 were published" in said.err
    assert "40 distinct texts encoded" in said.err
    rows = list(csv.DictReader(io.StringIO(shell(f"{words} csv").out)))
    assert {row["suite"] for row in rows} == {"trained-sts", "sts", "sts-pearson"}
    assert float(rows[0]["score"]) == trained["tasks"][0]["score"]


@pytest.mark.usefixtures("data")
def test_trained_pairs_are_read_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_sts, "_EPOCHS", 1)
    paths: list[str] = []
    monkeypatch.setattr(
        sts_data, "read_rows", lambda path, **options: [paths.append(path), read_rows(path, **options)][1]
    )
    shell("evaluate BERT --suite trained-sts --data data")
    assert len(paths) == len(set(paths)) == 6


@pytest.mark.parametrize(
    ("form", "begins"), rest_slow([("text", "Spearman x"), ("markdown", "| Spear"), ("latex", r"\begin")])
)
@pytest.mark.usefixtures("data")
def test_a_table_for_each_year_has_its_sub_sets(shell: Shell, form: str, begins: str) -> None:
    first, *years = shell(f"{STS} --subsets --format {form}").out.split("\n\n")
    assert first.startswith(begins)
    assert len(years) == 5
    assert "STS16, subsets" in years[-1] and "plagiarism" in years[-1]


@pytest.mark.usefixtures("data")
def test_vectors_in_a_cache_are_not_encoded_again_and_tables_go_to_a_file(shell: Shell, here: Path) -> None:
    words = f"{STS} --cache vectors --format json"
    first = shell(words).out
    out, err = shell(f"{words} --output scores.json")
    assert out == ""
    assert "\n0 distinct texts encoded" in err and "scores written to scores.json" in err
    assert (here / "scores.json").read_text() == first


@pytest.mark.slow
@pytest.mark.parametrize("classifier", ["torch", pytest.param("sklearn", marks=pytest.mark.slow)])
def test_the_suites_of_classifiers_get_protocol_and_classifier(
    shell: Shell, data: Path, embed: CachedEncoder, classifier: str
) -> None:
    rows = [(f"{len(text) % 2}", text) for text in tiny.TEXTS]
    sts_files.write_rows(data / "mr.tsv", ("label", "text"), rows)
    words = f"{STS} transfer --protocol fast --classifier {classifier} --format"
    out, err = shell(f"{words} csv")
    assert f"\n\ntransfer x 100, fast, {classifier} " in shell(f"{words} text").out
    (found,) = (r for r in csv.DictReader(io.StringIO(out)) if (r["task"], r["part"]) == ("MR", ""))
    chosen = {"torch": TorchClassifier, "sklearn": SklearnClassifier}[classifier]()
    (expected,) = transfer_scores(embed, data, protocol=FAST, classifier=chosen, tasks=("MR",))
    # a row may lie on the border of the classes in one batch and beyond it in another
    assert float(found["score"]) == pytest.approx(expected.score, abs=2.5)
    assert "40 distinct texts encoded" in err


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_several_poolers_are_rows_of_each_table(shell: Shell, files: dict[str, str], here: Path) -> None:
    SentenceEncoder.from_pretrained(files["bert"], pooler=CLSPooler()).save_pretrained(here / "cls")
    poolers, sts = "--pooler MeanPooler CLSPooler", "evaluate cls --suite sts --data data"
    out, err = shell(f"{sts} --subsets {poolers}")
    names = ["cls (MeanPooler)", "cls (CLSPooler)"]
    first, *years = [[cells(line)[0] for line in table.splitlines()] for table in out.split("\n\n")]
    assert first[2:] == names and [year[2:] for year in years] == 5 * [names]
    assert "cls: MeanPooler, which you named in place of CLSPooler, at most" in err
    assert "cls: CLSPooler, at most" in err and err.count("40 distinct texts encoded") == 1
    (alone,) = shell(sts).out.splitlines()[2:]
    assert alone.split()[1:] == out.splitlines()[3].split()[2:]
    pairs = shell(f"evaluate cls PAIRS {poolers}").out
    assert all(f"│ {name} " in pairs for name in names)


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_frequent_tokens_are_left_out_by_several_numbers_in_one_pass(shell: Shell) -> None:
    (plain,) = shell(STS).out.splitlines()[2:]
    rows = [line.split("|") for line in shell(f"{STS} --without_frequent 0 3").out.splitlines()[2:]]
    assert [row[0].split()[-2:] for row in rows] == [["without", "0"], ["without", "3"]]
    # rounding, of sums in another order
    figures = [[float(cell) for cell in row[1:]] for row in (*rows, plain.split("|"))]
    assert figures[0] == pytest.approx(figures[2], abs=0.011) and figures[1] != pytest.approx(figures[2], abs=0.1)
    out, err = shell(f"{STS} --without_frequent 3 --frequencies TEXTS")
    assert "texts.txt: " in err and "tokens of 40 texts" in out


# Files


def test_files_share_their_vectors_and_a_cache_and_those_of_one_name_are_told_apart(
    shell: Shell, here: Path
) -> None:
    for path in ("[x]/pairs.tsv", "y/pairs.tsv", "other.tsv"):
        (here / path).parent.mkdir(exist_ok=True)
        tiny.write_pairs(here / path, count=6)
    tiny.write_pairs(here / "y/pairs.tsv", count=12)
    words = "evaluate BERT [x]/pairs.tsv y/pairs.tsv y/../other.tsv --cache vectors"
    out, again = shell(words).out, shell(words).out
    different = {text for first, second, _ in tiny.scored_pairs(12) for text in (first, second)}
    assert f"{len(different)} distinct texts encoded" in out
    assert "\n0 distinct texts encoded; 0 truncated to 32 tokens\n" in again
    rows, same = (
        [cells(line, "│") for line in each.splitlines() if line.startswith("│")] for each in (out, again)
    )
    assert rows == same
    assert [row[1] for row in rows] == ["[x]/pairs.tsv", "y/pairs.tsv", "other.tsv"]


def test_what_a_file_leaves_out_is_said_and_has_no_part_in_the_score(
    shell: Shell, files: dict[str, str], here: Path
) -> None:
    whole = Path(files["pairs"]).read_text(encoding="utf-8")
    further = ["a bird\ta dog\t-1", "\ta dog\t3", ""]
    (here / "with.tsv").write_text(whole + "\n".join(further) + "\n", encoding="utf-8")
    out = shell("evaluate BERT PAIRS with.tsv").out
    left_out = "1 blank line left out; 1 row with an empty text left out; 1 row without a gold label left out"
    assert f"with.tsv: sentence1 -> anchor, sentence2 -> positive, score -> target; 12 rows; {left_out}\n" in out
    (other, alike) = (line.split()[-5:] for line in out.splitlines() if line.rstrip().endswith("│"))
    assert other == alike


def test_texts_that_an_earlier_run_has_cut_are_said(shell: Shell, here: Path) -> None:
    rows = [("1", "a bird", 20 * "the old bird sings "), ("2", "a bird", "a dog")]
    sts_files.write_rows(here / "long.tsv", ("score", "sentence1", "sentence2"), rows)
    words = "evaluate BERT long.tsv --cache v"
    assert "distinct texts encoded; 1 truncated to 32 tokens\n" in shell(words).out
    assert "0 distinct texts encoded; 0 truncated to 32 tokens, 1 of earlier runs\n" in shell(words).out


def test_labeled_pairs_have_the_accuracy_of_cosines_above_a_threshold(
    shell: Shell, here: Path, embed: CachedEncoder
) -> None:
    texts = tiny.TEXTS[:24]
    cosines = pair_cosines(embed, STSPairs(texts[:12], texts[12:], torch.zeros(12), ["a"] * 12))
    threshold = float(cosines.sort().values[4:6].mean())  # five pairs below it, seven above
    labels = [i % 3 == 0 for i in range(12)]
    lines = [f"{texts[i]}\t{texts[i + 12]}\t{int(label)}\t{'xy'[i % 2]}" for i, label in enumerate(labels)]
    (here / "asked.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel\tgenre", *lines]) + "\n")
    out = shell(f"evaluate BERT asked.tsv --threshold {threshold:.9f}").out
    right = [(float(cosine) > threshold) == label for cosine, label in zip(cosines, labels, strict=True)]
    expected = [f"{100 * sum(rows) / len(rows):.2f}" for rows in (right, right[::2], right[1::2])]
    assert [cells(line, "│")[-2] for line in out.splitlines() if line.startswith("│")] == expected
    assert len({*expected}) > 1


def test_scores_of_files_are_written_for_a_program(shell: Shell, here: Path) -> None:
    lines = [f"{one}\t{two}\t{i % 6}\tpart {i % 2}" for i, (one, two, _) in enumerate(tiny.scored_pairs(12))]
    (here / "parts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore\tgenre", *lines, ""]))
    words = "evaluate BERT PAIRS parts.tsv"
    shown = shell(words).out
    out, err = shell(f"{words} --format json")
    tables = json.loads(out)
    assert tables.keys() == {"spearman", "pearson"} and "12 rows" in err
    (row,) = tables["spearman"]["models"].values()
    names = [task["task"] for task in row["tasks"]]
    assert names == ["pairs.tsv", "parts.tsv", "parts.tsv, part 0", "parts.tsv, part 1"]
    assert all(f"{task['score']:.2f}" in shown for task in row["tasks"])
    assert row["average"] == pytest.approx(sum(task["score"] for task in row["tasks"][:2]) / 2)
    assert "scores written to scores.csv" in shell(f"{words} --format csv --output scores.csv").err
    assert (here / "scores.csv").read_text().startswith("suite,model,task")


# Damaged models


def altered(folder: Path, copy: Path, value: float) -> None:
    """Saves a copy of a model whose last layer's weights all have a value."""
    with warnings.catch_warnings(action="ignore"):  # the folder names no pooler
        SentenceEncoder.from_pretrained(folder).save_pretrained(copy)
    (path,) = copy.rglob("model.safetensors")
    weights = load_file(path)
    for name in weights:
        if "layer.1.output.LayerNorm" in name:
            weights[name] = torch.full_like(weights[name], value if "weight" in name else value + 1)
    save_file(weights, path, metadata={"format": "pt"})
    (copy / "contrastive_text.manifest.json").unlink()  # which would find the altered weights


@pytest.mark.slow
@pytest.mark.usefixtures("data")
def test_collapsed_vectors_are_noted_and_damaged_ones_have_no_score(
    shell: Shell, files: dict[str, str], here: Path
) -> None:
    altered(Path(files["bert"]), here / "collapsed", 0.0)
    out, err = shell("evaluate collapsed --suite sts --data data")
    assert out.splitlines()[2].split("|")[1].strip() == "0.00"
    assert "note: STS12: spearman: all 25 values of the first argument are equal" in " ".join(err.split())
    out = shell("evaluate collapsed PAIRS").out
    assert f"note: {files['pairs']}: spearman: all 12 values" in " ".join(out.split())
    altered(Path(files["bert"]), here / "damaged", float("nan"))
    for words in ("--suite sts --data data", "PAIRS"):
        assert shell.status(f"evaluate damaged {words}") == 2
        out, err = shell.capture.readouterr()
        assert "Spearman" not in out
        assert "Traceback" not in err
        said = err.splitlines()[-1]
        assert said.startswith("error: ") and "expected finite vectors" in said and "weights are damaged" in said


# Retrieval


def test_retrieval_is_scored_by_what_finds_what(shell: Shell, here: Path) -> None:
    write_beir(here / "small")
    out, err = shell("evaluate BERT --suite retrieval --data small --subsets")
    assert cells(out.splitlines()[0]) == ["small, x 100", *RETRIEVAL_METRICS]
    assert "\n\n" not in out.strip()  # one table of the only task
    assert "small: small, test: 2 queries, 4 documents, 3 relevant" in err
    (here / "pairs.tsv").write_text("searched\tpositive\na bird\tit sings\na dog\tit runs\n")
    (here / "more.txt").write_text("it sleeps\n")
    words = "evaluate BERT --suite retrieval --data pairs.tsv --corpus more.txt --columns anchor=searched"
    (row,) = json.loads(shell(f"{words} --format json").out)["retrieval"]["models"].values()
    (task,) = row["tasks"]
    assert (task["task"], task["size"]) == ("pairs.tsv", 2) and task["parts"]["recall@10"] == 100
