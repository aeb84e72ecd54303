"""Configurations laid over each other: recipe, files, single lists.

A later layer replaces lists and parts of another class as a whole, and merges what is left key by key; where it
names views, objectives, weights or columns, those that it names are all there are. Left to itself jsonargparse
keeps the arguments of the part that stood there before, wherever the new class has arguments of the same name: a
chain of views would inherit the rates of the recipe's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jsonargparse import get_loader

Config: TypeAlias = dict[str, Any]  # Any: what YAML can hold

_NAMED_ALONE = frozenset({"views", "objectives", "weights", "columns", "eval_columns"})
"""Dictionaries of which a later layer names all entries."""


def read_config(path: str | Path) -> Config:
    """Reads a YAML file.

    Raises:
        ValueError: There is no such file, or it holds something else than names and values.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"--config: expected a YAML file, got {path}, which isn't there")
    try:
        content = get_loader("yaml")(file.read_text(encoding="utf-8"))
    except Exception as error:  # whatever the YAML parser raises
        raise ValueError(f"--config: expected YAML in {path}, got: {error}") from error
    if content is not None and not isinstance(content, Mapping):
        raise ValueError(f"--config: expected names and values in {path}, got {type(content).__name__}")
    return dict(content or {})


def merge(layers: Sequence[Config]) -> Config:
    """Lays configurations over each other, the first lowest.

    Example:
        >>> merge([{"a": {"class_path": "X", "init_args": {"rate": 1}}}, {"a": {"class_path": "Y"}}])
        {'a': {'class_path': 'Y'}}
        >>> merge([{"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}}])
        {'a': {'b': 1, 'c': [3]}}
        >>> merge([{"views": {"anchor": [1]}}, {"views": {"positive": [2]}}])
        {'views': {'positive': [2]}}
    """
    merged: Config = {}
    for layer in layers:
        merged = _over(merged, layer)
    return merged


def put(config: Config, key: str, value: object) -> Config:
    """Gives the configuration with a value at a dotted key, which may leave out ``init_args``.

    Example:
        >>> put({"a": {"class_path": "X", "init_args": {"b": 1}}}, "a.b", [2])
        {'a': {'class_path': 'X', 'init_args': {'b': [2]}}}
    """
    name, _, rest = key.partition(".")
    if _class_of(config) is not None and name not in ("class_path", "init_args"):
        return {**config, "init_args": put(dict(config.get("init_args") or {}), key, value)}
    below = config.get(name)
    return {
        **config,
        name: put(dict(below) if isinstance(below, Mapping) else {}, rest, value) if rest else value,
    }


def _over(below: Any, above: Any, alone: bool = False) -> Any:  # Any: a place of a configuration holds anything
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    other = _class_of(above)
    if other is not None and other != _class_of(below):
        return above
    named = {name: _over(below.get(name), value, alone=name in _NAMED_ALONE) for name, value in above.items()}
    return named if alone else {**below, **named}


def _class_of(value: Mapping[str, Any]) -> str | None:
    """Gives the last part of a part's class path: ours may be written short or long."""
    path = value.get("class_path")
    return path.rpartition(".")[2] if isinstance(path, str) else None
