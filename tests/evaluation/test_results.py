"""Tables of scores: no silent mean over fewer tasks, the same figures in every format."""

import csv
import io
import json

import pytest

from contrastive_text.evaluation.results import FORMATS, ScoreTable, TaskScore

MR = TaskScore("MR", "accuracy", 81.25, size=10, parts={"dev": 80.0})
CR = TaskScore("CR", "accuracy", 86.5, size=4)
GONE = TaskScore.absent("CR", "accuracy", "expected cr.tsv in data; get it from the SentEval copy")


def test_the_mean_is_of_all_tasks_or_of_none() -> None:
    table = ScoreTable("accuracy", {"whole": [MR, CR], "part": [MR, GONE]})
    assert table.average("whole") == 83.875
    for name, write in FORMATS.items():
        said = write(table)
        assert "83.87" in said or "83.88" in said, name
        assert "expected cr.tsv in data" in said, name
    assert table.text().splitlines()[3].split() == ["part", "|", "81.25", "|", "n/a", "|", "n/a"]
    assert json.loads(table.json())["models"]["part"]["average"] is None
    assert ScoreTable("a", {"m": [MR, GONE]}, averaged=["MR"]).average("m") == 81.25
    assert "n/a" in ScoreTable("a", {"m": [MR]}, averaged=["MR", "SUBJ"]).text().splitlines()[2]


def test_csv_and_json_hold_full_precision_and_parts() -> None:
    table = ScoreTable(
        "accuracy", {"a, b": [TaskScore("MR", "accuracy", 100 / 3, size=3, parts={"dev": 200 / 3})]}
    )
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["part"] for row in rows] == ["", "dev", ""]
    assert float(rows[0]["score"]) == 100 / 3 and float(rows[1]["score"]) == 200 / 3
    assert rows[0]["model"] == "a, b"
    (task,) = json.loads(table.json())["models"]["a, b"]["tasks"]
    assert task["score"] == 100 / 3 and task["parts"]["dev"] == 200 / 3


def test_latex_escapes_names() -> None:
    said = ScoreTable("accuracy", {"my_model & co": [MR]}).latex()
    assert r"my\_model \& co & 81.25 & 81.25 \\" in said
    assert said.startswith(r"\begin{tabular}{lrr}")


def test_rows_of_different_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="expected the tasks MR in every row, got CR for b"):
        ScoreTable("a", {"a": [MR], "b": [CR]})
