"""Recipes: methods as YAML files that name parts, shipped with the package.

A recipe is a small diff: ``base.yaml`` lies under every run, and ``simcse.yaml`` under every recipe whose name
goes on from there, such as ``simcse_unsup_roberta_base``; ``simcse_sup.yaml`` lies between that and
``simcse_sup_roberta_base``.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError

BASE = Path(__file__).parent / "base.yaml"
"""What every run starts from."""


def recipe_names() -> list[str]:
    """Returns the names that ``--recipe`` takes.

    Example:
        >>> "simcse" in recipe_names()
        True
    """
    return sorted(path.stem for path in BASE.parent.glob("*.yaml") if path != BASE)


def recipe_files(name: str) -> list[Path]:
    """Returns the files of a recipe, each of which overrides the one before: those it extends, then its own.

    Raises:
        ValueError: No recipe of that name.

    Example:
        >>> [path.stem for path in recipe_files("simcse_sup_roberta_base")]
        ['simcse', 'simcse_sup', 'simcse_sup_roberta_base']
        >>> [path.stem for path in recipe_files("sbert_nli")]
        ['sbert_nli']
        >>> recipe_files("simsce")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: recipe: expected one of ...; did you mean simcse?
    """
    names = recipe_names()
    if name in names:
        starts = accumulate(name.split("_"), lambda start, word: f"{start}_{word}")
        return [BASE.parent / f"{start}.yaml" for start in starts if start in names]
    near = get_close_matches(name, names, n=1)
    advice = f"did you mean {near[0]}?" if near else "a file of your own goes with --config"
    raise InvalidValueError(f"recipe: expected one of {', '.join(names)}, got {name!r}; {advice}")
