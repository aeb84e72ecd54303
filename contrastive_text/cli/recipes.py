"""Command ``recipes``: lists the recipes, or prints one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from contrastive_text.core.terminal import say
from contrastive_text.recipes import BASE, recipe_file, recipe_texts


@dataclass(frozen=True)
class Recipes:
    """List the recipes; or print one: how closely it follows its source, the score to expect, and its YAML."""

    name: Annotated[str | None, {"nargs": "?"}, "Name of a recipe to print. Default: all recipes are listed."] = (
        None
    )


def recipes(options: Recipes) -> None:
    """Prints each recipe in a line, those over it below it; or the YAML of one.

    Raises:
        ValueError: No recipe of that name.
    """
    if options.name is not None:
        recipe_file(options.name, where="recipes")  # which answers an unknown name
        say(recipe_texts()[options.name], end="")
        return
    files = dict(sorted(recipe_texts().items()))
    parents = {name: parent(text) for name, text in files.items()}
    for name, text in files.items():
        if parents[name] is None:
            say(f"{name:<14} {title(text)}")
            for variant in below(name, parents):
                say(f"  {variant}: {title(files[variant])}")
    say(f"\nThe whole of one: contrastive-text recipes NAME. They are files of {BASE.parent}")


def title(text: str) -> str:
    """Returns what a recipe is: the first sentence of its header.

    Example:
        >>> title("# SimCSE: the same text twice.\\n# Gao et al. 2021\\nmodel: {}\\n")
        'SimCSE: the same text twice'
    """
    header = " ".join(line.lstrip("# ") for line in text.partition("\nmodel:")[0].splitlines() if line[:1] == "#")
    return re.split(r"\.(?= |$)", header, maxsplit=1)[0]


def parent(text: str) -> str | None:
    """Returns the recipe that another one overrides.

    Example:
        >>> parent("# Over SimCSE.\\nrecipe: simcse\\n")
        'simcse'
    """
    found = re.search(r"^recipe: *([\w/]+)", text, flags=re.MULTILINE)
    return found and found[1]


def below(name: str, parents: dict[str, str | None]) -> list[str]:
    """Returns the recipes that override one, and those that override these."""
    own = [each for each, above in parents.items() if above == name]
    return [one for each in own for one in (each, *below(each, parents))]
