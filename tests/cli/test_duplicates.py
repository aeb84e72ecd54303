"""The duplicates command: all pairs from a threshold on, exact repeats apart, and a file without them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny
from shells import Shell

from contrastive_text.inference.duplicates import near_duplicates
from contrastive_text.inference.sentence_encoder import SentenceEncoder

TEXTS = (*tiny.TEXTS[:20], tiny.TEXTS[3], *tiny.TEXTS[20:25], tiny.TEXTS[3], tiny.TEXTS[0])
"""25 distinct texts; lines 21 and 27 repeat line 4, line 28 line 1."""
DUPLICATES = "duplicates t.txt d.tsv --model BERT --device cpu"


@pytest.fixture(autouse=True)
def texts(here: Path) -> str:
    """The texts in t.txt."""
    return tiny.write_texts(here / "t.txt", TEXTS)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.fixture(scope="module")
def cosines(files: dict[str, str]) -> np.ndarray:
    """Of the 25 distinct texts, each with each."""
    with pytest.warns(UserWarning, match="names no pooler"):
        model = SentenceEncoder.from_pretrained(files["bert"], device="cpu")
    vectors = np.asarray(model.encode(tiny.TEXTS[:25]), dtype=np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors @ vectors.T)


def lines_of(places: Sequence[int]) -> list[int]:
    """Lines of distinct texts: a repeat stands between the first twenty and the others."""
    return [place + 1 if place < 20 else place + 2 for place in places]


@pytest.fixture
def threshold(cosines: np.ndarray) -> float:
    """Halfway between two neighboring cosines, so that rounding decides nothing; six pairs are above it."""
    ordered = np.sort(cosines[np.triu_indices(25, 1)])[::-1]
    return float(ordered[5:7].mean())


def first_of_groups(cosines: np.ndarray, threshold: float) -> list[int]:
    """The first of each group that chains of pairs connect, by flooding."""
    left, first = set(range(25)), []
    while left:
        first.append(min(left))
        group = {first[-1]}
        while new := {j for i in group for j in left - group if cosines[i, j] >= threshold}:
            group |= new
        left -= group
    return first


@pytest.mark.parametrize("name", ["kept.txt", "kept.jsonl"])
def test_pairs_are_those_of_the_double_loop_by_falling_cosine_and_the_first_of_each_group_is_kept(
    shell: Shell, here: Path, cosines: np.ndarray, threshold: float, name: str
) -> None:
    said = shell(f"{DUPLICATES} --threshold {threshold} --keep {name}").out
    rows = rows_of(here / "d.tsv")
    exact = [(row["kind"], row["cosine"], row["line_1"], row["line_2"], row["text_1"]) for row in rows[:3]]
    assert exact == [
        ("exact", "1.000000", "4", "21", TEXTS[3]),
        ("exact", "1.000000", "4", "27", TEXTS[3]),
        ("exact", "1.000000", "1", "28", TEXTS[0]),
    ]
    pairs = [(i, j) for i in range(25) for j in range(i + 1, 25) if cosines[i, j] >= threshold]
    pairs.sort(key=lambda pair: -cosines[pair])
    near = rows[3:]
    assert [[int(row["line_1"]), int(row["line_2"])] for row in near] == [lines_of(pair) for pair in pairs]
    assert [(row["text_1"], row["text_2"]) for row in near] == [(tiny.TEXTS[i], tiny.TEXTS[j]) for i, j in pairs]
    # Products of float32 with 16 terms, and six digits.
    assert [float(row["cosine"]) for row in near] == pytest.approx([cosines[pair] for pair in pairs], abs=2e-6)
    assert "t.txt: text -> text; 25 rows; 3 repeated texts left out" in said
    assert f"6 pairs of a cosine from {threshold} and 3 exact repeats written to d.tsv" in said
    kept = [tiny.TEXTS[i] for i in first_of_groups(cosines, threshold)]
    lines = (here / name).read_text(encoding="utf-8").splitlines()
    assert (lines if name.endswith(".txt") else [json.loads(line)["text"] for line in lines]) == kept
    assert 0 < len(kept) < 25
    assert f"{len(kept)} of 28 texts kept in {name}" in said
    assert {path.name for path in here.iterdir()} == {"d.tsv", "t.txt", name}


def test_a_text_of_several_lines_is_kept_as_json_only(shell: Shell, here: Path) -> None:
    (here / "t.csv").write_text('text\none\n"two\nlines"\n"two\nlines"\n')
    said = shell.refused("duplicates t.csv d.tsv --model BERT --keep k.txt")
    assert "expected texts of one line for k.txt, got a text of several lines; keep them in k.jsonl" in said
    shell("duplicates t.csv d.tsv --model BERT --keep k.jsonl --threshold 1")
    kept = [json.loads(line)["text"] for line in (here / "k.jsonl").read_text().splitlines()]
    assert kept == ["one", "two\nlines"]
    (row,) = rows_of(here / "d.tsv")
    assert (row["line_1"], row["line_2"], row["text_1"]) == ("3", "5", "two lines")


def test_too_many_pairs_leave_the_vectors_for_a_higher_threshold(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("contrastive_text.cli.duplicates.near_duplicates", partial(near_duplicates, most=5))
        said = shell.refused(f"{DUPLICATES} --threshold 0.1")
    assert "threshold: expected at most 5 pairs, got more at 0.1; raise the threshold" in said
    assert (here / "d.tsv.vectors.npy").exists()
    monkeypatch.setattr("contrastive_text.cli.models.EmbeddingRun", None)  # nothing is encoded again
    shell(f"{DUPLICATES} --threshold 1")
    assert sorted(path.name for path in here.iterdir()) == ["d.tsv", "t.txt"]
