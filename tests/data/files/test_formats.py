"""Formats: what a line is, and what is no file of its suffix; named with its line."""

from __future__ import annotations

import csv
import gzip
import json
import re
import tracemalloc
from pathlib import Path

import pytest
from data_files import FORMATS, PAIR, SCORED, refuses, texts, write, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.core.targets import NLI, Classes
from contrastive_text.data.files.objects import _BRACKETS
from contrastive_text.data.files.readers import read_rows

any_text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip)


@pytest.mark.parametrize(("suffix", "packed"), [(".tsv", ".gz"), (".csv", ""), (".jsonl", "")])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str, packed: str) -> None:
    rows = [
        {
            "id": "1",
            "sentence1": 'a "big" cat, here',
            "sentence2": " two  spaces ",
            "score": "4.5",
            "subset": "x",
        },
        {"id": "2", "sentence1": "žluť", "sentence2": "日本", "score": "0", "subset": ""},
    ]
    table = read_rows(write_rows(tmp_path / f"a{suffix}{packed}", rows), SCORED)
    assert table.rows == (
        {"anchor": 'a "big" cat, here', "positive": " two  spaces ", "target": 4.5, "subset": "x"},
        {"anchor": "žluť", "positive": "日本", "target": 0.0, "subset": ""},
    )
    assert table.understood == (
        f"a{suffix}{packed}: sentence1 -> anchor, sentence2 -> positive, score -> target, subset -> subset; "
        "id ignored; 2 rows"
    )


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.TXT"])
def test_a_line_of_a_txt_file_is_a_text(tmp_path: Path, name: str) -> None:
    table = read_rows(write(tmp_path / name, 'one\t"1"\r\n\n  two\nthree'), ["text"])
    assert texts(table) == ['one\t"1"', "  two", "three"]
    assert table.understood == f"{name}: text -> text; 3 rows; 1 blank line left out"


@pytest.mark.parametrize("suffix", [".txt", *FORMATS])
def test_lines_end_in_newlines_alone_or_as_windows_has_them_after_a_byte_order_mark(
    tmp_path: Path, suffix: str
) -> None:
    text = "a\u2028b\x85c\x0bd\x0ce\x1cf"
    line = json.dumps({"text": text}, ensure_ascii=False) if suffix == ".jsonl" else text
    head = "" if suffix in (".txt", ".jsonl") else "text\r\n"
    path = write(tmp_path / f"a{suffix}", f"\ufeff{head}{line}\r\n{line}\n")
    assert texts(read_rows(path, ["text"])) == [text, text]


def test_a_quoted_csv_text_may_have_newlines_and_be_long(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = 'first\nsecond, "quoted"\n' + "long " * 40_000
    assert texts(read_rows(write_rows(tmp_path / "a.csv", [{"text": text}]), ["text"])) == [text]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("suffix", FORMATS)
@settings(deadline=None, max_examples=20)  # the time is the disk's
@given(pairs=st.lists(st.tuples(any_text, any_text), min_size=1, max_size=8))
def test_texts_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, pairs: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("round") / f"a{suffix}"
    rows = tuple({"anchor": anchor, "positive": positive} for anchor, positive in pairs)
    assert read_rows(write_rows(path, rows), PAIR).rows == rows


def test_columns_of_json_lines_are_those_of_all_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"n": 1}\n{"text": "one", "m": {}}\n{"text": null}\n')
    table = read_rows(path, ["text"])
    assert texts(table) == ["one"]
    assert table.understood == "a.jsonl: text -> text; n, m ignored; 1 row; 2 rows with an empty text left out"


