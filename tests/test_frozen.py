"""Frozen figures of training steps: a change of the code that moves a number fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import wordnet_files
from freezing import FILE, RECIPES, STEPS, TOTALS_FILE, figures_of, totals_of

from contrastive_text.recipes import recipe_names

# In float64; what is left is the order of sums, which processors and numbers of threads choose.
TOLERANCE = 1e-10


@pytest.fixture(scope="module")
def frozen() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    assert figures.keys() == set(RECIPES)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_three_steps_come_to_the_frozen_figures(recipe: str, frozen: dict[str, Any], tmp_path: Path) -> None:
    figures, expected = figures_of(recipe, tmp_path), frozen[recipe]
    assert len(figures["losses"]) == len(figures["gradient_norms"]) == STEPS
    for name in ("losses", "gradient_norms"):
        assert figures[name] == pytest.approx(expected[name], rel=TOLERANCE)
    assert figures["tensors"].keys() == expected["tensors"].keys()
    for name, sums in figures["tensors"].items():
        assert sums == pytest.approx(expected["tensors"][name], rel=TOLERANCE, abs=TOLERANCE), name


TOTALS: dict[str, Any] = json.loads(TOTALS_FILE.read_text(encoding="utf-8"))


def test_every_recipe_has_frozen_totals() -> None:
    assert TOTALS.keys() == set(recipe_names())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [name for name in TOTALS if name not in RECIPES])
def test_three_steps_come_to_the_frozen_totals(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wordnet_files.write_wordnet(tmp_path / "nltk_data")
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "nltk_data"))
    figures, expected = totals_of(recipe, tmp_path), TOTALS[recipe]
    assert figures["names"] == expected["names"]
    for name in ("losses", "gradient_norms", "totals"):
        assert figures[name] == pytest.approx(expected[name], rel=TOLERANCE), name
