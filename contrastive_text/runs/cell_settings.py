"""Settings in which the cells of a sweep differ, and settings of recipes that shared options replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contrastive_text.core.config.specs import describe_spec
from contrastive_text.evaluation.results import in_columns
from contrastive_text.recipes.layers import Config

_METHOD = ("model.views", "model.guides", "data.task.pairing")
"""Keys that define a method. Cells are expected to differ in them."""
_OBJECTIVES = "model.objectives"
"""Key of the objectives. Only settings that all cells have, such as a temperature, can be compared."""
_START = "model.encoder.model_name_or_path"
"""Key of the start of training. A user always sets it, although recipes name the encoder of their paper."""
_LONGEST = 30
"""Largest number of letters of a value in the tables."""
_OURS = ("contrastive_text.", "pytorch_lightning.")


@dataclass(frozen=True, slots=True)
class Source:
    """Configuration of a cell, with the recipe that the shared options override.

    Args:
        config: Configuration of the cell's runs.
        recipe: Configuration of the recipe alone; None if the cell varies no recipe.
        named: Configuration keys that the recipe sets.
    """

    config: Config
    recipe: Config | None = None
    named: Sequence[str] = ()

    def own_values(self) -> dict[str, str]:
        """Returns the values of the keys that the recipe sets."""
        values = {} if self.recipe is None else flat_settings(self.recipe)
        return {key: value for key, value in values.items() if key in self.named}


def describe_settings(cells: Mapping[str, Source], varied: Sequence[str], names: Mapping[str, str]) -> str:
    """Describes the settings of a sweep's cells that could be taken for an effect of the method.

    The first table has the settings in which cells differ, besides views, guides and the pairing. The second
    table has the settings of recipes that the shared files and options replace.

    Args:
        cells: Name of a cell -> its source.
        varied: Keys that the grid varies, which the tables omit.
        names: Configuration key -> short name of its option.

    Returns:
        The tables as text; empty if there is nothing to say.

    Example:
        >>> def source(lr):
        ...     recipe = {"model": {"optimizer": {"lr": lr}}}
        ...     return Source({**recipe, "trainer": {"max_steps": 50}}, recipe, named=["model.optimizer.lr"])
        >>> print(describe_settings({"a": source(3e-5), "b": source(5e-7)}, [], {"model.optimizer.lr": "lr"}))
        Settings that differ between the cells, besides views (*: the recipe sets it):
        setting            |       a |       b | option that makes them equal
        -------------------+---------+---------+-----------------------------
        model.optimizer.lr | 3e-05 * | 5e-07 * |                   --lr 3e-05
    """
    flat = {name: flat_settings(source.config) for name, source in cells.items()}
    own = {name: source.own_values() for name, source in cells.items()}
    differing = [[*_row(key, flat, own), _option(key, flat, names)] for key in _differing(flat, varied)]
    replaced = {
        name: {key: value for key, value in values.items() if flat[name].get(key) != value}
        for name, values in own.items()
    }
    keys = dict.fromkeys(key for values in replaced.values() for key in values)
    rows = [
        [key, *(_shown(values.get(key)) for values in replaced.values()), _used(key, flat)]
        for key in keys
        if key != _START and not _is_under(key, varied)
    ]
    text = []
    if differing:
        text += ["Settings that differ between the cells, besides views (*: the recipe sets it):"]
        text += [in_columns([["setting", *cells, "option that makes them equal"], *differing])]
    if rows:
        text += ["Settings of recipes that the shared files and options replace:"]
        text += [in_columns([["setting", *cells, "in the sweep"], *rows])]
    return "\n".join(text)


def flat_settings(config: Any, key: str = "") -> dict[str, str]:  # Any: a place of a configuration holds anything
    """Returns the settings of a configuration by their keys, as options of ``fit`` name them.

    Example:
        >>> optimizer = {"class_path": "contrastive_text.training.AdamW", "init_args": {"lr": 3e-5}}
        >>> flat_settings({"model": {"optimizer": optimizer}, "data": {"batch_size": 64}})
        {'model.optimizer': 'AdamW', 'model.optimizer.lr': '3e-05', 'data.batch_size': '64'}
    """
    return dict(_settings(config, key))


def _settings(config: Any, key: str) -> Iterator[tuple[str, str]]:  # Any: as above
    if not isinstance(config, Mapping) or not config:
        yield key, _text(config)
        return
    values = config
    if "class_path" in config:
        path = str(config["class_path"])
        yield key, path.rpartition(".")[2] if path.startswith(_OURS) else path
        values = config.get("init_args") or {}
    for name, value in values.items():
        yield from _settings(value, f"{key}.{name}" if key else str(name))


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else describe_spec(value)


def _is_under(key: str, beginnings: Sequence[str]) -> bool:
    return any(f"{key}.".startswith(f"{beginning}.") for beginning in beginnings)


def _differing(flat: Mapping[str, Mapping[str, str]], varied: Sequence[str]) -> list[str]:
    """Returns the keys, apart from keys of the method and the grid, whose values differ between cells."""
    keys = [
        key
        for key in dict.fromkeys(key for values in flat.values() for key in values)
        if not _is_under(key, [_OBJECTIVES]) or all(key in values for values in flat.values())
    ]
    values_of = {key: {values.get(key) for values in flat.values()} for key in keys}
    return [key for key in keys if len(values_of[key]) > 1 and not _is_under(key, (*_METHOD, *varied))]


def _row(key: str, flat: Mapping[str, Mapping[str, str]], own: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Returns the key and its value in each cell, with an asterisk if the value is from the recipe."""
    values = {name: settings.get(key) for name, settings in flat.items()}
    stars = {name: " *" if key in own[name] and own[name][key] == value else "" for name, value in values.items()}
    return [key, *(f"{_shown(value)}{stars[name]}" for name, value in values.items())]


def _shown(value: str | None) -> str:
    return "-" if value is None else value if len(value) <= _LONGEST else f"{value[:_LONGEST]}..."


def _used(key: str, flat: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(dict.fromkeys(_shown(settings.get(key)) for settings in flat.values()))


def _option(key: str, flat: Mapping[str, Mapping[str, str]], names: Mapping[str, str]) -> str:
    """Returns the option that gives a key the first cell's value in all cells; empty without such an option."""
    value = next(iter(flat.values())).get(key)
    return "" if value is None or value.startswith("[") else f"--{names.get(key, key)} {value}"
