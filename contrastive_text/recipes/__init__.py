"""Recipes: methods as YAML files that name parts, shipped with the package.

A recipe is a small diff: ``base.yaml`` lies under every run, and under a recipe the one that its line ``recipe``
names: ``esimcse.yaml`` has ``recipe: simcse``. A method is one file. What its variants override stands below the
key ``variants``: ``simcse/sup`` is the variant ``sup`` of ``simcse.yaml``.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import dedent

from contrastive_text.core.errors import InvalidValueError

BASE = Path(__file__).parent / "base.yaml"
"""What every run starts from."""
GLUE_GRID = BASE.parent / "grids" / "glue.yaml"
"""Grid of the fine-tuning runs of each task of GLUE."""


def recipe_names() -> list[str]:
    """Returns the names that ``--recipe`` takes: of each file, and of each variant in it.

    Example:
        >>> "simcse" in recipe_names(), "simcse/sup" in recipe_names()
        (True, True)
    """
    return sorted(recipe_texts())


@cache
def recipe_texts() -> dict[str, str]:
    """Returns the YAML of each recipe by name; that of a variant as a file over its method.

    Example:
        >>> print(recipe_texts()["simcse/sup_bert_base"].partition("recipe: ")[2].splitlines()[0])
        simcse/sup
    """
    texts = {}
    for path in BASE.parent.glob("*.yaml"):
        method, _, variants = path.read_text(encoding="utf-8").partition("\nvariants:\n")
        texts[path.stem] = method.rstrip("\n") + "\n"
        _, *found = re.split(r"^  (\w+):\n", variants, flags=re.MULTILINE)
        for variant, text in zip(found[::2], found[1::2], strict=True):
            own = dedent(text)
            if not re.search("^recipe:", own, flags=re.MULTILINE):
                own = re.sub("^(?!#)", f"recipe: {path.stem}\n", own, count=1, flags=re.MULTILINE)
            texts[f"{path.stem}/{variant}"] = own
    del texts[BASE.stem]
    return texts


def recipe_file(name: str, where: str = "recipe") -> Path:
    """Returns the path of a recipe: its file, and below it the name of its variant.

    Args:
        name: Its name.
        where: What the error begins with.

    Raises:
        ValueError: No recipe of that name.

    Example:
        >>> recipe_file("simcse").name, recipe_file("simcse/sup").parts[-2:]
        ('simcse.yaml', ('simcse.yaml', 'sup'))
        >>> recipe_file("simsce")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: recipe: expected a recipe, ... did you mean simcse? ...
    """
    names = recipe_names()
    method, slash, variant = name.partition("/")
    if name in names:
        return BASE.parent / f"{method}.yaml" / variant
    if slash and method in names:
        known = ", ".join(each for each in names if each.startswith(f"{method}/")) or "no variant"
        raise InvalidValueError(f"{where}: expected {method} alone, or {known}, got {name!r}")
    near = get_close_matches(name, names, n=1)
    if near:
        advice = f"did you mean {near[0]}? contrastive-text recipes lists all"
        raise InvalidValueError(f"{where}: expected a recipe, got {name!r}; {advice}")
    every = ", ".join(names)
    raise InvalidValueError(
        f"{where}: expected one of {every}, got {name!r}; a file of your own goes with --config"
    )
