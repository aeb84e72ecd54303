"""Recipes: methods as YAML files that name parts, shipped with the package."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

BASE = Path(__file__).parent / "base.yaml"
"""What every run starts from; a recipe is a small diff over it."""


def recipe_names() -> list[str]:
    """Gives the names that ``--recipe`` takes.

    Example:
        >>> "simcse" in recipe_names()
        True
    """
    return sorted(path.stem for path in BASE.parent.glob("*.yaml") if path != BASE)


def recipe_path(name: str) -> Path:
    """Gives the file of a recipe.

    Raises:
        ValueError: No recipe of that name.

    Example:
        >>> recipe_path("simsce")
        Traceback (most recent call last):
        ValueError: recipe: expected one of simcse, got 'simsce'; did you mean simcse?
    """
    if name in recipe_names():
        return BASE.parent / f"{name}.yaml"
    near = get_close_matches(name, recipe_names(), n=1)
    advice = f"did you mean {near[0]}?" if near else "a file of your own goes with --config"
    raise ValueError(f"recipe: expected one of {', '.join(recipe_names())}, got {name!r}; {advice}")
