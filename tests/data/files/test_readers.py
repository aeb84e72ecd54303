"""Readers: each format, alias and error, and every real file whose row count is published."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import os
import re
import tracemalloc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from conftest import DATA, needs_data
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError
from contrastive_text.core.text_files import Bounds
from contrastive_text.data.files.columns import ALIASES
from contrastive_text.data.files.formats import _BRACKETS
from contrastive_text.data.files.readers import Table, read_pairs, read_rows
from contrastive_text.data.files.streaming import TextStream

PAIR = ("anchor", "positive")
SCORED = ("anchor", "positive", "target")
FORMATS = (".tsv", ".csv", ".jsonl")


def write(path: Path, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix == ".jsonl":
        return write(path, "".join(json.dumps(row) + "\n" for row in rows))
    if plain.suffix == ".tsv":
        return write(path, "".join("\t".join(line) + "\n" for line in [list(rows[0]), *map(dict.values, rows)]))
    scratch = path.with_name("scratch")
    with scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return write(path, scratch.read_bytes())


def texts(table: Table) -> list[object]:
    return [row["text"] for row in table]


def refuses(*parts: str) -> AbstractContextManager[object]:
    """Expects a ValueError whose message has the parts in this order."""
    return pytest.raises(ValueError, match="(?s)" + ".*".join(re.escape(part) for part in parts))


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("suffix", FORMATS)
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


def test_a_table_has_a_length_items_and_its_sources(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    table = read_rows(str(path), ["text"])
    assert (len(table), table[1], list(table)) == (2, {"text": "two"}, list(table.rows))
    assert table.source == (str(path),)


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ".csv", ".jsonl"])
def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_text(tmp_path: Path, suffix: str) -> None:
    line = '{"text": "one"}' if suffix == ".jsonl" else "one"
    head = "" if suffix in (".txt", ".jsonl") else "text\r\n"
    path = write(tmp_path / f"a{suffix}", f"\ufeff{head}{line}\r\n{line}\r\n")
    assert texts(read_rows(path, ["text"])) == ["one", "one"]


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ".csv", ".jsonl"])
def test_only_a_newline_ends_a_line(tmp_path: Path, suffix: str) -> None:
    text = "a\u2028b\x85c\x0bd\x0ce\x1cf"
    line = json.dumps({"text": text}, ensure_ascii=False) if suffix == ".jsonl" else text
    head = "" if suffix in (".txt", ".jsonl") else "text\n"
    assert texts(read_rows(write(tmp_path / f"a{suffix}", f"{head}{line}\n"), ["text"])) == [text]


def test_a_quoted_csv_text_may_have_newlines_and_be_long(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = 'first\nsecond, "quoted"\n' + "long " * 40_000
    assert texts(read_rows(write_rows(tmp_path / "a.csv", [{"text": text}]), ["text"])) == [text]
    assert csv.field_size_limit() == limit


any_text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip)


@pytest.mark.parametrize("suffix", FORMATS)
@settings(deadline=None, max_examples=50)  # the time is the disk's
@given(pairs=st.lists(st.tuples(any_text, any_text), min_size=1, max_size=8))
def test_texts_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, pairs: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("round") / f"a{suffix}"
    rows = tuple({"anchor": anchor, "positive": positive} for anchor, positive in pairs)
    assert read_rows(write_rows(path, rows), PAIR).rows == rows


@pytest.mark.parametrize(("name", "alias"), [(name, alias) for name in ALIASES for alias in ALIASES[name]])
def test_every_alias_is_known_in_any_case(tmp_path: Path, name: str, alias: str) -> None:
    reads = {"text": ["text"], "target": SCORED}.get(name, PAIR)
    row = {column: "1" for column in reads if column != name} | {alias.upper().replace("_", " "): "1"}
    (read,) = read_rows(write_rows(tmp_path / "a.tsv", [row]), reads)
    assert read[name] == (1.0 if name == "target" else "1")


def test_no_alias_stands_for_two_columns() -> None:
    aliases = [alias.replace("_", "") for names in ALIASES.values() for alias in names]
    assert len(set(aliases)) == len(aliases)


@pytest.mark.parametrize(
    "header",
    [
        "negative_1,negative_2,negative_10",
        "negative,negative_2,negative_3",
        "hard_neg_1,hard_neg_2,hard_neg_3",
        "Negative 1,negative-2,negative3",
    ],
)
def test_numbered_negatives_come_in_their_order(tmp_path: Path, header: str) -> None:
    one, two, three = header.split(",")
    path = write(tmp_path / "a.csv", f"{three},anchor,{one},positive,{two}\nthird,a,first,p,second\n")
    table = read_rows(path, PAIR)
    assert list(table[0].items()) == [
        ("anchor", "a"),
        ("positive", "p"),
        ("negative", "first"),
        ("negative_2", "second"),
        ("negative_3", "third"),
    ]
    assert f"{one}, {two}, {three} -> negative, negative_2, negative_3" in table.understood


def test_simcse_triples_are_read(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.csv", "sent0,sent1,hard_neg\na,p,n\n"), PAIR)
    assert table.rows == ({"anchor": "a", "positive": "p", "negative": "n"},)


def test_lists_of_positives_give_rows_and_lists_of_negatives_give_columns(tmp_path: Path) -> None:
    lines = [
        {"query": "q1", "pos": ["p1", "p2"], "neg": ["n1", "n2", "n3"], "query_id": 7},
        {"query": "q2", "pos": ["p3"], "neg": ["n4", "n5"]},
    ]
    table = read_rows(write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines))), PAIR)
    assert table.rows == (
        {"anchor": "q1", "positive": "p1", "negative": "n1", "negative_2": "n2"},
        {"anchor": "q1", "positive": "p2", "negative": "n1", "negative_2": "n2"},
        {"anchor": "q2", "positive": "p3", "negative": "n4", "negative_2": "n5"},
    )
    assert table.understood == (
        "a.jsonl: query -> anchor, pos -> positive (1 to 2 rows a line), "
        "neg -> negative, negative_2 (2 to 3 a line, the first 2 kept); query_id ignored; 3 rows"
    )


def test_a_target_that_is_not_asked_for_is_ignored_aloud(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tpremise\thypothesis\nneutral\ta\tb\n")
    table = read_rows(path, PAIR)
    assert table.rows == ({"anchor": "a", "positive": "b"},)
    assert table.understood == "a.tsv: premise -> anchor, hypothesis -> positive; label ignored; 1 row"


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


def test_a_text_column_goes_before_pair_columns_for_single_texts(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.csv", "query,text\nq,t\n"), ["text"])
    assert texts(table) == ["t"]
    assert "query ignored" in table.understood


def test_columns_go_before_aliases(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "premise,hypothesis,label,gold,x,y\na,b,word,3,n,m\n")
    columns = {"anchor": "hypothesis", "positive": "premise", "target": "gold", "negative": ["y", "x"]}
    assert read_rows(path, SCORED, columns).rows == (
        {"anchor": "b", "positive": "a", "negative": "m", "negative_2": "n", "target": 3.0},
    )


def test_several_columns_for_text_or_positive_give_several_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,y,z\na,b,c\n")
    assert texts(read_rows(path, ["text"], {"text": ["y", "x"]})) == ["b", "a"]
    assert read_rows(path, PAIR, {"anchor": "x", "positive": ["y", "z"]}).rows == (
        {"anchor": "a", "positive": "b"},
        {"anchor": "a", "positive": "c"},
    )


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


def test_of_many_ignored_columns_some_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "texts.jsonl", [{"text": "a", **{f"key {i}": 0 for i in range(30)}}])
    understood = read_rows(path, reads=["text"]).understood
    assert "key 22, key 23, 6 more ignored" in understood
    assert "key 24" not in understood


def test_several_files_are_joined_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "b.tsv", "query\tanswer\n1\t2\n")
    second = write(tmp_path / "a.jsonl", '{"sentence1": "3", "sentence2": "4"}')
    table = read_rows([first, str(second)], PAIR)
    assert table.rows == ({"anchor": "1", "positive": "2"}, {"anchor": "3", "positive": "4"})
    assert table.source == (str(first), str(second))
    assert [line.split(":")[0] for line in table.understood.split("\n")] == ["b.tsv", "a.jsonl"]


def test_rows_with_an_empty_text_are_left_out_and_counted(tmp_path: Path) -> None:
    lines = ["anchor\tpositive\tneg", "a\tp\tn", "\tp\tn", "a\t \tn", "a\tp\t", "", "\t\t", "a\tp\tm"]
    table = read_rows(write(tmp_path / "a.tsv", "\n".join(lines) + "\n\n"), PAIR)
    assert [row["negative"] for row in table] == ["n", "m"]
    assert table.understood.endswith("; 2 rows; 3 blank lines left out; 3 rows with an empty text left out")


def test_an_empty_list_is_an_empty_text(tmp_path: Path) -> None:
    lines = [{"query": "a", "pos": ["p"], "neg": []}, {"query": "b", "pos": ["q"], "neg": ["n"]}]
    table = read_rows(write(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, lines))), PAIR)
    assert table.rows == ({"anchor": "b", "positive": "q", "negative": "n"},)
    assert table.understood.endswith("1 row; 1 blank line left out; 1 row with an empty text left out")


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


def test_every_txt_file_of_a_folder_is_one_document(tmp_path: Path) -> None:
    folder = tmp_path / "essays"
    (folder / "b").mkdir(parents=True)
    write(folder / "c.txt.gz", "third")
    write(folder / "b" / "x.TXT", "second,\r\n  of two\u2028lines ")
    write(folder / "a.txt", "\ufefffirst\n\nafter a blank line\n")
    table = read_rows(folder, ["text"])
    assert texts(table) == ["first\n\nafter a blank line\n", "second,\r\n  of two\u2028lines ", "third"]
    assert table.understood == "essays: text -> text (a .txt file each); 3 rows"
    assert table.source == (str(folder),)


def test_empty_files_of_a_folder_are_left_out_and_others_ignored_aloud(tmp_path: Path) -> None:
    (tmp_path / ".checkpoints").mkdir()
    for name, text in (
        ("a.txt", "one"),
        ("b.txt", " \n\t\n"),
        ("c.txt", ""),
        ("._a.txt", "not\xe9 a text"),
        (".checkpoints/a.txt", "a copy"),
        ("readme.md", "ignored"),
    ):
        write(tmp_path / name, text)
    table = read_rows(str(tmp_path), ["text"])
    assert texts(table) == ["one"]
    assert table.understood == (
        f"{tmp_path.name}: text -> text (a .txt file each); 3 other files ignored; 1 row; 2 empty files left out"
    )


def test_a_folder_below_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.txt", name)
    scandir = os.scandir

    def locked(path: str | Path) -> Any:  # a permission would not keep root out
        if Path(path).name in names:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    names = {".hidden"}  # which is not read anyway
    assert texts(read_rows(tmp_path, ["text"])) == list(TextStream(tmp_path)) == ["a", "b"]
    names = {"b"}
    for read in (lambda: read_rows(tmp_path, ["text"]), lambda: list(TextStream(tmp_path))):
        with pytest.raises(ContrastiveTextError, match=re.escape(str(tmp_path / "b")) + ".*Permission denied"):
            read()


def test_the_documents_of_a_folder_go_by_name_however_the_disk_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("10.txt", "2.txt", "a b.txt", "B.txt"):
        write(tmp_path / name, name)
    expected = ["10.txt", "2.txt", "B.txt", "a b.txt"]
    listing = list(tmp_path.rglob("*"))
    for order in (sorted(listing), sorted(listing, reverse=True)):
        monkeypatch.setattr(Path, "rglob", lambda *_, order=order: iter(order))
        assert texts(read_rows(tmp_path, ["text"])) == expected


def test_a_folder_joins_with_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "a.txt", "a document\nof two lines")
    lines = write(tmp_path / "lines.txt", "one\ntwo\n")
    table = read_rows([lines, tmp_path / "more"], ["text"])
    assert texts(table) == ["one", "two", "a document\nof two lines"]


def test_a_folder_may_be_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.txt", "one")
    monkeypatch.chdir(tmp_path)
    assert read_rows(".", ["text"]).understood == ".: text -> text (a .txt file each); 1 row"


@pytest.mark.parametrize(
    ("name", "found"), [("a.tsv", "got a.tsv;"), ("b/c.md", "got b/c.md;"), ("b", "got no file;")]
)
def test_a_folder_without_a_txt_file_is_refused_with_what_it_has(tmp_path: Path, name: str, found: str) -> None:
    path = tmp_path / name
    (path.parent if path.suffix else path).mkdir(exist_ok=True)
    if path.suffix:
        write(path, "one")
    with refuses(str(tmp_path), "expected a folder with .txt files, a document each", found, "name its files"):
        read_rows(tmp_path, ["text"])


def test_a_folder_of_empty_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "\n")
    with refuses("expected at least one row with text, got 1 empty file left out"):
        read_rows(tmp_path, ["text"])


def test_a_broken_file_of_a_folder_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "one")
    write(tmp_path / "b.txt", b"caf\xe9")
    with refuses("b.txt:1: expected UTF-8, got the byte 0xe9"):
        read_rows(tmp_path, ["text"])


@pytest.mark.parametrize("reads", [PAIR, ["text", "target"]])
def test_a_folder_is_refused_with_its_files_where_more_than_text_is_read(
    tmp_path: Path, reads: Sequence[str]
) -> None:
    write(tmp_path / "a.txt", "one")
    with refuses(str(tmp_path), "expected a file, got a folder", "a.txt"):
        read_rows(tmp_path, reads)


@pytest.mark.parametrize(("name", "suffix"), [("a.parquet", ".parquet"), ("a.json.gz", ".json"), ("a", "")])
def test_an_unknown_suffix_is_refused(tmp_path: Path, name: str, suffix: str) -> None:
    with refuses(name, ".txt, .tsv, .csv, .jsonl", ".gz", f"got {suffix!r}"):
        read_rows(write(tmp_path / name, "one"), ["text"])


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.csv", "a.jsonl", "a.txt.gz"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    with refuses(name, "expected at least one row with text, got an empty file"):
        read_rows(write(tmp_path / name, ""), ["text"])


def test_a_file_without_a_row_left_says_what_was_left_out(tmp_path: Path) -> None:
    with refuses("expected at least one row", "got 1 blank line left out, 2 rows with an empty text left out"):
        read_rows(write(tmp_path / "a.tsv", "text\tn\n \t1\n\n\t2\n"), ["text"])


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


@pytest.mark.parametrize("cell", ["entailment", "", "nan", "inf", "4,5"])
def test_a_target_that_is_no_number_is_named_with_its_line(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path / "a.tsv", f"score\tsentence1\tsentence2\n5\ta\tb\n{cell}\tc\td\n")
    with refuses(f"a.tsv:3: expected a number in score, got {cell!r}"):
        read_rows(path, SCORED)


@pytest.mark.parametrize("value", ["null", "[1]", "NaN", "1" + "0" * 400])
def test_a_json_target_that_is_no_number_is_named(tmp_path: Path, value: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": {value}}}')
    with refuses("a.jsonl:1: expected a number in label, got"):
        read_rows(path, ["text", "target"])


def test_pairs_are_refused_from_a_txt_file(tmp_path: Path) -> None:
    with refuses("a.txt: expected anchor, positive, got a .txt file", "one text a line", ".tsv"):
        read_rows(write(tmp_path / "a.txt", "one\n"), PAIR)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_without_a_known_column_says_how_to_name_one(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"a{suffix}", [{"headline": "one", "": "2"}])
    with refuses(
        f"a{suffix}: expected a column for text (text, texts, sentence,",
        'got headline, ""',
        "`columns: {text: NAME}`",
    ):
        read_rows(path, ["text"])


def test_a_single_column_without_a_header_is_told_of_txt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "A first sentence that is quite a bit longer than a name.\nA second.\n")
    with refuses("got A first sentence that is quite a bit ...;", "call the file .txt"):
        read_rows(path, ["text"])


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


def test_a_missing_target_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    with refuses(
        "expected a column for target (target, score,", "got sentence1, sentence2", "columns: {target: NAME}"
    ):
        read_rows(write(tmp_path / "a.tsv", "sentence1\tsentence2\na\tb\n"), SCORED)


@pytest.mark.parametrize(
    ("header", "name", "rivals"),
    [
        ("anchor,query,positive", "anchor", "anchor and query"),
        ("anchor,positive,sentence2", "positive", "positive and sentence2"),
        ("anchor,positive,neg,hard_negative", "negative", "neg and hard_negative"),
    ],
)
def test_two_columns_for_one_are_refused_by_name(tmp_path: Path, header: str, name: str, rivals: str) -> None:
    path = write(tmp_path / "a.csv", f"{header}\n{header}\n")
    with refuses(f"expected one column for {name}, got {rivals};", f"columns: {{{name}: "):
        read_rows(path, PAIR)
    chosen = rivals.split()[-1]
    assert read_rows(path, PAIR, {name: chosen})[0][name] == chosen


def test_two_targets_do_not_matter_where_none_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,score,label\none,1,2\n")
    assert "score, label ignored" in read_rows(path, ["text"]).understood


def test_a_named_column_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,headline\n1,one\n")
    with refuses("expected the column headlines for columns.text, got id, headline; did you mean headline?"):
        read_rows(path, ["text"], {"text": "headlines"})
    with refuses("expected the column zzz for columns.text", "name one of those"):
        read_rows(path, ["text"], {"text": "zzz"})


def test_files_with_other_columns_are_not_joined(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "anchor,positive,neg\n1,2,3\n")
    second = write(tmp_path / "b.csv", "anchor,positive\n1,2\n")
    with refuses("b.csv: expected the columns of ", "a.csv (anchor, positive, negative), got anchor, positive;"):
        read_rows([first, second], PAIR)


@pytest.mark.parametrize(
    "reads", [[], ["target"], ["anchor"], ["positive"], ["text", "anchor"], ["text", "negative"]]
)
def test_reads_are_single_texts_or_pairs(reads: list[str]) -> None:
    with refuses("reads: expected text, or anchor and positive, got"):
        read_rows("a.txt", reads)


def test_unknown_library_columns_are_refused() -> None:
    with refuses("reads: expected text, anchor, positive, negative, target, subset, got 'sentence'"):
        read_rows("a.txt", ["sentence"])
    with refuses("columns: expected text, ", "got 'negative_2'", "a list under negative"):
        read_rows("a.txt", PAIR, {"negative_2": "x"})


@pytest.mark.parametrize(("name", "sources"), [("anchor", ["x", "y"]), ("target", ["x", "y"]), ("text", [])])
def test_a_column_that_holds_one_value_has_one_source(name: str, sources: list[str]) -> None:
    with refuses(f"columns.{name}: expected one column, got {len(sources)}"):
        read_rows("a.txt", PAIR, {name: sources})


def test_no_files_are_refused() -> None:
    with refuses("paths: expected at least one file, got none"):
        read_rows([], ["text"])


REAL_FILES: tuple[tuple[str, Sequence[str], int], ...] = (
    ("sts/sts12.train.tsv", SCORED, 2_234),
    ("sts/sts12.test.tsv", SCORED, 3_108),
    ("sts/sts14.test.tsv", SCORED, 3_750),
    ("sts/sts15.test.tsv", SCORED, 3_000),
    ("sts/stsb.train.tsv", SCORED, 5_749),
    ("sts/stsb.dev.tsv", SCORED, 1_500),
    ("sts/stsb.test.tsv", SCORED, 1_379),
    ("sts/sick.train.tsv", SCORED, 4_500),
    ("sts/sick.dev.tsv", SCORED, 500),
    ("sts/sick.test.tsv", SCORED, 4_927),
    ("paraphrase/mrpc.train.tsv", SCORED, 3_576),
    ("paraphrase/mrpc.dev.tsv", SCORED, 500),
    ("paraphrase/quora.train.tsv", SCORED, 16_119),
    ("paraphrase/quora.dev.tsv", SCORED, 2_019),
    ("paraphrase/quora.test.tsv", SCORED, 2_074),
    ("nli/snli_triplets.dev.tsv", PAIR, 2_954),
    ("nli/snli_sample.train.tsv", PAIR, 18_000),
    ("nli/snli_sample.dev.tsv", PAIR, 2_000),
    ("nli/snli.dev.tsv", PAIR, 9_842),
    ("nli/rte.dev.tsv", PAIR, 1_767),
    ("nli/rte.test.tsv", PAIR, 2_400),
    ("nli/snli_triplets.dev.tsv", ["text"], 3 * 2_954),
    ("unlabeled/wiki1m_head.tsv.gz", ["text"], 11_914),
    ("unlabeled/wikitext2_sentences.tsv.gz", ["text"], 72_974),
    ("documents/wikitext2.train.jsonl.gz", ["text"], 600),
    ("documents/brown.jsonl.gz", ["text"], 250),
    ("documents/gutenberg.jsonl.gz", ["text"], 154),
    ("documents/sotu.jsonl.gz", ["text"], 98),
    ("classification/mr.tsv", ["text", "target"], 10_662),
    ("classification/cr.tsv", ["text", "target"], 3_771),
    ("classification/trec.train.tsv", ["text"], 5_452),
    ("classification/trec.test.tsv", ["text"], 500),
    ("classification/sst2.train.tsv.gz", ["text", "target"], 67_349),
    ("classification/sst5.test.tsv", ["text", "target"], 2_210),
    ("cs224n/sst.dev.tsv", ["text", "target"], 1_101),
    ("cs224n/sts.test.tsv", SCORED, 1_725),
)
"""File, what is read of it, and its published number of rows."""


@pytest.mark.slow
@needs_data
def test_every_real_file_has_its_published_number_of_rows() -> None:
    for name, reads, count in REAL_FILES:
        table = read_rows(DATA / name, reads)
        assert len(table) == count, name
        assert "left out" not in table.understood, name
        assert set(reads) <= set(table[0]), name
        assert ("negative" in table[0]) == ("triplets" in name and "anchor" in reads), name


@needs_data
def test_real_scores_and_subsets_are_read() -> None:
    table = read_rows(DATA / "sts/sts15.test.tsv", SCORED)
    assert all(isinstance(row["target"], float) and 0 <= row["target"] <= 5 for row in table)
    assert {row["subset"] for row in table} == {
        "answers-forums",
        "answers-students",
        "belief",
        "headlines",
        "images",
    }


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


def test_texts_that_cannot_be_seen_are_counted(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.txt", "one\n\u200b\n\n\ufeff\u2060\n"), ["text"])
    assert texts(table) == ["one"]
    assert (
        table.understood
        == "a.txt: text -> text; 1 row; 1 blank line left out; 2 rows with an empty text left out"
    )
    pairs = write(tmp_path / "a.tsv", "anchor\tpositive\na\tb\na\t\u200b\n")
    assert "1 row with an empty text left out" in read_rows(pairs, ["anchor", "positive"]).understood
