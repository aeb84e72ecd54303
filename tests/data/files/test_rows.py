"""Rows of one file: which cells give rows, what is left out and told, splits and odd files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_files import PAIR, SCORED, refuses, texts, write

from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.readers import read_pairs, read_rows
from contrastive_text.data.files.rows import FileRows


def file_rows(folder: Path, name: str, content: str, reads: tuple[str, ...] = ("text",)) -> FileRows:
    path = folder / name
    path.write_bytes(content.encode())
    return FileRows(path, reads, {}, Labels(None))


@pytest.mark.parametrize(
    ("name", "content", "texts", "said"),
    [
        ("a.csv", "text\rone\rtwo\r", ["one", "two"], "2 rows"),
        ("a.csv", 'id,text\n1,"one\ntwo"\n', ["one\ntwo"], "id ignored; 1 row"),
        ("a.txt", '{"text": "one", "text": "two"}\n', ['{"text": "one", "text": "two"}'], "1 row"),
        ("a.tsv", "text\n\u200b\none\n \n", ["one"], "1 blank line left out; 1 row with an empty text left out"),
        ("a.csv", "text,split\na,x\nb,y\n", ["a", "b"], "text -> text; split ignored; 2 rows"),
        ("a.csv", "text,split\na,train\nb,\n", ["b"], "split:  (1); train (1) left out; 1 row"),
        (
            "a.jsonl",
            '{"text": "\\u200b"}\n{"text": ["one", "\\u2060"]}\n{"text": []}\n',
            ["one"],
            "text -> text (1 to 2 rows a line); 1 row; 3 rows with an empty text left out",
        ),
    ],
)
def test_odd_files_are_read(tmp_path: Path, name: str, content: str, texts: list[str], said: str) -> None:
    rows = file_rows(tmp_path, name, content)
    assert [row["text"] for _, row in rows] == texts
    assert rows.understood(len(texts)).endswith(said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", '{"text": "one"}\n{"sentence": "two"}\n', "one column for text, got text and sentence"),
        ("a.csv", "text,split\na,train\nb,test\n", r"rows of one split, got train \(1\), test \(1\)"),
        ("a.tsv", "text\n1\n", "anchor"),
    ],
)
def test_what_is_wrong_with_a_whole_file_is_said_before_its_first_row(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    rows = iter(file_rows(tmp_path, name, content, PAIR if said == "anchor" else ("text",)))
    with pytest.raises(ValueError, match=said):
        next(rows)


def test_lines_of_rows_are_those_of_the_file(tmp_path: Path) -> None:
    content = "anchor\tpositive\n\na\tp\nb\t \nc\tq\n"
    assert list(file_rows(tmp_path, "a.tsv", content, PAIR)) == [
        (3, {"anchor": "a", "positive": "p"}),
        (5, {"anchor": "c", "positive": "q"}),
    ]


def test_numbers_of_negatives_are_kept_as_they_come_and_told(tmp_path: Path) -> None:
    content = '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n'
    rows = file_rows(tmp_path, "a.jsonl", content + content.replace(', "m"', ""), PAIR)
    assert [len(row) for _, row in rows] == [4, 3]
    assert rows.negatives == {1: 1, 2: 1}
    assert "negative -> negative, negative_2 (1 to 2 a line)" in rows.understood(2)


def test_lists_of_positives_give_rows_and_lists_of_negatives_give_columns(tmp_path: Path) -> None:
    lines = [
        {"query": "q1", "pos": ["p1", "p2"], "neg": ["n1", "n2", "n3"], "query_id": 7},
        {"query": "q2", "pos": ["p3"], "neg": ["n4", "n5"]},
    ]
    table = read_rows(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines))), PAIR)
    assert table.rows == (
        {"anchor": "q1", "positive": "p1", "negative": "n1", "negative_2": "n2", "negative_3": "n3"},
        {"anchor": "q1", "positive": "p2", "negative": "n1", "negative_2": "n2", "negative_3": "n3"},
        {"anchor": "q2", "positive": "p3", "negative": "n4", "negative_2": "n5", "negative_3": ""},
    )
    assert table.understood == (
        "a.jsonl: query -> anchor, pos -> positive (1 to 2 rows a line), "
        "neg -> negative, negative_2, negative_3 (2 to 3 a line); query_id ignored; 3 rows"
    )


def test_scores_that_are_not_asked_for_are_ignored_aloud(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "score\tpremise\thypothesis\n3.5\ta\tb\n")
    table = read_rows(path, PAIR)
    assert table.rows == ({"anchor": "a", "positive": "b"},)
    assert table.understood == "a.tsv: premise -> anchor, hypothesis -> positive; score ignored; 1 row"


def test_single_texts_may_have_a_target(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "one", "label": true}\n{"text": "two", "label": "2"}\n')
    assert read_rows(path, ["text", "target"]).rows == (
        {"text": "one", "target": 1.0},
        {"text": "two", "target": 2.0},
    )


def test_pairs_that_are_read_as_single_texts_give_each_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "score\tsentence2\tsentence1\n1\tb\ta\n2\t \tc\n")
    table = read_rows(path, ["text"])
    assert texts(table) == ["b", "a", "c"]
    assert table.understood == (
        "a.tsv: sentence2, sentence1 -> text (2 rows a line); score ignored; 3 rows; "
        "1 row with an empty text left out"
    )


def test_rows_with_an_empty_text_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = ["anchor\tpositive\tneg", "a\tp\tn", "\tp\tn", "a\t \tn", "a\tp\t", "", "\t\t", "a\tp\tm"]
    table = read_rows(write(tmp_path / "a.tsv", "\n".join(lines) + "\n\n"), PAIR)
    assert [row["negative"] for row in table] == ["n", "", "m"]
    assert table.understood.endswith("; 3 rows; 3 blank lines left out; 2 rows with an empty text left out")


def test_an_empty_list_holds_no_hard_negative(tmp_path: Path) -> None:
    lines = [{"query": "a", "pos": ["p"], "neg": []}, {"query": "b", "pos": ["q"], "neg": ["n"]}]
    table = read_rows(write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, lines))), PAIR)
    assert [row["negative"] for row in table] == ["", "n"]
    assert table.understood.endswith("neg -> negative (0 to 1 a line); 2 rows; 1 blank line left out")
    none = read_rows(write(tmp_path / "b.jsonl", json.dumps(lines[0])), PAIR)
    assert none.rows == ({"anchor": "a", "positive": "p"},)
    assert "neg -> no hard negatives" in none.understood


def test_a_file_without_a_row_left_says_what_was_left_out(tmp_path: Path) -> None:
    with refuses("expected at least one row", "got 1 blank line left out, 2 rows with an empty text left out"):
        read_rows(write(tmp_path / "a.tsv", "text\tn\n \t1\n\n\t2\n"), ["text"])


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ({"anchor": 5, "positive": "p"}, "expected a text in anchor, got 5"),
        ({"anchor": ["a", "b"], "positive": "p"}, 'expected a text in anchor, got ["a", "b"]'),
        ({"anchor": "a", "positive": ["p", 1]}, "expected a text or a list of texts in positive, got"),
    ],
)
def test_a_json_value_that_is_no_text_is_named(tmp_path: Path, row: dict[str, object], got: str) -> None:
    with refuses(f"a.jsonl:1: {got}"):
        read_rows(write(tmp_path / "a.jsonl", json.dumps(row)), PAIR)


@pytest.mark.parametrize("cell", ["entailment", "", "nan"])
def test_a_target_that_is_no_number_is_named_with_its_line(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path / "a.tsv", f"score\tsentence1\tsentence2\n5\ta\tb\n{cell}\tc\td\n")
    with refuses(f"a.tsv:3: expected a number in score, got {cell!r}"):
        read_rows(path, SCORED)


@pytest.mark.parametrize("value", ["null", "[1]", "1" + "0" * 400])
def test_a_json_target_that_is_no_number_is_named(tmp_path: Path, value: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": {value}}}')
    with refuses("a.jsonl:1: expected a number in label, got"):
        read_rows(path, ["text", "target"])


def test_pairs_are_refused_from_a_txt_file(tmp_path: Path) -> None:
    with refuses("a.txt: expected anchor, positive, got a .txt file", "one text a line", ".tsv"):
        read_rows(write(tmp_path / "a.txt", "one\n"), PAIR)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        (["-1", "5", "0.0", "-1.0"], [5.0, 0.0]),  # GLUE's for none
        (["-1", "0.5", "-0.2", "1"], [-1.0, 0.5, -0.2, 1.0]),  # a score like others
        (["3", "4"], [3.0, 4.0]),
        (["3", "", " - ", " "], [3.0]),
    ],
)
def test_a_gold_score_that_is_empty_or_minus_one_where_none_is_below_0_is_none(
    tmp_path: Path, scores: list[str], kept: list[float]
) -> None:
    lines = ["sentence1\tsentence2\tscore", *(f"a {i}\tb\t{score}" for i, score in enumerate(scores))]
    table = read_pairs(write(tmp_path / "a.tsv", "\n".join(lines)))
    assert [row["target"] for row in table] == kept
    left_out = len(scores) - len(kept)
    rows = f"{len(kept)} row{'s' if len(kept) > 1 else ''}"
    assert table.understood.endswith(
        f"{rows}; {left_out} rows without a gold label left out" if left_out else rows
    )


def test_a_file_of_no_gold_scores_is_refused(tmp_path: Path) -> None:
    with refuses("a.tsv: expected at least one row with text and a gold label, got 2 rows without"):
        read_pairs(write(tmp_path / "a.tsv", "sentence1\tsentence2\tscore\na\tb\t-1\nc\td\t-1\n"))


def test_texts_that_cannot_be_seen_are_counted(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.txt", "one\n\u200b\n\n\ufeff\u2060\n"), ["text"])
    assert texts(table) == ["one"]
    assert (
        table.understood
        == "a.txt: text -> text; 1 row; 1 blank line left out; 2 rows with an empty text left out"
    )
    pairs = write(tmp_path / "a.tsv", "anchor\tpositive\na\tb\na\t\u200b\n")
    assert "1 row with an empty text left out" in read_rows(pairs, ["anchor", "positive"]).understood
