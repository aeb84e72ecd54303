"""JSON that others wrote is read field by field, or refused with file and field."""

import json
import os
from pathlib import Path

import pytest

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, MissingFileError
from contrastive_text.core.storage.records import Record, read_json, records, resolve_inside

TODO = "save it again"


def record(**values: object) -> Record:
    return Record(values, where="a.json", todo=TODO)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON, got Expecting value"),
        (b"{", "expected JSON, got Expecting property name"),
        (b"\xff\xfe{\x00}\x00", "expected JSON, got 'utf-8'"),
        (b"\x00" * 9, "expected JSON"),
        (b'{"a": 1, "b": 2, "a": 3}', "got the key 'a' twice"),
        (b"[" * 200 + b"]" * 200, "at most 100 levels"),
        (b"[" * 200_000, "at most 100 levels|expected JSON"),
        (b"1" * 5000, "expected JSON, got Exceeds the limit"),
        (b'"' + b"a" * (1 << 12) + b'"', "at most 4,096 bytes of JSON, got 4,098"),
    ],
)
def test_what_is_no_bounded_json_is_refused_with_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    if b"aaa" in content:
        monkeypatch.setattr("contrastive_text.core.storage.records.MOST_BYTES", 1 << 12)
    with pytest.raises(InvalidValueError, match=said) as caught:
        read_json(path, TODO)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith(f"; {TODO}")


def test_a_hundred_levels_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 50 + '{"a": ' * 50 + "1" + "}" * 50 + "]" * 50)
    assert read_json(path, TODO) == json.loads(path.read_text())
    path.write_text("[" * 51 + '{"a": ' * 50 + "1" + "}" * 50 + "]" * 51)
    with pytest.raises(InvalidValueError, match="at most 100 levels"):
        read_json(path, TODO)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "."):
        with pytest.raises(MissingFileError, match="expected a file, got"):
            read_json(tmp_path / name, TODO)


def test_fields_are_read_with_their_types() -> None:
    read = record(name="x", size=3, rate=1, on=False, words=["a"], inner={"b": 2.5}, none=None)
    assert (read.text("name"), read.integer("size"), read.number("rate")) == ("x", 3, 1.0)
    assert (read.flag("on"), read.texts("words"), read.record("inner").number("b")) == (False, ["a"], 2.5)
    assert list(read) == ["name", "size", "rate", "on", "words", "inner", "none"]
    assert "name" in read
    assert "none" not in read


def test_what_is_missing_or_null_gives_its_default() -> None:
    read = record(none=None)
    for name in ("none", "missing"):
        assert (read.text(name, None), read.integer(name, 7), read.number(name, None)) == (None, 7, None)
        assert (read.flag(name, True), read.texts(name, ()), read.record(name, {}).values) == (True, (), {})


@pytest.mark.parametrize("kind", ["text", "integer", "number", "flag", "texts", "record"])
def test_every_other_type_is_refused_by_name(kind: str) -> None:
    values = {"text": "x", "integer": 3, "number": 2.5, "flag": True, "texts": ["a"], "record": {"b": 1}}
    for other, value in {**values, "none": None, "mixed": ["a", 1], "huge": float("1e400")}.items():
        if other == kind or (kind, other) == ("number", "integer"):
            continue
        with pytest.raises(InvalidValueError, match=r"^a\.json: field: expected .*, got .*; save it again$"):
            vars(Record)[kind](record(field=value), "field")
    with pytest.raises(InvalidValueError, match=r"^a\.json: field: expected .*, got nothing; "):
        vars(Record)[kind](record(), "field")


def test_integers_keep_their_bounds() -> None:
    assert record(size=3).integer("size", least=3, most=3) == 3
    for value in (-1, 0, 10**30):
        with pytest.raises(InvalidValueError, match=r"size: expected an integer from 1 to 9, got"):
            record(size=value).integer("size", least=1, most=9)
    with pytest.raises(InvalidValueError, match="finite"):
        record(size=10**400).number("size")


def test_records_are_mappings_in_a_list() -> None:
    with pytest.raises(InvalidValueError, match="a: expected a list of modules, got the number 217; save it"):
        records(217, of="modules", where="a", todo=TODO)
    with pytest.raises(InvalidValueError, match=r"a: modules 1: expected a mapping of names.*, got null"):
        records([{}, None], of="modules", where="a", todo=TODO)
    with pytest.raises(ValueError, match=f"^a: expected at most 2 modules, got 3; {TODO}$"):
        records([{}, {}, None], of="modules", where="a", todo=TODO, most=2)
    assert len(records([{}, {}], of="modules", where="a", todo=TODO, most=2)) == 2
    with pytest.raises(ContrastiveTextError, match="expected texts as names, got the number 1"):
        Record({1: 2}, where="a", todo=TODO)


@pytest.mark.parametrize("name", ["", "a", "a/b", "a/b.c", "...", "a..b", "./a"])
def test_a_path_inside_is_taken(tmp_path: Path, name: str) -> None:
    assert resolve_inside(tmp_path, name, "a.json") == tmp_path / name


@pytest.mark.parametrize(
    "name", ["..", "../a", "a/../../b", "a/..", "/", "/etc/passwd", "\\a", "a\\..\\..\\b", "C:\\a", "C:a", "a\0b"]
)
def test_a_path_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^a\.json: expected a path inside"):
        resolve_inside(tmp_path, name, "a.json")


def test_a_link_that_leads_out_is_refused_and_one_inside_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "real").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (folder / "out").symlink_to(tmp_path / "other")
    (folder / "in").symlink_to(folder / "real")
    assert resolve_inside(folder, "in", "a.json") == folder / "in"
    with pytest.raises(InvalidValueError, match="expected a path inside"):
        resolve_inside(folder, "out", "a.json")
    (tmp_path / "linked").symlink_to(folder)
    assert resolve_inside(tmp_path / "linked", "real", "a.json")  # the folder itself may be reached by a link
