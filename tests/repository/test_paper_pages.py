"""Tests of the papers' pages: they are up to date, and show every stored run that belongs to a paper."""

from __future__ import annotations

import doctest
import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes.papers import Item, paper_names, read_paper

DOCS = Path(__file__).parents[2] / "docs" / "papers"
STARTS = {
    "cs224n": "Start: minilm-mlm, 63 batches.",
    "grid-clear-wikitext2": "Start: minilm-mlm, 30 steps.",
    "grid-consert-sts": "Start: minilm-mlm, 30 steps.",
    "grid-consert-wikitext2": "Start: minilm-mlm, 30 steps.",
    "grid-declutr-documents": "Start: minilm-mlm, 30 steps.",
    "grid-mlm-clear-wiki1m-head": "Start: random weights, 80 steps.",
    "grid-mlm-declutr-documents": "Start: random weights, 120 steps.",
    "nli": "Start: minilm-mlm, 40 steps.",
    "papers": "Start: minilm-mlm, 75 steps.",
    "protocol": "Start: minilm-mlm, 300 steps.",
    "2026-11-23-protocol": "Start: minilm-mlm, 75 steps.",
    "simcse-sts": "Start: minilm-mlm.",
    "untrained": "Start: minilm-mlm.",
}
"""Results that belong to the papers -> start and number of steps of their runs."""


def load() -> ModuleType:
    """Returns the script that writes the pages."""
    spec = spec_from_file_location("write_papers", DOCS / "write.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write = load()
ITEMS = [(name, item) for name in paper_names() for item in read_paper(name).items]


def test_the_examples_of_the_script_hold() -> None:
    outcome = doctest.testmod(write)
    assert outcome.attempted and not outcome.failed


def test_the_pages_are_up_to_date() -> None:
    written = write.pages()
    assert written.keys() == {*DOCS.glob("*.md")}
    for path, text in written.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make pages"


@pytest.mark.parametrize("paper", paper_names())
def test_an_item_shows_its_results_or_was_not_run(paper: str) -> None:
    sections = (DOCS / f"{paper}.md").read_text(encoding="utf-8").split("\n## ")[1:]
    for item, section in zip(read_paper(paper).items, sections, strict=True):
        files = re.findall(r"\(`benchmarks/results/([\w-]+)\.md`\)", section)
        named = {re.sub(r"^[\d-]{11}|/.*", "", name) for name in item.here}
        assert {name[11:] for name in files} == named, item.name
        assert ("Here: not run" in section) == (bool(item.commands) and not item.here), item.name
        contrary = [
            part.startswith("**Contrary")
            for part in re.findall(r"^(?:Here: )?(\*\*Contrary|Start: |As in|Not decided)", section, re.M)
        ]
        assert contrary == sorted(contrary, reverse=True), item.name


def test_every_result_of_the_papers_is_shown_with_its_start_and_steps() -> None:
    named = {name.partition("/")[0] for _, item in ITEMS for name in item.here}
    assert named == {*STARTS}
    assert {name: write.start_of(write.result_file(name)) for name in named} == STARTS


@pytest.mark.parametrize("result", STARTS)
def test_every_row_of_a_result_is_shown_by_an_item(result: str) -> None:
    """A new sweep of ``papers``, or a new row of a grid, is missing on the pages until an item names it."""
    content = json.loads(write.result_file(result).read_text(encoding="utf-8"))
    studies = [f"papers/{study}" for study in content["rows"]] if result == "papers" else [result]
    for study in studies:
        cells = {*write.read_cells(study)}
        shows = [item.here[study] for _, item in ITEMS if study in item.here]
        shown = {cell for show in shows for cell in show.get("cells", cells)}
        # Untrained: further metrics, settings and poolers of the same vectors.
        assert shown == cells or (result == "untrained" and shown < cells), cells - shown


def test_a_sweep_of_a_table_belongs_to_the_item_of_that_table() -> None:
    content = json.loads(write.result_file("papers").read_text(encoding="utf-8"))
    for study in content["rows"]:
        paper, number = study.split("-")[0], "-".join(study.split("-")[1:3])
        (item,) = [
            item for name, item in ITEMS if name == paper and item.name.lower().replace(" ", "-") == number
        ]
        assert f"papers/{study}" in item.here


@pytest.mark.parametrize(
    ("here", "message"),
    [
        ({"nil": {}}, "nil: expected the name of a file in benchmarks/results, got 'nil'"),
        (
            {"papers/simcse-table-9": {"scores": {}}},
            "sweep: expected one of simcse-table-1, .*, got 'simcse-table-9'",
        ),
        ({"nli": {"score": {}}}, "simcse, Table 1, nli: key: expected one of cells, .*, got 'score'"),
        ({"nli": {"scores": {"mean": "mean"}, "cells": ["join"]}}, "cell: expected one of .*joint.*, got 'join'"),
        ({"nli": {"scores": {"men": "mean"}}}, "score: expected one of .*mean.*, got 'men'"),
        (
            {"nli": {"scores": {"mean": "mean"}, "finds": ["join > sbert"]}},
            "cell of a finding: expected one of .*joint.*, got 'join'",
        ),
        (
            {"cs224n": {"scores": {"dev similarity": "STS"}, "finds": ["average > sentiment-alone"]}},
            "expected two cells with dev similarity of one seed, got average and sentiment-alone",
        ),
    ],
)
def test_an_item_that_names_no_result_is_refused(here: dict[str, Any], message: str) -> None:
    item = Item(name="Table 1", shows="scores", commands=["contrastive-text fit"], here=here)
    with pytest.raises(InvalidValueError, match=message):
        write.Shown("simcse")(item)


def test_findings_are_compared_over_common_seeds() -> None:
    cells = {
        "a": {"dev": {1: 70.0, 2: 71.0, 3: 72.0}},
        "b": {"dev": {1: 69.0, 2: 70.1, 3: 70.9, 4: 99.0}},
        "c": {"dev": {1: 60.0, 2: 80.0, 3: 79.0}},
        "d": {"dev": {2: 70.0}},
        "start": {"dev": {0: 50.0}},
        "other start": {"dev": {0: 40.0}},
    }
    found = write.verdicts("page", cells, "dev", ["a > b", "a > c", "b > a"])
    assert [*found.values()] == [
        ["b 70.00 is below a 71.00 (3 seeds)"],
        ["a 71.00 is above b 70.00 (3 seeds)"],
        ["a 71.00 against c 73.00 (3 seeds, within noise)"],
    ]
    found = write.verdicts("page", cells, "dev", ["a > start", "start > other start", "d > a"])
    assert [*found.values()] == [
        [],
        ["a 71.00 is above start 50.00 (3 seeds)", "start 50.00 is above other start 40.00 (without training)"],
        ["d 70.00 against a 71.00 (one seed)"],
    ]
    assert [write.seeds(cells[name]) for name in ("b", "start")] == ["4", "-"]
