"""Recipes: YAML files of this package that define training methods.

A recipe contains only differences. It overrides ``base.yaml``, and the recipe that its key ``recipe`` names:
``esimcse.yaml`` has ``recipe: simcse``. A method is one file. Its key ``variants`` contains the options that each
variant overrides: ``simcse/sup`` is the variant ``sup`` of ``simcse.yaml``.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from textwrap import dedent

from contrastive_text.core.errors import InvalidValueError

BASE = Path(__file__).parent / "base.yaml"
"""Path of the YAML file with the defaults of every run."""
GLUE_GRID = BASE.parent / "grids" / "glue.yaml"
"""Path of the grid of fine-tuning runs of each GLUE task."""


def recipe_names() -> list[str]:
    """Returns the names of all recipes for ``--recipe``: of each file, and of each variant in a file.

    Example:
        >>> "simcse" in recipe_names(), "simcse/sup" in recipe_names()
        (True, True)
    """
    return sorted(recipe_texts())


@cache
def recipe_texts() -> dict[str, str]:
    """Returns name -> YAML text of each recipe. A variant's text is a file that overrides its method.

    Example:
        >>> print(recipe_texts()["simcse/sup_bert_base"].partition("recipe: ")[2].splitlines()[0])
        simcse/sup
    """
    texts = {}
    for path in BASE.parent.glob("*.yaml"):
        method, _, variants = path.read_text(encoding="utf-8").partition("\nvariants:\n")
        texts[path.stem] = method.rstrip("\n") + "\n"
        _, *sections = re.split(r"^  (\w+):\n", variants, flags=re.MULTILINE)
        for variant, text in zip(sections[::2], sections[1::2], strict=True):
            variant_text = dedent(text)
            if not re.search("^recipe:", variant_text, flags=re.MULTILINE):
                line = f"recipe: {path.stem}\n"
                variant_text = re.sub("^(?!#)", line, variant_text, count=1, flags=re.MULTILINE)
            texts[f"{path.stem}/{variant}"] = variant_text
    del texts[BASE.stem]
    return texts


def recipe_file(name: str, where: str = "recipe") -> Path:
    """Returns the path of a recipe: ``FILE.yaml``, or ``FILE.yaml/VARIANT`` for a variant.

    Args:
        name: Name of the recipe.
        where: Beginning of the error message.

    Raises:
        ValueError: There is no recipe of this name.

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
        variants = ", ".join(other for other in names if other.startswith(f"{method}/")) or "no variant"
        raise InvalidValueError(f"{where}: expected the recipe {method} or a variant ({variants}), got {name!r}")
    near = get_close_matches(name, names, n=1)
    if near:
        advice = f"did you mean {near[0]}? contrastive-text recipes lists all"
        raise InvalidValueError(f"{where}: expected a recipe, got {name!r}; {advice}")
    raise InvalidValueError(
        f"{where}: expected one of {', '.join(names)}, got {name!r}; give a file of your own with --config"
    )
