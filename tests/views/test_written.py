"""Texts written elsewhere: found by text, drawn by row, with little memory, refused where they are missing."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny

from contrastive_text.core.random import generator
from contrastive_text.core.types import Vocabulary
from contrastive_text.pairings import Given
from contrastive_text.views import TextsFromFile

ROWS = [("a big dog", "a large dog"), ("näh", "nein"), ("a big dog", "a huge dog"), ("x", 'a "quote"')]


@pytest.fixture(params=["tsv", "jsonl", "marked.tsv"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The rows in each format: a text twice in a table, once with a list in JSON."""
    path = tmp_path / f"written.{request.param}"
    if request.param.endswith("tsv"):
        mark = "\ufeff" if "marked" in request.param else ""
        lines = ["alternative\tscore\ttext", *(f"{other}\t1\t{text}" for text, other in ROWS), ""]
        path.write_text(mark + "\r\n".join(lines), encoding="utf-8", newline="")
    else:
        listed: dict[str, list[str]] = {}
        for text, other in ROWS:
            listed.setdefault(text, []).append(other)
        rows = [
            {"alternative": each if len(each) > 1 else each[0], "text": text} for text, each in listed.items()
        ]
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n\n" for row in rows), encoding="utf-8")
    return str(path)


def test_each_text_has_its_alternatives_and_one_is_drawn(file: str) -> None:
    view = TextsFromFile(file)
    view.build(Vocabulary(size=1))
    for each in (view, pickle.loads(pickle.dumps(view))):
        assert each.alternatives("a big dog") == ["a large dog", "a huge dog"]
        assert each("näh", generator(0)) == "nein"
        assert each("x", generator(0)) == 'a "quote"'
    drawn = Counter(view("a big dog", generator(seed)) for seed in range(400))
    assert abs(drawn["a large dog"] - 200) < 60  # six standard deviations


def test_a_text_that_is_not_there_is_an_error_or_stays(file: str) -> None:
    with pytest.raises(ValueError, match=r"an alternative of every text, got none of the text 'else'; .* keep"):
        TextsFromFile(file)("else", generator(0))
    assert [TextsFromFile(file, missing="keep")(text, generator(0)) for text in ("else", "näh")] == [
        "else",
        "nein",
    ]


def test_a_file_that_was_changed_is_an_error_and_no_other_text(file: str) -> None:
    view = TextsFromFile(file)
    view.build(Vocabulary(size=1))
    content = Path(file).read_bytes()
    Path(file).write_bytes(content.replace("näh".encode(), "nöh".encode()))
    with pytest.raises(OSError, match="expected the file as it was when the run began"):
        view("näh", generator(0))


def test_memory_is_sixteen_bytes_a_line(tmp_path: Path) -> None:
    path = tmp_path / "many.tsv"
    path.write_text("text\talternative\n" + "".join(f"text {i}\tother {i}\n" for i in range(2000)))
    view = TextsFromFile(str(path))
    assert len(pickle.dumps(view)) < 1000
    assert view("text 1234", np.random.default_rng(0)) == "other 1234"
    assert len(pickle.dumps(view)) < 16 * 2000 + 1500


def test_a_missing_text_is_found_before_the_first_step_and_only_where_the_view_stands(
    bert: str, tmp_path: Path
) -> None:
    path, triples = tmp_path / "short.tsv", tmp_path / "pairs.tsv"
    path.write_text(f"text\talternative\n{tiny.TEXTS[0]}\tbird\n")
    triples.write_text("anchor\tpositive\n" + f"else\t{tiny.TEXTS[0]}\n" * 8)
    module = tiny.module(bert, views={"positive": [TextsFromFile(str(path))]})
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    with pytest.raises(ValueError, match=rf"data.task: .*short.tsv: .* of the text '{tiny.TEXTS[1][:20]}"):
        tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=data)
    tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(str(triples), pairing=Given()))
