"""A part as a recipe configures it, built in Python."""

from __future__ import annotations

from typing import TypeVar

from jsonargparse import ArgumentParser

from contrastive_text.core.misspelt import parsing
from contrastive_text.core.places import check_words
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import Config, merge, read_config, read_recipe

T = TypeVar("T")


def build_from_recipe(part: type[T], place: str, recipe: str, above: Config) -> T:
    """Builds a part of a run from a recipe, as the shell would.

    Args:
        part: Its class.
        place: Where its arguments stand in the recipe, such as ``model``.
        recipe: Name of a shipped recipe, or path of a YAML file.
        above: Arguments that override the recipe's.

    Raises:
        ValueError: No such recipe, or arguments that the class doesn't take.
    """
    config = merge([read_config(BASE), read_recipe(recipe), {place: above}])
    given = {place: config.get(place) or {}}
    check_words(given[place], part, place)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(part, place)
    with parsing(f"recipe {recipe}"):
        built: T = parser.instantiate(parser.parse_object(given))[place]
    return built
