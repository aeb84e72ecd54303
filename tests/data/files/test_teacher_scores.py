"""Columns of teacher scores: the forms of their files, and scores that don't fit their texts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from data_files import refuses, write

from contrastive_text.core.random import generator
from contrastive_text.core.types import Example, Row
from contrastive_text.data import read_rows
from contrastive_text.data.files import mapped
from contrastive_text.data.files.labels import collate_scores
from contrastive_text.data.files.mapped import ArrowRows
from contrastive_text.pairings import Given

READS = ("anchor", "positive", "scores")
TRIPLE = {"query": "q", "pos": "a", "neg": ["b", "c"]}
ROW: Row = {"anchor": "q", "positive": "a", "negative": "b", "negative_2": "c", "scores": (9.5, 1.0, 2.0)}


def jsonl(folder: Path, *rows: dict[str, Any]) -> Path:
    return write(folder / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


FORMS: dict[str, dict[str, Any]] = {
    "one list": {**TRIPLE, "scores": [9.5, 1, 2]},
    "FlagEmbedding's two lists": {**TRIPLE, "pos_scores": [9.5], "neg_scores": [1, 2]},
    "sentence-transformers' columns and label": {
        "query": "q", "positive": "a", "negative_1": "b", "negative_2": "c", "label": [9.5, 1, 2],
    },
    "a label and a list": {**TRIPLE, "label": 1, "scores": [9.5, 1, 2]},
    "a number for the only positive": {**TRIPLE, "pos_scores": 9.5, "neg_scores": [1, 2]},
    "a blank hard negative without a score": {**TRIPLE, "neg": ["b", "", "c"], "scores": [9.5, 1, None, 2]},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_positives_score_and_then_the_negatives(form: str, tmp_path: Path) -> None:
    table = read_rows(jsonl(tmp_path, FORMS[form]), READS)
    assert table.rows == (ROW,)
    assert ("label ignored" in table.description) == (form == "a label and a list")
    assert "-> scores: 1 to 9.5" in table.description


def test_tables_have_lists_as_json_or_a_column_for_each_text(tmp_path: Path) -> None:
    lists = write(tmp_path / "lists.tsv", "query\tpos\tneg\tneg_2\tscores\nq\ta\tb\tc\t[9.5, 1, 2.0]\n")
    assert read_rows(lists, READS).rows == (ROW,)
    columns = write(tmp_path / "columns.csv", "query,pos,neg,neg_2,p,n,m\nq,a,b,c,9.5,1,2\nr,a,b,,9.5,1,\n")
    found = read_rows(columns, READS, columns={"scores": ["p", "n", "m"]}).rows
    assert found[0] == ROW
    assert found[1]["scores"] == (9.5, 1.0)


def test_rows_from_python_have_scores_by_name_and_last_in_a_tuple() -> None:
    assert read_rows([dict(ROW)], READS).rows == (ROW,)
    assert read_rows([("q", "a", "b", "c", [9.5, 1, 2])], READS).rows == (ROW,)


def test_each_positive_of_a_query_keeps_its_score_with_the_scores_of_all_hard_negatives(tmp_path: Path) -> None:
    siblings = {"query": "q", "pos": ["a", "d"], "neg": ["b"], "pos_scores": [3, 2], "neg_scores": [1]}
    alone = {"query": "r", "pos": ["a"], "neg": [], "pos_scores": [3], "neg_scores": []}
    table = read_rows(jsonl(tmp_path, siblings, alone), READS)
    assert [row["scores"] for row in table] == [(3.0, 1.0), (2.0, 1.0), (3.0,)]
    examples = [Given()(row, generator(0))[0] for row in table]
    assert [example.scores for example in examples[:2]] == [(3.0, 1.0), (2.0, 1.0)]
    assert examples[2].negatives == ("",)
    assert math.isnan((examples[2].scores or ())[1])


def test_drawn_hard_negatives_keep_their_scores() -> None:
    names = ("negative", "negative_2", "negative_3", "negative_4", "negative_5")
    row: Row = {"anchor": "q", "positive": "p", **dict(zip(names, ["1", "2", "3", "4", ""], strict=True))}
    scored = {**row, "scores": (0.0, 1.0, 2.0, 3.0, 4.0)}
    drawn = set()
    for seed in range(20):
        (example,) = Given(negatives=2)(scored, generator(seed))
        assert example.scores == (0.0, *map(float, example.negatives))
        assert example.negatives == Given(negatives=2)(row, generator(seed))[0].negatives
        drawn.add(example.negatives)
    assert len(drawn) > 3
    (example,) = Given(negatives=4)({**row, "negative_4": "", "scores": (0.0, 1.0, 2.0, 3.0)}, generator(0))
    assert example.negatives == ("1", "2", "3", "")
    assert math.isnan((example.scores or ())[4])


def test_mapped_rows_have_the_scores_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rows = [{**TRIPLE, "neg": ["b", "c"][: 1 + i % 2], "scores": [9.5, i, 2][: 2 + i % 2]} for i in range(23)]
    held = read_rows(jsonl(tmp_path, *rows), READS)
    monkeypatch.setattr(mapped, "MAPPED_ROWS", 10)
    found = read_rows(tmp_path / "rows.jsonl", READS, cache_dir=tmp_path / "cache")
    assert isinstance(found.rows, ArrowRows)
    assert tuple(found.rows) == held.rows == tuple(found.rows[i] for i in range(len(found)))


def test_files_that_are_read_without_scores_say_that_scores_are_ignored(tmp_path: Path) -> None:
    table = read_rows(jsonl(tmp_path, FORMS["FlagEmbedding's two lists"]), READS[:2])
    assert "pos_scores, neg_scores ignored" in table.description
    assert "scores" not in table.rows[0]


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "too few": ({**TRIPLE, "scores": [1, 2]}, ("scores", "1 positive and 2 hard negatives", "got 2;")),
    "too many": ({**TRIPLE, "scores": [1, 2, 3, 4]}, ("got 4;",)),
    "a margin": ({**TRIPLE, "neg": "b", "score": 3.5}, ("a score in score", "got 1;", "margin m", "[m, 0]")),
    "two lists": ({**TRIPLE, "pos_scores": [1, 2], "neg_scores": [3]}, ("pos_scores, neg_scores", "got 2 and 1")),
    "of no text": ({**TRIPLE, "neg": [], "scores": [1, 2]}, ("1 positive and 0 hard negatives", "got 2")),
    "NaN": ({**TRIPLE, "scores": [1, math.nan, 2]}, ("finite numbers in scores", "NaN")),
    "infinite": ({**TRIPLE, "scores": [1, math.inf, 2]}, ("finite numbers in scores", "Infinity")),
    "null": ({**TRIPLE, "scores": [1, None, 2]}, ("finite numbers in scores", "null")),
    "a word": ({**TRIPLE, "scores": [1, "high", 2]}, ("finite numbers in scores", '"high"')),
    "nested": ({**TRIPLE, "scores": [[1], [2], [3]]}, ("finite numbers in scores", "[1]")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_scores_that_do_not_fit_are_refused_with_their_line(name: str, tmp_path: Path) -> None:
    row, words = REFUSED[name]
    good = {key: value for key, value in row.items() if key in ("query", "pos", "neg")}
    texts = 1 + (len(good["neg"]) if isinstance(good["neg"], list) else 1)
    column = "scores" if "scores" in row else "score" if "score" in row else ""
    before = {**good, column: [5, *range(texts - 1)]} if column else FORMS["FlagEmbedding's two lists"]
    with refuses("rows.jsonl:2: expected", *words):
        read_rows(jsonl(tmp_path, before, row), READS)


@pytest.mark.parametrize("scores", [[1, 1, 1], [2, 2, 2]])
def test_scores_that_are_equal_in_every_row_are_refused_and_in_some_rows_counted(
    scores: list[float], tmp_path: Path
) -> None:
    rows = [{**TRIPLE, "scores": scores}, {**TRIPLE, "scores": [1, 1, 1]}]
    with refuses("rows.jsonl: expected different scores for the texts of a row in scores, got the same score"):
        read_rows(jsonl(tmp_path, *rows), READS)
    table = read_rows(jsonl(tmp_path, *rows, {**TRIPLE, "scores": [1, 2, 3]}), READS)
    assert "-> scores: 1 to 3, equal in 2 rows" in table.description


def test_columns_that_are_missing_or_could_both_be_meant_are_refused(tmp_path: Path) -> None:
    with refuses("expected a column for scores (scores, pos_scores, neg_scores", "give columns scores=NAME"):
        read_rows(jsonl(tmp_path, TRIPLE), READS)
    both = {**FORMS["one list"], "pos_scores": [1], "neg_scores": [1, 2]}
    with refuses("expected one column for scores, got scores and pos_scores"):
        read_rows(jsonl(tmp_path, both), READS)
    one = {**TRIPLE, "score": [1, 2, 3], "similarity": [1, 2, 3]}
    with refuses("expected one column for scores, got score and similarity"):
        read_rows(jsonl(tmp_path, one), READS)


def test_a_pairing_that_gives_another_number_of_scores_than_texts_is_refused() -> None:
    good = Example("q", ("a",), ("b",), scores=(1.0, 0.5), views_per_text=2)
    assert collate_scores([Example("q", ("a",))], "Mine") is None
    scores = collate_scores([good], "Mine")
    assert scores is not None
    assert scores.tolist() == [[1.0, 1.0, 0.5, 0.5]]
    for other in (Example("q", ("a",), ("b",), scores=(1.0,)), Example("q", ("a",), ("b",))):
        with refuses("pairing Mine: expected 2 scores, one for each positive and hard negative", "got"):
            collate_scores([good, other], "Mine")