def test_objects_of_differing_keys_take_memory_in_proportion_to_their_number(tmp_path: Path) -> None:
    peaks = []
    for count in (500, 1000):
        rows = [{"text": f"text {i}", f"key {i}": i} for i in range(count)]
        path = write_rows(tmp_path / f"{count}.jsonl", rows)
        tracemalloc.start()
        table = read_rows(path, reads=["text"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert texts(table) == [row["text"] for row in rows]
    # A list with a cell for each key of each object, 8 bytes each, made it 3.6 times as much.
    assert peaks[1] < 2.5 * peaks[0]


def test_a_blank_csv_line_is_counted(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.csv", "text,n\n\none,1\n\n"), ["text"])
    assert table.understood == "a.csv: text -> text; n ignored; 1 row; 2 blank lines left out"


def test_a_missing_file_names_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "stsb.dev.tsv", "")
    with pytest.raises(FileNotFoundError, match=r"stsb\.dev\.tv: expected a file.*did you mean stsb\.dev\.tsv\?"):
        read_rows(tmp_path / "stsb.dev.tv", SCORED)


@pytest.mark.parametrize("name", ["qqqqqqqq.txt", "nowhere/a.txt"])
def test_a_missing_file_without_neighbours_says_where_it_looked(tmp_path: Path, name: str) -> None:
    write(tmp_path / "a.tsv", "")
    with pytest.raises(FileNotFoundError, match=re.escape(f"look into {(tmp_path / name).parent}")):
        read_rows(tmp_path / name, ["text"])


@pytest.mark.parametrize(("name", "suffix"), [("a.arrow.gz", ".arrow.gz"), ("a.xml.gz", ".xml"), ("a", "")])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    with refuses(name, ".txt, .tsv, .csv, .jsonl", ".gz", f"got {suffix!r}"):
        read_rows(write(tmp_path / name, "one"), ["text"])


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    with refuses(name, "expected at least one row with text, got an empty file"):
        read_rows(write(tmp_path / name, ""), ["text"])


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path, start: bytes) -> None:
    with refuses("a.txt:3: expected UTF-8, got the byte 0xe9", "save the file as UTF-8"):
        read_rows(write(tmp_path / "a.txt", start + b"one\ntwo\ncaf\xe9\n"), ["text"])


def test_a_broken_gzip_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"one\n" * 100)
    for data in (b"one\n", whole[:-9], whole[:12] + b"\xff\xff\xff" + whole[15:]):
        path = tmp_path / "a.txt.gz"
        path.write_bytes(data)
        with refuses("a.txt.gz: expected a whole gzip file, got a broken one", "fetch it again"):
            read_rows(path, ["text"])


@pytest.mark.parametrize(
    ("line", "got"),
    [
        ("{'text': 1}", "invalid JSON (Expecting property name"),
        ('{"text": "\\ud83d"}', "invalid JSON ('utf-8' codec can't encode"),
        ('["one"]', 'got ["one"]'),
    ],
)
def test_a_line_that_is_no_json_object_is_named(tmp_path: Path, line: str, got: str) -> None:
    with refuses("a.jsonl:3: expected a JSON object", got, "one"):
        read_rows(write(tmp_path / "a.jsonl", f'{{"text": "one"}}\n\n{line}\n'), ["text"])


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_a_wrong_number_of_fields_is_named_with_its_line(tmp_path: Path, suffix: str) -> None:
    tab = "\t" if suffix == ".tsv" else ","
    path = write(tmp_path / f"a{suffix}", f"id{tab}text\n1{tab}one\n\n2{tab}two{tab}three\n")
    with refuses(f"a{suffix}:4: expected 2 fields (id, text), got 3"):
        read_rows(path, ["text"])


def test_csv_lines_are_counted_through_quoted_newlines(tmp_path: Path) -> None:
    with refuses("a.csv:4: expected 2 fields", "got 1"):
        read_rows(write(tmp_path / "a.csv", 'id,text\n1,"one\ntwo"\nthree\n'), ["text"])


@pytest.mark.parametrize("record", ['"never closed\nthree\n', '"one" two\n'])
def test_a_broken_csv_quote_is_named_with_its_line(tmp_path: Path, record: str) -> None:
    limit = csv.field_size_limit()
    with refuses("a.csv:3: expected CSV, got a broken record", ".tsv"):
        read_rows(write(tmp_path / "a.csv", f"text\none\n{record}"), ["text"])
    assert csv.field_size_limit() == limit


