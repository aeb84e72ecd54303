"""A part as a recipe configures it, built in Python."""

from __future__ import annotations

from typing import TypeVar

from jsonargparse import ArgumentParser

from contrastive_text.core.config.misspelt import parsing
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import Config, merge, read_config

T = TypeVar("T")


def build_part(part: type[T], place: str, config: Config, recipe: str) -> T:
    """Builds a part of a run from a configuration, as the shell would.

    Args:
        part: Its class.
        place: Where its arguments are in the configuration, such as ``model``.
        config: The recipe with what overrides it.
        recipe: Name of the recipe, for errors.

    Raises:
        ValueError: Arguments that the class doesn't take.
    """
    given = {place: merge([read_config(BASE), config]).get(place) or {}}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(part, place)
    with parsing(f"recipe {recipe}"):
        built: T = parser.instantiate(parser.parse_object(given))[place]
    return built
