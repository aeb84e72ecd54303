"""Six recipes come to what they came to before: no later change of the code has moved a number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from freezing import FILE, RECIPES, STEPS, figures_of

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
