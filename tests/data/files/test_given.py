"""Rows from Python, and Arrow's files: the same rows as of a text file, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.targets import NLI, Classes
from contrastive_text.data import Table, read_rows
from contrastive_text.data.files.in_memory import InMemoryRows, in_memory_rows, wrap_rows

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")

ROWS: list[dict[str, Any]] = [
    {"query": "a", "pos": ["b", "c"], "label": "entailment"},
    {"query": "d", "pos": ["e"], "label": "neutral"},
    {"query": "f", "pos": [], "label": "neutral"},
    {"query": "g", "pos": ["h", " "], "label": None},
]
READS = ("anchor", "positive", "target")
HAND_OVER: dict[str, Callable[[], Any]] = {
    "dicts": lambda: ROWS,
    "tuples": lambda: [tuple(row.values()) for row in ROWS],
    "pandas": lambda: pytest.importorskip("pandas").DataFrame(ROWS),
    "polars": lambda: pytest.importorskip("polars").DataFrame(ROWS),
    "arrow": lambda: pyarrow.Table.from_pylist(ROWS),
    "dataset": lambda: datasets.Dataset.from_list(ROWS),
}


def read(given: Any, reads: Sequence[str] = READS) -> Table:
    return read_rows(given, reads, target=Classes(NLI) if "target" in reads else None)


@pytest.fixture
def of_file(tmp_path: Path) -> Table:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return read(path)


@pytest.mark.parametrize("form", HAND_OVER)
def test_every_form_gives_the_rows_of_a_file(form: str, of_file: Table) -> None:
    table = read(HAND_OVER[form]())
    assert table.rows == of_file.rows
    assert len(table) == 3
    assert table.content == of_file.content
    said, before = (each.description.partition(": ")[2] for each in (table, of_file))
    if form == "tuples":
        assert said.startswith("anchor -> anchor, positive -> positive (1 to 2 rows a line), target -> target: ")
    else:
        assert said == before
    assert said.endswith(before.partition("; ")[2])


@pytest.mark.parametrize("name", ["rows.parquet", "file.arrow", "stream.arrow"])
def test_arrow_files_give_the_rows_of_a_text_file(name: str, tmp_path: Path, of_file: Table) -> None:
    table, path = pyarrow.Table.from_pylist(ROWS), tmp_path / name
    if name == "rows.parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        new = pyarrow.ipc.new_file if name == "file.arrow" else pyarrow.ipc.new_stream
        with new(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    found = read(path)
    assert found.rows == of_file.rows
    assert found.description == of_file.description.replace("rows.jsonl", name)
    path.write_bytes(path.read_bytes()[:-30] if name == "rows.parquet" else b"ARROW1 no more")
    with pytest.raises(
        ContrastiveTextError, match=rf"{name}: expected a {path.suffix} file, got an invalid or dam"
    ):
        read(path)


@pytest.mark.parametrize(
    ("given", "reads", "expected"),
    [
        ([("a", "b", "c")], READS[:2], {"anchor": "a", "positive": "b", "negative": "c"}),
        ([("a", "b", "2.5")], READS, {"anchor": "a", "positive": "b", "target": 2.5}),
        ([["a", "1"]], ("text", "target"), {"text": "a", "target": 1.0}),
        ([("a", "b")], ("text",), {"text": "a"}),
        (["one text", "two texts"], ("text",), {"text": "one text"}),
        (("a", "b c"), ("text",), {"text": "a"}),
    ],
)
def test_places_of_a_tuple_are_what_is_read(
    given: Any, reads: Sequence[str], expected: dict[str, object]
) -> None:
    assert read_rows(given, reads)[0] == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (iter(["a b"]), "rows that can be read more than once, got a list_iterator; give a list of texts"),
        ({"text": ["a"]}, "got a dict; give a list of texts"),
        (datasets.DatasetDict(dev=datasets.Dataset.from_list(ROWS)), r"a DatasetDict; .* as data\['train'\]"),
        (datasets.Dataset.from_list([]), "expected at least one row, got an empty Dataset"),
        (5, "expected names of files, or rows that can be read more than once, got a int"),
        ([1, 2], "expected a text, a dict or a tuple in row 1, got a int"),
        ([("a", "b"), ("c",)], "expected a tuple of 2 as in row 1 in row 2, got a tuple of 1"),
        (["a b", {"text": "c"}], "expected a str as in row 1 in row 2, got a dict"),
        (["a b", "half \ud83d"], r"that UTF-8 can hold in row 2, got .* can't encode character '.ud83d'"),
        (Path("texts.txt"), r"got a Path; give str\(path\)"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_rows_is_refused(given: Any, said: str) -> None:
    with pytest.raises(ContrastiveTextError, match=rf"data\.train: .*{said}"):
        wrap_rows("data.train", given)


def test_wrong_columns_and_cells_are_told_by_row() -> None:
    with pytest.raises(ContrastiveTextError, match="tuples of anchor, positive, target, got 2 values each"):
        read([("a", "b")])
    with pytest.raises(ContrastiveTextError, match="list of 1 text: expected anchor, positive, got texts alone"):
        read(["a text"], ("anchor", "positive"))
    with pytest.raises(
        ContrastiveTextError, match=r"list of 2 dicts:2: expected a text or a list of texts in pos"
    ):
        read([{"query": "a", "pos": "b"}, {"query": "a", "pos": 3}], ("anchor", "positive"))


def test_names_of_files_are_told_from_texts(tmp_path: Path) -> None:
    for names in ("a text", ["texts.txt"], ["my texts.txt", "hub:name:train"], ["folder", "sts/dev"], []):
        assert wrap_rows("data.train", names) == names
        assert not isinstance(wrap_rows("data.train", names), InMemoryRows)
    assert isinstance(wrap_rows("data.train", ["a.txt is missing", "texts.txt"]), InMemoryRows)
    (path := tmp_path / "texts.txt").write_text("a\n")
    with pytest.raises(ContrastiveTextError, match=r"got .*texts.txt and the text 'a bird'; name only files"):
        wrap_rows("data.train", [str(path), "a bird"])


def test_a_record_is_of_the_content_and_finds_its_rows_where_they_are_handed_on() -> None:
    given = wrap_rows("data.train", ROWS)
    record = str(given)
    assert type(record) is str
    assert record.startswith("given:list:4:")
    assert str(wrap_rows("data.train", list(ROWS))) == record
    assert str(wrap_rows("data.train", [*ROWS[:3], {**ROWS[3], "query": "other"}])) != record
    with in_memory_rows({"tasks": {"nli": [given]}}):
        assert read(wrap_rows("data.train", record)).rows == read(given).rows
    with pytest.raises(ContrastiveTextError, match=rf"got their record alone \({record}\); give them again"):
        read(wrap_rows("data.train", record))
