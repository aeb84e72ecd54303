"""Streaming: one row or text at a time, numbered, in the memory of one line."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from covering import rest_slow
from data_files import PAIR, write

from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.readers import TextStream, read_rows
from contrastive_text.data.files.rows import FileRows


def test_texts_and_what_is_said_are_those_of_read_rows(tmp_path: Path) -> None:
    lines = '{"n": 1}\n\n{"text": ["one", "two", " "]}\n{"text": null}\n'
    for path, column in (
        (write(tmp_path / "a.jsonl", lines), None),
        (write(tmp_path / "a.tsv", "headline\ttext\none\ttwo\n"), "headline"),
        (write(tmp_path / "a.csv", "text,split\na,train\nb,\n"), None),
        (write(tmp_path / "b.txt", "in a folder\nwith the others").parent, None),
    ):
        table = read_rows(path, reads=("text",), columns={"text": column} if column else None)
        texts = TextStream(path, column)
        assert list(texts) == [row["text"] for row in table]
        assert texts.summary is not None
        assert (texts.summary.texts, texts.summary.description) == (len(table), table.description)


def test_rows_come_with_their_lines_and_numbers_of_negatives(tmp_path: Path) -> None:
    content = '{"anchor": "a", "positive": "p", "negative": ["n", "m"]}\n\n{"anchor": "b", "positive": " "}\n'
    content += '{"anchor": "c", "positive": "q", "negative": ["n"]}\n'
    rows = FileRows(write(tmp_path / "a.jsonl", content), PAIR, {}, Labels(None))
    assert [(line, len(row)) for line, row in rows] == [(1, 4), (4, 3)]
    assert rows.negatives == {1: 1, 2: 1}
    assert "negative -> negative, negative_2 (1 to 2 a line)" in rows.describe(2)


@pytest.mark.parametrize("content", ["text,split\na,train\nb,test\n", "satz\n1\n"])
def test_what_is_wrong_with_a_whole_file_is_said_before_its_first_row(tmp_path: Path, content: str) -> None:
    rows = iter(FileRows(write(tmp_path / "a.csv", content), ["text"], {}, Labels(None)))
    with pytest.raises(ValueError, match=r"a\.csv: expected (rows of one split|a column for text)"):
        next(rows)


def test_a_fault_is_met_on_the_way_and_leaves_no_summary(tmp_path: Path) -> None:
    texts = TextStream(write(tmp_path / "a.tsv", "text\tn\none\t1\ntwo\n"))
    loop = iter(texts)
    assert next(loop) == "one"
    with pytest.raises(ValueError, match=r"a\.tsv:3: expected 2 fields \(text, n\), got 1"):
        next(loop)
    assert texts.summary is None
    assert list(TextStream(write(tmp_path / "b.txt", "one\ntwo\n"))) == ["one", "two"]


def test_the_documents_of_a_folder_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in (("b/x.txt", "two\nlines"), ("a.txt", "first"), ("c.txt", " "), ("n.md", "")):
        write(tmp_path / name, text)
    assert list(TextStream(tmp_path).numbered()) == [(1, "first"), (2, "two\nlines")]


def test_lines_are_counted_through_blank_ones_and_quoted_newlines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'id,text\n\n1,"one\ntwo"\n2,three\n')
    assert list(TextStream(path).numbered()) == [(3, "one\ntwo"), (5, "three")]


def test_the_digest_is_of_the_texts_alone(tmp_path: Path) -> None:
    def digest(name: str, content: str) -> str:
        return TextStream(write(tmp_path / name, content)).scan().digest

    plain = digest("a.txt", "one\ntwo\n")
    assert plain == digest("b.txt.gz", "one\r\n\ntwo") == digest("a.tsv", "n\ttext\n1\tone\n2\ttwo\n")
    others = [
        digest("c.txt", each) for each in ("two\none\n", "one\n", "onet\nwo\n", "one\ntwo\nthree\n", "onetwo")
    ]
    assert len({plain, *others}) == 6


def test_a_distinct_stream_leaves_out_repeats_and_says_of_what(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n\ntwo\none\n two\ntwo\none\n")
    texts = TextStream(path, distinct=True)
    for _ in range(2):
        assert list(texts.numbered()) == [(1, "one"), (3, "two"), (5, " two")]
        assert texts.summary is not None
        assert texts.summary.repeats == ((0, 4), (1, 6), (0, 7))
    said = "a.txt: text -> text; 3 rows; 1 blank line left out; 3 repeated texts left out"
    assert texts.summary.description == said
    assert TextStream(path).scan().repeats == ()


@pytest.mark.parametrize("suffix", rest_slow([".txt", ".jsonl"]))
def test_memory_holds_a_few_lines(tmp_path: Path, suffix: str) -> None:
    line = '{"text": "%d and some more words"}' if suffix == ".jsonl" else "%d and some more words"
    path = write(tmp_path / f"a{suffix}", "".join(f"{line % n}\n" for n in range(8_000)))
    texts = TextStream(path)
    next(iter(texts))  # what is imported and compiled at first use
    tracemalloc.start()
    try:
        assert texts.scan().texts == 8_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The texts are 620 kB as Python holds them; buffers of the file, and of gzip, take up to 130 kB each.
    assert peak < 300_000
