"""Data sets in the hub's layout, from local folders: nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from contrastive_text.core.targets import NLI, Classes
from contrastive_text.data import read_rows
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.parsing import HubName, hub_name

datasets = pytest.importorskip("datasets")
ALL = FileForm(pair_labels="all")
LABELED = ("anchor", "positive", "target")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the library's cache out of the user's folder, and the hub out of reach."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def snli(tmp_path: Path) -> Path:
    """A folder like the hub's SNLI: the label a class with names, -1 where there is none."""
    features = datasets.Features(
        premise=datasets.Value("string"),
        hypothesis=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
    )
    rows = {"premise": ["p"] * 4, "hypothesis": ["yes", "so so", "no", "?"], "label": [0, 1, 2, -1]}
    folder = tmp_path / "data" / "snli"
    folder.mkdir(parents=True)
    table = datasets.Dataset.from_dict(rows, features=features)
    table.to_parquet(str(folder / "train.parquet"))
    table.select([2]).to_parquet(str(folder / "test.parquet"))
    return folder


def test_classes_come_by_name_and_what_has_none_stays(snli: Path) -> None:
    path = f"hub:{snli}:train"
    table = read_rows(path, LABELED, target=Classes(("contradiction", "entailment", "neutral")))
    assert table.rows == (
        {"anchor": "p", "positive": "yes", "target": 1.0},
        {"anchor": "p", "positive": "so so", "target": 2.0},
        {"anchor": "p", "positive": "no", "target": 0.0},
    )
    assert table.source == (path,)
    assert table.description == (
        f"{path}: premise -> anchor, hypothesis -> positive, label -> target: contradiction (1), entailment (1), "
        "neutral (1); 3 rows; 1 row without a gold label left out"
    )
    assert len(read_rows(f"hub:{snli}:test", ("anchor", "positive"), form=ALL)) == 1
    assert len(read_rows(f"hub:{snli}:train[:2]", ("anchor", "positive"), form=ALL)) == 2


def test_a_data_set_that_was_saved_to_disk_is_read(snli: Path, tmp_path: Path) -> None:
    table = datasets.load_dataset(str(snli))
    table.save_to_disk(str(tmp_path / "saved"))
    read = read_rows(f"hub:{tmp_path / 'saved'}:train", LABELED, target=Classes(NLI))
    assert [row["target"] for row in read] == [0.0, 1.0, 2.0]


def test_the_folder_is_left_as_it_was_and_bars_stay_as_they_were(
    snli: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(snli.rglob("*"))
    capsys.readouterr()
    read_rows(f"hub:{snli}:train", ("anchor", "positive"), form=ALL)
    assert sorted(snli.rglob("*")) == before
    assert capsys.readouterr().err == ""
    assert not datasets.are_progress_bars_disabled()


def test_a_row_is_named_by_its_number(snli: Path) -> None:
    with pytest.raises(ValueError, match=r"snli:train:2: expected one of the classes yes, no, got 'neutral'"):
        read_rows(f"hub:{snli}:train", LABELED, target=Classes(("yes", "no")), labels={"entailment": "yes"})


@pytest.mark.parametrize(
    ("path", "got"),
    [
        ("hub:{snli}:dev", 'Unknown split "dev". Should be one of'),
        ("hub:{snli}:plain:train", "BuilderConfig 'plain' not found"),
        ("hub:{snli}/nowhere:train", "Couldn't find any data file"),
        ("hub:no-one/nothing-of-that-name:train", "Couldn't"),
    ],
)
def test_what_is_not_there_is_refused_with_the_librarys_reason(snli: Path, path: str, got: str) -> None:
    path = path.format(snli=snli)
    with pytest.raises(ValueError) as refused:
        read_rows(path, LABELED)
    message = str(refused.value)
    assert message.startswith(f"{path}: expected a data set that can be loaded, got ")
    assert got in message
    assert message.endswith("; check the name, the configuration, the split and the connection")


def test_without_the_library_it_says_what_to_install(snli: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ImportError,
        match=r"expected the library datasets, got no such library; pip install contrastive-text\[datasets\]",
    ):
        read_rows(f"hub:{snli}:train", LABELED)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("hub:stanfordnlp/snli:train", HubName("stanfordnlp/snli", None, "train")),
        ("hub:nyu-mll/glue:mnli:validation_matched", HubName("nyu-mll/glue", "mnli", "validation_matched")),
        ("hub:imdb:train[:10%]+test[90%:]", HubName("imdb", None, "train[:10%]+test[90%:]")),
        ("hub:imdb:plain_text:train[10:20]", HubName("imdb", "plain_text", "train[10:20]")),
        ("hub:/data/snli:train", HubName("/data/snli", None, "train")),
    ],
)
def test_a_path_is_taken_apart(path: str, name: HubName) -> None:
    assert hub_name(path) == name


def test_a_folder_may_have_colons_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a:b:c"
    folder.mkdir()
    assert hub_name(f"hub:{folder}:train") == HubName(str(folder), None, "train")
    assert hub_name(f"hub:{folder}:conf:train[:5]") == HubName(str(folder), "conf", "train[:5]")


@pytest.mark.parametrize(
    "path", ["hub:", "hub:snli", "hub:snli:", "hub::train", "hub:a::train", "hub:a:b:c:train"]
)
def test_a_path_without_a_split_or_with_too_many_parts_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"^{path}: expected hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT"):
        hub_name(path)
