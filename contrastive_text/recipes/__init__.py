"""Recipes: methods as YAML files that name parts, shipped with the package.

A recipe is a small diff: ``base.yaml`` lies under every run, and under a recipe the one that its line ``recipe``
names: ``simcse_sup_roberta_base.yaml`` has ``recipe: simcse_sup``.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError

BASE = Path(__file__).parent / "base.yaml"
"""What every run starts from."""
GLUE_GRID = BASE.parent / "grids" / "glue.yaml"
"""Grid of the fine-tuning runs of each task of GLUE."""


def recipe_names() -> list[str]:
    """Returns the names that ``--recipe`` takes.

    Example:
        >>> "simcse" in recipe_names()
        True
    """
    return sorted(path.stem for path in BASE.parent.glob("*.yaml") if path != BASE)


def is_shipped(path: str | Path) -> bool:
    """Returns whether a file is a shipped recipe.

    Example:
        >>> is_shipped(recipe_file("simcse")), is_shipped("mine.yaml")
        (True, False)
    """
    return Path(path).resolve().parent == BASE.parent.resolve()


def recipe_file(name: str, where: str = "recipe") -> Path:
    """Returns the file of a recipe.

    Args:
        name: Its name.
        where: What the error begins with.

    Raises:
        ValueError: No recipe of that name.

    Example:
        >>> recipe_file("simcse").name
        'simcse.yaml'
        >>> recipe_file("simsce")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: recipe: expected a recipe, ... did you mean simcse? ...
    """
    names = recipe_names()
    if name in names:
        return BASE.parent / f"{name}.yaml"
    near = get_close_matches(name, names, n=1)
    if near:
        advice = f"did you mean {near[0]}? contrastive-text recipes lists all"
        raise InvalidValueError(f"{where}: expected a recipe, got {name!r}; {advice}")
    every = ", ".join(names)
    raise InvalidValueError(
        f"{where}: expected one of {every}, got {name!r}; a file of your own goes with --config"
    )
