"""Rows that are mapped, with the bound lowered: those of memory, read from a file that all processes share."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.targets import NLI, Classes
from contrastive_text.data import Table, read_rows
from contrastive_text.data.files import mapped, readers
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.mapped import ArrowRows, count_repeats, sample_if_large
from contrastive_text.data.tasks import Clean
from contrastive_text.pairings import Given, Neighbors

pytest.importorskip("pyarrow")
ALL = FileForm(pair_labels="all")
READS = ("anchor", "positive", "target")
ROWS: list[dict[str, Any]] = [
    {
        "anchor": f"a{i % 7}",
        "pos": ["b", "c"][: 1 + i % 2],
        "neg": [f"n{i}", "m", "o"][: 1 + i % 3],
        "label": i % 3,
    }
    for i in range(23)
] + [{"anchor": "", "pos": "left out", "neg": "x", "label": 0}]


def lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps whatever has more than ten records, in batches of four."""
    monkeypatch.setattr(mapped, "MAPPED_ROWS", 10)
    monkeypatch.setattr(mapped, "_BATCH_ROWS", 4)


def files(folder: Path) -> list[str]:
    """Returns pairs with negatives, in two files of which the second is empty in places."""
    names = [str(folder / "one.jsonl"), str(folder / "two.jsonl")]
    for name, rows in zip(names, (ROWS, ROWS[:5]), strict=True):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return names


def both(monkeypatch: pytest.MonkeyPatch, folder: Path, given: Any, **options: Any) -> tuple[Table, Table]:
    """Returns the rows as memory holds them, and mapped."""
    held = read_rows(given, **options)
    assert isinstance(held.rows, tuple)
    lower(monkeypatch)
    found = read_rows(given, cache_dir=folder / "cache", **options)
    assert isinstance(found.rows, ArrowRows)
    return held, found


@pytest.mark.parametrize("given", ["files", "rows"])
def test_mapped_rows_are_those_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str) -> None:
    rows = files(tmp_path) if given == "files" else ROWS
    held, found = both(monkeypatch, tmp_path, rows, reads=READS, target=Classes(NLI))
    assert tuple(found.rows) == held.rows == tuple(found.rows[i] for i in range(len(found)))
    assert (
        list(found[0])
        == list(held[0])
        == ["anchor", "positive", "negative", "negative_2", "negative_3", "target"]
    )
    assert found.rows[-1] == held.rows[-1]
    assert list(found.rows[3:17]) == list(held.rows[3:17]) == list(pickle.loads(pickle.dumps(found.rows[3:17])))
    assert list(found.rows.column("anchor")) == [row["anchor"] for row in held]
    assert (list(found.sizes), found.files, found.source) == (list(held.sizes), held.files, held.source)
    *said, last = found.description.splitlines()
    assert said == held.description.splitlines()
    assert last.startswith("more than 10 rows: mapped from ")
    assert count_repeats(found.rows, "anchor") == count_repeats(held.rows, "anchor") == len(held) - 7
    again = read_rows(rows, READS, target=Classes(NLI), cache_dir=tmp_path / "cache")
    assert again.rows.path == found.rows.path
    assert again.content == found.content
    assert read_rows(rows, READS[:2], cache_dir=tmp_path / "cache", form=ALL).rows.path != found.rows.path


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".parquet"])
def test_documents_are_followed_and_cleaned_where_they_are_mapped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    lines = [f"t  {i}" if i % 5 else "" for i in range(24)]
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow.parquet")
        pyarrow.write_table(pytest.importorskip("pyarrow").table({"text": lines}), path)
    else:
        with gzip.open(path, "wt") if suffix.endswith("gz") else path.open("w") as file:
            file.write("\n".join(lines))
    held, found = both(monkeypatch, tmp_path, path, reads=("text",))
    for pairing in (Given(), Neighbors(reach=2)):
        one, other = (pairing.arrange(table.documents) for table in (held, found))
        assert (list(one[0]), one[1]) == (list(other[0]), other[1])
        assert [one[0][i] for i in range(len(one[0]))] == list(other[0])
    cleaned = [Clean(collapse=True).table(table) for table in (held, found)]
    assert list(cleaned[0].rows) == list(cleaned[1].rows)
    assert "t 1" in cleaned[1].rows[0].values()
    # What is cleaned in the same way is known again, also after a restart; all else is told from it.
    ways = [found, *(Clean(collapse=True, lower=lower).table(found) for lower in (False, True))]
    assert ways[1].content == cleaned[1].content
    assert len({table.content for table in ways}) == 3
    assert all(table.digest for table in ways)


def test_a_sample_is_one_of_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": str(i)} for i in range(50)]
    assert sample_if_large(rows, seed=0) is rows
    monkeypatch.setattr(mapped, "MAPPED_ROWS", 10)
    monkeypatch.setattr("contrastive_text.data.files.mapped.SAMPLE", 5)
    numbers = [int(str(row["text"])) for row in sample_if_large(rows, seed=1)]
    assert [number // 10 for number in numbers] == [0, 1, 2, 3, 4]
    assert numbers != [int(str(row["text"])) for row in sample_if_large(rows, seed=2)]


def test_what_is_wrong_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lower(monkeypatch)
    one, two = files(tmp_path)
    options: dict[str, Any] = {"reads": READS, "target": Classes(NLI), "cache_dir": tmp_path / "cache"}
    Path(two).write_text(
        "".join(json.dumps({"anchor": "a", "pos": "b", "label": "no"}) + "\n" for _ in range(12))
    )
    with pytest.raises(ContrastiveTextError, match=r"two\.jsonl:1: expected one of the classes"):
        read_rows([one, two], **options)
    assert not list((tmp_path / "cache").glob("*/*"))
    rows = read_rows(one, **options).rows
    assert isinstance(rows, ArrowRows)
    with rows.path.open("ab") as file:
        file.write(b"more")
    kept = pickle.dumps(rows)
    for read in (lambda: rows[0], lambda: list(rows), lambda: pickle.loads(kept)):
        with pytest.raises(
            ContrastiveTextError,
            match=r"rows\.arrow: .* got a file that has changed since the run began; start or resume",
        ):
            read()
    with pytest.warns(UserWarning, match=r"damaged rows \(rows.arrow: .*created again"):
        assert len(read_rows(one, **options)) == len(rows)


def test_rows_that_cannot_be_mapped_stay_in_memory_and_say_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lower(monkeypatch)
    monkeypatch.setattr(readers, "find_spec", lambda _: None)
    table = read_rows(files(tmp_path), reads=("anchor", "positive"), form=ALL)
    assert isinstance(table.rows, tuple)
    assert table.description.endswith(
        "rows are in memory; to map that many, pip install 'contrastive-text[parquet]'"
    )


def test_a_file_is_found_again_in_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lower(monkeypatch)
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        assert (
            len(read_rows(files(tmp_path / name), reads=READS[:2], cache_dir=tmp_path / "cache", form=ALL)) > 10
        )
    assert len([*(tmp_path / "cache").glob("*/")]) == 1