def test_a_name_that_stands_twice_in_a_header_is_refused(tmp_path: Path) -> None:
    with refuses("a.tsv:1: expected every name once, got text twice"):
        read_rows(write(tmp_path / "a.tsv", "text\ttext\n1\t2\n"), ["text"])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "one\rtwo\rthree", "a.txt:1: expected lines that end in newlines, got a carriage return alone"),
        ("a.txt", "one\rtwo\rthree\n", "a.txt:1: expected lines that end in newlines"),
        ("a.txt", "one\ntwo\n\nthree\rfour\r", "a.txt:4: expected lines that end in newlines"),
        ("a.tsv", "text\tn\none\t1\rtwo\t2\n", "a.tsv:2: expected lines that end in newlines"),
        ("a.jsonl", '{"text": "1"}\n{"text": "2"}\r{"text": "3"}\n', "a.jsonl:2: expected lines that end in new"),
        (
            "a.jsonl",
            '{"text": "1"}\n{"text": "2", "text": "3"}\n',
            'a.jsonl:2: expected a JSON object, got .*"?text"? twice',
        ),
        ("a.jsonl", '{"text": "1", "m": {"k": 1, "k": 2}}\n', "the key k twice"),
        ("a.jsonl", '{"text": "a\\u0000b"}\n', r"a.jsonl:1: expected texts in text, got the character U\+0000"),
        (
            "a.jsonl",
            '{"text": "1", "m": ' + "[" * 101 + "]" * 101 + "}\n",
            "at most 100 lists and objects .* got 102",
        ),
        ("a.jsonl", '{"text": ' + "[" * 100_000 + "}\n", "at most 100 lists and objects .* got 100,001"),
    ],
)
def test_what_would_be_read_otherwise_than_it_was_meant_is_refused(
    tmp_path: Path, name: str, content: str, said: str
) -> None:
    with pytest.raises(InvalidValueError, match=said):
        read_rows(write(tmp_path / name, content), ["text"])


def test_a_string_that_is_never_closed_is_passed_once() -> None:
    line = "{" * 2 + '"' + '\\"' * 20_000
    steps = [match.end() - match.start() for match in _BRACKETS.finditer(line)]
    assert steps == [1, 1, len(line) - 2]  # one string to the end; begun anew at each quote it took squared time


def test_brackets_in_texts_are_no_depth_and_a_bound_is_an_option(tmp_path: Path) -> None:
    text = "[" * 200 + '\\" {'
    path = write(tmp_path / "a.jsonl", json.dumps({"text": text, "m": [[["deep"]]]}) + "\n")
    assert texts(read_rows(path, ["text"])) == [text]
    with pytest.raises(InvalidValueError, match=r"a\.jsonl:1: expected at most 2 lists and objects"):
        read_rows(path, ["text"], bounds=Bounds(depth=2))
    with pytest.raises(InvalidValueError, match=r"a\.jsonl:1: expected a line of at most 9 bytes"):
        read_rows(path, ["text"], bounds=Bounds(line=9))


RELEASE = {
    "sentence1_binary_parse": "( a . )",
    "sentence2_binary_parse": "( b . )",
    "sentence1": "a .",
    "sentence2": "b .",
    "pairID": "1",
}


@pytest.mark.parametrize("genre", [{}, {"genre": "fiction"}])
def test_the_releases_of_snli_and_multinli_are_read_from_both_of_their_files(
    tmp_path: Path, genre: dict[str, str]
) -> None:
    rows = [
        {"gold_label": label, **RELEASE, **genre} for label in ("neutral", "-", "entailment", "contradiction")
    ]
    lines = [json.dumps({"annotator_labels": [row["gold_label"]], **row}) for row in rows]
    header = "\t".join([*rows[0], *(f"label{number}" for number in range(1, 6))])
    ends = ["\t" * 4, "", "\t\t", ""]
    # The last annotators' labels are missing, as blanks or with their tabs.
    cells = ["\t".join(row.values()) + "\tneutral" + end for row, end in zip(rows, ends, strict=True)]
    for path in (
        write(tmp_path / "train.jsonl", "\n".join(lines)),
        write(tmp_path / "train.txt", "\n".join([header, *cells]) + "\n"),
        write(tmp_path / "train.txt.gz", "\r\n".join([header, *cells]) + "\r\n"),
    ):
        table = read_rows(path, SCORED, target=Classes(NLI))
        subset = {"subset": "fiction"} if genre else {}
        assert table.rows == tuple(
            {"anchor": "a .", "positive": "b .", "target": number} | subset for number in (1.0, 0.0, 2.0)
        )
        assert "gold_label -> target: entailment (1), neutral (1), contradiction (1)" in table.understood
        assert table.understood.endswith("3 rows; 1 row without a gold label left out")
        assert len(read_rows(path, ["text"])) == 8


def test_a_row_of_a_release_that_ends_too_early_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "gold_label\tsentence1\tsentence2\tlabel1\nneutral\ta\tb\nneutral\ta\n")
    with refuses("a.txt:3: expected 4 fields", "got 2"):
        read_rows(path, ["text"])
