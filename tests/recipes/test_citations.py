"""Tests of the papers that recipes cite."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrastive_text.recipes import recipe_names
from contrastive_text.recipes.papers import citations, shipped


def test_every_recipe_has_a_paper_whose_entry_is_whole() -> None:
    for name in recipe_names():
        entries = citations([name])
        assert entries, name
        for entry in entries:
            assert entry.count("{") == entry.count("}")
            assert {"title", "author", "url"} <= {line.split(" = ")[0].strip() for line in entry.splitlines()}


@pytest.mark.parametrize(
    ("name", "first"),
    [("simcse", "2104.08821"), ("consert/sup_base", "2105.11741"), ("cs224n/pcgrad", "stanford"), ("x", "")],
)
def test_the_paper_of_a_method_comes_first(name: str, first: str) -> None:
    assert first in "".join(citations([name])[:1])


def test_a_file_over_a_recipe_is_known_by_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: dcl\nmodel: {}\n", encoding="utf-8")
    (tmp_path / "alone.yaml").write_text("model: {}\n", encoding="utf-8")
    assert [shipped(tmp_path / f"{name}.yaml") for name in ("mine", "alone", "absent")] == ["dcl", None, None]
