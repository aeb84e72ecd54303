"""Streaming: one text at a time gives what reading the whole file gives, and holds one line of it."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import DATA, needs_data
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_text.data.files.readers import read_rows
from contrastive_text.data.files.streaming import TextStream


def write(path: Path, data: str | bytes) -> Path:
    raw = data.encode() if isinstance(data, str) else data
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def both(path: Path, column: str | None = None) -> tuple[object, object]:
    """Texts and what is said of the file, or the error: streamed, and from ``read_rows``."""
    texts = TextStream(path, column)

    def streamed() -> object:
        found = list(texts)
        assert texts.summary is not None and texts.summary.texts == len(found)
        return found, texts.summary.understood

    def read() -> object:
        table = read_rows(path, reads=("text",), columns={"text": column} if column else None)
        return [row["text"] for row in table], table.understood

    outcomes: list[object] = []
    for way in (streamed, read):
        try:
            outcomes.append(way())
        except ValueError as error:
            outcomes.append(str(error))
    return outcomes[0], outcomes[1]


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
"""With tabs, quotes, newlines, and nothing but blanks."""
header = st.sampled_from(
    [["text"], ["id", "sentence"], ["sentence1", "sentence2", "score"], ["anchor", "positive", "negative"], ["x"]]
)


def as_bytes(suffix: str, names: Sequence[str], rows: Sequence[Sequence[str]], end: str) -> bytes:
    """A file with these cells, well-formed or not: what a format can't hold is written all the same."""
    if suffix == ".csv":
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator=end).writerows([names, *rows])
        return file.getvalue().encode()
    if suffix == ".jsonl":
        lines = [
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=len(row[0]) % 2 == 0) for row in rows
        ]
    elif suffix == ".tsv":
        lines = ["\t".join(row) for row in [names, *rows]]
    else:
        lines = [row[0] for row in rows]
    return "".join(line + end for line in lines).encode()


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ".csv", ".jsonl"])
@settings(max_examples=60)
@given(data=st.data(), mark=st.booleans(), end=st.sampled_from(["\n", "\r\n"]), cut=st.booleans())
def test_a_stream_is_what_read_rows_reads_or_refuses(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject, mark: bool, end: str, cut: bool
) -> None:
    names = data.draw(header)
    rows = data.draw(st.lists(st.lists(any_text, min_size=len(names), max_size=len(names)), max_size=6))
    raw = as_bytes(suffix, names, rows, end)
    raw = (b"\xef\xbb\xbf" if mark else b"") + (raw[: -len(end)] if cut and raw else raw)
    path = tmp_path_factory.mktemp("stream") / f"a{suffix}{data.draw(st.sampled_from(['', '.gz']))}"
    streamed, read = both(write(path, raw))
    assert streamed == read


ODD: tuple[str | bytes, ...] = (
    "text\none\rtwo\n",
    "text\rone\rtwo",
    "text\rone\rtwo\n",
    "text\none\0two\n",
    "text\none\n".encode("utf-16"),
    "text\none\n".encode("utf-32-le"),
    "text\n\u200b\none\n \n\ufeff\u00ad\n",
    '{"text": "one", "text": "two"}\n',
    '{"text": "one"}\n{"text": "one\\u0000"}\n',
    '{"text": "one", "more": ' + "[" * 200 + "]" * 200 + "}\n",
    '{"text": "one", "more": "' + "[" * 200 + '"}\n',
    '{"text": "\\u200b"}\n{"text": ["one", "\\u2060"]}\n',
    '{"text": "one"}\r{"text": "two"}\r',
)
"""Contents of files, whatever their suffix."""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"n": 1}\n\n{"text": ["one", "two", " "], "m": {}}\n{"text": null}\n{"text": []}\n'),
        ("a.jsonl", '{"text": "one"}\n{"sentence": "two"}\n'),
        ("a.jsonl", '{"text": "one"}\n{"text": 5}\n'),
        ("a.jsonl", '{"text": "one"}\n{"text": "\\ud83d"}\n'),
        ("a.csv", 'id,text\n1,"one\ntwo"\n2,"three, ""four"""\n'),
        ("a.csv", "text\rone\rtwo\r"),
        ("a.csv", 'text\none\n"never closed\n'),
        ("a.tsv", "text\ttext\n1\t2\n"),
        ("a.tsv", "headline\tn\none\t1\n"),
        ("a.tsv", "text\tn\none\t1\n\t\n \t2\ntwo\n"),
        ("a.txt", "gold_label\tsentence1\tsentence2\tlabel1\n-\ta\tb\nneutral\tc\td\tneutral\n"),
        ("a.txt", b"one\ncaf\xe9\n"),
        ("a.txt", "one\u2028still\x85one\n"),
        ("a.txt", "\n \n"),
        ("a.txt", ""),
        ("a.md", "one\n"),
        ("a.csv", "text,split\na,train\nb,test\n"),
        ("a.csv", "text,split\na,train\nb,\n"),
        ("a.csv", "text,split\na,x\nb,y\n"),
        *((f"a{suffix}", content) for suffix in (".txt", ".tsv", ".csv", ".jsonl") for content in ODD),
    ],
)
def test_odd_files_are_read_and_refused_alike(tmp_path: Path, name: str, content: str | bytes) -> None:
    streamed, read = both(write(tmp_path / name, content))
    assert streamed == read


def test_a_named_column_goes_before_the_usual_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "headline\ttext\none\ttwo\n")
    assert both(path, "headline") == ((["one"], "a.tsv: headline -> text; text ignored; 1 row"),) * 2
    streamed, read = both(path, "headlin")
    assert streamed == read and "did you mean headline?" in str(read)


def test_a_folder_of_documents_is_read_alike(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in (("b/x.txt", "two\nlines"), ("a.txt", "first"), ("c.txt", " "), ("n.md", "")):
        write(tmp_path / name, text)
    streamed, read = both(tmp_path)
    assert streamed == read
    assert list(TextStream(tmp_path).numbered()) == [(1, "first"), (2, "two\nlines")]


def test_every_loop_begins_anew_and_an_unfinished_one_has_no_summary(tmp_path: Path) -> None:
    texts = TextStream(write(tmp_path / "a.txt", "one\ntwo\n"))
    assert next(iter(texts)) == "one"
    assert texts.summary is None
    assert list(texts) == list(texts) == ["one", "two"]


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
    assert texts.summary.understood == said
    assert TextStream(path).scan().repeats == ()


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".tsv.gz"])
def test_memory_holds_a_few_lines(tmp_path: Path, suffix: str) -> None:
    line = {".jsonl": '{"text": "%d and some more words"}', ".csv": '"%d and some more words"'}.get(
        suffix, "%d and some more words"
    )
    start = "text\n" if suffix in (".csv", ".tsv.gz") else ""
    path = write(tmp_path / f"a{suffix}", start + "".join(f"{line % n}\n" for n in range(8_000)))
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


@needs_data
def test_real_files_are_read_alike() -> None:
    for name in ("sts/stsb.dev.tsv", "unlabeled/wiki1m_head.tsv.gz", "nli/snli_triplets.dev.tsv"):
        streamed, read = both(DATA / name)
        assert streamed == read, name
