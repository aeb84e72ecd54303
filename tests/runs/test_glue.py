"""GLUE: its files with their quirks, its means of metrics, and fine-tuning of every kind of task as runs."""

from __future__ import annotations

import json
from pathlib import Path

import glue_files
import pytest
import tiny
from shells import run_here

from contrastive_text.cli import run
from contrastive_text.data.files import parsing as hub
from contrastive_text.data.files.formats import Content
from contrastive_text.recipes import GLUE_GRID
from contrastive_text.runs import glue
from contrastive_text.runs.glue import AVERAGED, GLUE, Finetuned, find_tasks, glue_table, write_task
from contrastive_text.runs.grid import Cell, plan, read_grid
from contrastive_text.runs.sweep_table import SweepRun, SweepTable


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return glue_files.write_glue(tmp_path_factory.mktemp("GLUE"))


def rows(path: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def test_each_task_is_read_in_glue_s_own_form(folder: Path, tmp_path: Path) -> None:
    labels = {
        "MRPC": "equivalent", "QQP": "duplicate", "QNLI": "entailment", "RTE": "entailment", "WNLI": "entailment",
        "STS-B": 1.0, "MNLI": "neutral", "SST-2": "positive", "CoLA": "acceptable",
    }  # fmt: skip
    assert find_tasks(str(folder)) == dict.fromkeys(GLUE, "") and {*labels} == {*GLUE}
    for name, label in labels.items():
        task = GLUE[name]
        files = write_task(task, str(folder), tmp_path / name)
        assert files.rows == dict.fromkeys(("train", *task.dev), 24)
        second = rows(files.paths["train"])[1]
        texts = {"anchor": tiny.TEXTS[1], "positive": tiny.TEXTS[10]} if task.pairs else {"text": tiny.TEXTS[1]}
        assert {key: str(value).strip() for key, value in second.items() if key != "target"} == texts
        assert second["target"] == label
        assert ("left out: rows with another number of fields 1" in files.description) == (name == "QQP")


def test_what_is_missing_or_no_file_of_glue_s_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").write_text("index\tpremise\tlabel\n0\ta\tentailment\n")
    with pytest.raises(ValueError, match=r"expected a folder with tasks of GLUE .* https://gluebenchmark"):
        find_tasks(str(tmp_path))
    glue_files.write_glue(tmp_path / "other")
    (tmp_path / "other" / "CoLA" / "dev.tsv").unlink()
    lacking = find_tasks(str(tmp_path / "other"), ["CoLA", "SST-2"])
    assert lacking["CoLA"].startswith("expected dev.tsv in") and lacking["SST-2"] == ""
    with pytest.raises(ValueError, match=r"train.tsv: expected the column sentence1 of GLUE's RTE, got index"):
        write_task(GLUE["RTE"], str(tmp_path), tmp_path / "out")
    path = tmp_path / "other" / "RTE" / "train.tsv"
    path.write_text(path.read_text() + "24\ta\tb\tmaybe\n")
    with pytest.raises(ValueError, match=r"train.tsv:26: expected entailment, not_entailment, got 'maybe'"):
        write_task(GLUE["RTE"], str(tmp_path / "other"), tmp_path / "out")
    with pytest.raises(ValueError, match=r"--tasks: expected some of MNLI, .*, got MNL"):
        find_tasks(str(folder), ["MNL"])


def test_the_hub_s_copies_have_the_same_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def content(path: str) -> Content:
        asked.append(path)
        found = [(1, ("a b", "c", "not_equivalent", 0)), (2, ("d", "e", -1, 1))]
        return Content(["sentence1", "sentence2", "label", "idx"], lambda: found)

    monkeypatch.setattr(glue, "hub_content", content)
    assert hub.hub_content is not content
    files = write_task(GLUE["MRPC"], "hub", tmp_path)
    assert asked == ["hub:nyu-mll/glue:mrpc:train", "hub:nyu-mll/glue:mrpc:validation"]
    assert rows(files.paths["dev"]) == [{"anchor": "a b", "positive": "c", "target": "not_equivalent"}]
    assert "left out: rows without a label 1" in files.description


def finetuned(name: str, *figures: dict[str, float]) -> Finetuned:
    cell = Cell(("1e-5", "16"))
    key = GLUE[name].config
    validations = [{f"val/{key}/{metric}": value for metric, value in each.items()} for each in figures]
    runs = [SweepRun(cell.labels, seed, validations=[each]) for seed, each in enumerate(validations)]
    return Finetuned(GLUE[name], 10, SweepTable(["lr"], [cell], runs, range(len(runs)), GLUE[name].select))


def test_scores_are_clear_s_means_and_medians_over_seeds() -> None:
    mnli = {"accuracy": 81.0, "accuracy/dev_matched": 80.0, "accuracy/dev_mismatched": 83.0}
    found = {
        "MNLI": finetuned("MNLI", mnli),
        "QQP": finetuned("QQP", {"accuracy": 90.0, "f1": 87.0, "matthews": 1.0}),
        "STS-B": finetuned("STS-B", *({"pearson": 88.0 + i, "spearman": 90.0} for i in (0, 8, 2))),
        "CoLA": finetuned("CoLA", {"accuracy": 99.0, "matthews": 60.0}),
        "RTE": "expected dev.tsv",
    }
    table = glue_table("m", found)
    scores = {score.task: score for score in table.rows["m"]}
    assert [scores[name].score for name in ("MNLI", "QQP", "STS-B", "CoLA")] == [81.5, 88.5, 90.0, 60.0]
    assert scores["STS-B"].parts == {"pearson": 90.0, "spearman": 90.0}
    assert scores["RTE"].missing == "expected dev.tsv" and table.average("m") != table.average("m")
    whole = dict.fromkeys(AVERAGED, finetuned("QNLI", {"accuracy": 70.0}))
    assert len(AVERAGED) == 8 and "WNLI" not in AVERAGED and whole["QNLI"].describe().startswith("QNLI: 70.00")


@pytest.mark.slow
def test_every_kind_of_task_is_fine_tuned_once_and_tabled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("contrastive_text.cli.sweep._call", run_here)
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=64)
    words = ["evaluate", bert, "--suite", "glue", "--data", str(folder), "--runs", str(tmp_path / "runs")]
    words += ["--tasks", "MNLI", "MRPC", "CoLA", "STS-B", *glue_files.write_short(tmp_path), "--format", "json"]
    assert run(words) == 0
    first = capsys.readouterr()
    found = json.loads(first.out)["glue"]["models"][bert]["tasks"]
    figures = {task["task"]: [*task["parts"]] for task in found}
    assert figures == {
        "MNLI": ["accuracy/dev_matched", "accuracy/dev_mismatched"],
        "MRPC": ["accuracy", "f1"],
        "CoLA": [],
        "STS-B": ["pearson", "spearman"],
    }
    assert "fine-tuned in" in first.err
    assert run(words) == 0
    again = capsys.readouterr()
    assert again.out == first.out and "1 of them are finished already" in again.err


def test_the_shipped_grid_is_that_of_roberta() -> None:
    cells = plan(read_grid(GLUE_GRID))
    assert [cell.labels for cell in cells] == [
        (rate, size) for rate in ("1e-05", "2e-05", "3e-05") for size in ("16", "32")
    ]
