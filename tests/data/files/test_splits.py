"""Splits: files that hold several, of which one is read and the rest counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import SCORED, refuses, write

from contrastive_text.core.targets import NLI, Classes
from contrastive_text.data import read_pairs, read_rows

INFERENCE = Classes(NLI)

ALL_NLI = (
    "split\tdataset\tfilename\tsentence1\tsentence2\tlabel\n"
    "train\tAllNLI\tsnli.txt\ta\tb\tneutral\n"
    "train\tAllNLI\tmnli.txt\tc\td\tentailment\n"
    "dev\tAllNLI\tsnli.txt\te\tf\tcontradiction\n"
    "test\tAllNLI\tsnli.txt\tg\th\tcontradiction\n"
)


@pytest.mark.parametrize(
    ("split", "anchors", "said"),
    [
        ("train", "ac", "split: train (2); dev (1), test (1) left out; dataset, filename ignored; 2 rows"),
        ("validation", "e", "split: dev (1); train (2), test (1) left out; dataset, filename ignored; 1 row"),
        ("test", "g", "split: test (1); train (2), dev (1) left out; dataset, filename ignored; 1 row"),
        ("all", "aceg", "split: all of train (2), dev (1), test (1); dataset, filename ignored; 4 rows"),
    ],
)
def test_one_split_of_allnli_is_read_and_the_rest_counted(
    tmp_path: Path, split: str, anchors: str, said: str
) -> None:
    path = write(tmp_path / "AllNLI.tsv.gz", ALL_NLI)
    table = read_rows(path, SCORED, target=INFERENCE, split=split)
    assert "".join(str(row["anchor"]) for row in table) == anchors
    assert said in table.understood.split("\n")[0]


def test_splits_in_one_file_are_never_mixed_silently(tmp_path: Path) -> None:
    path = write(tmp_path / "AllNLI.tsv.gz", ALL_NLI)
    with refuses("AllNLI.tsv.gz: expected rows of one split, got train (2), dev (1), test (1); give split train"):
        read_rows(path, SCORED, target=INFERENCE)
    two = write(tmp_path / "a.tsv", "\n".join(ALL_NLI.split("\n")[2:4]).replace("AllNLI", "x"))
    write(two, ALL_NLI.split("\n")[0] + "\n" + two.read_text())
    with refuses("expected rows of the split test, got train (1), dev (1)"):
        read_rows(two, SCORED, target=INFERENCE, split="test")
    scored = write(tmp_path / "sts.tsv", "split\tscore\tsentence1\tsentence2\ntrain\t1\ta\tb\ndev\t2\tc\td\n")
    assert read_pairs(scored, split="dev").rows == ({"anchor": "c", "positive": "d", "target": 2.0},)


@pytest.mark.parametrize("values", ["train train", "0 1", "x y"])
def test_a_column_split_that_does_not_choose_is_ignored_aloud(tmp_path: Path, values: str) -> None:
    lines = "".join(f"{value}\ta\n" for value in values.split())
    table = read_rows(write(tmp_path / "a.tsv", f"split\ttext\n{lines}"), ["text"], split="train")
    assert len(table) == 2
    assert "split ignored" in table.understood


def test_a_column_split_may_be_read_as_what_the_user_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "split\tx\ntrain\t1\ntest\t2\n")
    assert len(read_rows(path, ["text"], columns={"text": "split"})) == 2
