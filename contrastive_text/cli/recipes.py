"""Command ``recipes``: lists the recipes, or prints the YAML of one recipe."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from contrastive_text.core.terminal import print_message
from contrastive_text.recipes import BASE, recipe_file, recipe_texts


@dataclass(frozen=True)
class Recipes:
    """List the recipes, or print one recipe with its source, its expected score and its YAML."""

    name: Annotated[str | None, {"nargs": "?"}, "Name of a recipe to print. Default: all recipes are listed."] = (
        None
    )


def recipes(options: Recipes) -> None:
    """Prints a line for each recipe, followed by its variants, or the YAML of one recipe.

    Raises:
        ValueError: The name is of no recipe.
    """
    if options.name is not None:
        recipe_file(options.name, where="recipes")  # raises for an unknown name
        print_message(recipe_texts()[options.name], end="")
        return
    files = dict(sorted(recipe_texts().items()))
    parents = {name: parent(text) for name, text in files.items()}
    for name, text in files.items():
        if parents[name] is None:
            print_message(f"{name:<14} {title(text)}")
            for variant in variants_of(name, parents):
                print_message(f"  {variant}: {title(files[variant])}")
    print_message(f"\nPrint one recipe: contrastive-text recipes NAME. Folder of the files: {BASE.parent}")


def title(text: str) -> str:
    """Returns the title of a recipe, which is the first sentence of its YAML header.

    Example:
        >>> title("# SimCSE: the same text twice.\\n# Gao et al. 2021\\nmodel: {}\\n")
        'SimCSE: the same text twice'
    """
    header = " ".join(line.lstrip("# ") for line in text.partition("\nmodel:")[0].splitlines() if line[:1] == "#")
    return re.split(r"\.(?= |$)", header, maxsplit=1)[0]


def parent(text: str) -> str | None:
    """Returns the name of the recipe that the text of a variant overrides, or None.

    Example:
        >>> parent("# Over SimCSE.\\nrecipe: simcse\\n")
        'simcse'
    """
    match = re.search(r"^recipe: *([\w/]+)", text, flags=re.MULTILINE)
    return match and match[1]


def variants_of(name: str, parents: dict[str, str | None]) -> list[str]:
    """Returns the variants of a recipe, each followed by its own variants."""
    variants = [variant for variant, recipe in parents.items() if recipe == name]
    return [descendant for variant in variants for descendant in (variant, *variants_of(variant, parents))]
