"""A part as a recipe configures it, built in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser

from contrastive_text.core.places import check_words
from contrastive_text.recipes import recipe_files
from contrastive_text.recipes.layers import Config, merge, read_config

T = TypeVar("T")
_PLACES = (
    "seed_everything",
    "trainer",
    "model",
    "data",
    "checkpoint",
    "export",
    "ckpt_path",
    "init_from",
    "weights_only",
    "chunk",
    "oversubscribe",
)


def build_from_recipe(part: type[T], place: str, recipe: str, above: Config) -> T:
    """Builds a part of a run from a recipe, as the shell would.

    Args:
        part: Its class.
        place: Where its arguments stand in the recipe, such as ``model``.
        recipe: Name of a shipped recipe, or path of a YAML file.
        above: A configuration to lay over the recipe.

    Raises:
        ValueError: No such recipe, or arguments that the class doesn't take.
    """
    files = [Path(recipe)] if Path(recipe).suffix in (".yaml", ".yml") else recipe_files(recipe)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(part, place)
    for other in _PLACES:
        if other != place:
            parser.add_argument(f"--{other}", type=Any)
    config = merge([*(read_config(file) for file in files), above])
    check_words(config.get(place) or {}, part, place)
    built: T = parser.instantiate(parser.parse_object(config))[place]
    return built
