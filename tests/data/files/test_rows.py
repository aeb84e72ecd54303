"""Rows of one file: cells that are no texts, splits and odd files; each is read as it was meant, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.rows import FileRows

PAIR = ("anchor", "positive")


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
    assert rows.negatives == {1, 2}
    assert "negative -> negative (1 to 2 a line, the first 1 kept)" in rows.understood(2)
