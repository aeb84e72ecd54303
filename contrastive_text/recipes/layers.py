"""Configurations in YAML: reads files within size limits, merges them layer by layer, and builds parts from them.

A later layer replaces whole lists, parts of another class, and the tasks, views, guides, objectives, weights,
columns and labels. All other values are merged key by key. Without these rules, jsonargparse keeps the arguments
of a replaced part if the new class has arguments of the same name: a chain of views would inherit the rates of
the recipe's chain.
"""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from jsonargparse import ArgumentParser, get_loader

from contrastive_text.core.config.suggestions import refuse_arguments
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_read_error
from contrastive_text.core.storage.text_files import read_text
from contrastive_text.recipes import BASE, recipe_file

Config: TypeAlias = dict[str, Any]  # Any: what YAML can hold
T = TypeVar("T")

VARIANTS = "variants"
"""Key of a recipe file with its variants: name -> options that the variant overrides."""
_NAMED_ALONE = frozenset(
    {
        "tasks",
        "views",
        "guides",
        "objectives",
        "weights",
        "columns",
        "eval_columns",
        "labels",
    }
)
"""Keys of dictionaries with names of the user's choice, which a later layer replaces as a whole."""
UNBOUNDED: Mapping[str, int | None] = {"max_steps": -1, "max_epochs": None}
"""Trainer option that limits the length of a run -> value for no limit."""
METHOD = "pooler_is_method"
"""Key of a recipe whose pooler is part of the method and replaces the pooler and head of an embedding model."""
PLAIN = "of_plain_encoder"
"""Key under which ``read_layers`` returns a recipe's parts for a plain encoder. Files don't contain it."""
POOLING = ("pooler", "inference", "head")
"""Arguments of the module that are applied after the network: pooler, inference pooler and head."""
MOST_VALUES = 100_000
"""Largest number of values in a YAML file, aliases expanded: nine lines of aliases can expand to a billion."""
MOST_LEVELS = 60
"""Largest depth of nested lists and mappings in a YAML file."""


def split_variant(path: str | Path) -> tuple[Path, str]:
    """Splits the path of a recipe into the path of its file and the name of its variant; empty without a variant.

    Example:
        >>> file, variant = split_variant(recipe_file("simcse/sup"))
        >>> file.name, variant
        ('simcse.yaml', 'sup')
    """
    path = Path(path)
    return (path.parent, path.name) if path.parent.is_file() else (path, "")


def is_shipped(path: str | Path) -> bool:
    """Returns whether a path is the path of a recipe of this package.

    Example:
        >>> is_shipped(recipe_file("simcse")), is_shipped("mine.yaml")
        (True, False)
    """
    return split_variant(path)[0].resolve().parent == BASE.parent.resolve()


def read_config(path: str | Path) -> Config:
    """Reads the options of a YAML file without its variants, or the options that a variant overrides.

    Args:
        path: Path of the file, or of a variant in it: ``mine.yaml/large``.

    Raises:
        ValueError: There is no such file or variant, or its content isn't a mapping.
    """
    file, variant = split_variant(path)
    if not file.exists():
        raise InvalidValueError(f"--config: expected a YAML file, got {path}, which doesn't exist")
    content = _names_and_values(read_yaml(file, "--config"), str(file))
    variants = _names_and_values(content.pop(VARIANTS, None), f"{file}: {VARIANTS}")
    if not variant:
        return content
    if variant not in variants:
        names = ", ".join(variants) or "none: the file has no variants"
        raise InvalidValueError(f"--config: {file}: expected a variant ({names}), got {variant!r}")
    return _names_and_values(variants[variant], f"{file}: {VARIANTS}.{variant}")


def _names_and_values(content: object, place: str) -> Config:
    if content is not None and not isinstance(content, Mapping):
        raise InvalidValueError(f"--config: expected names and values in {place}, got {type(content).__name__}")
    return dict(content or {})


def read_layers(path: str | Path, apart: bool = False) -> list[Config]:
    """Reads a YAML file and the recipes that it overrides, the overridden recipes first.

    The key ``recipe`` of a file names a recipe of this package that the file overrides; this recipe may override
    another one. A variant without this key overrides its file.

    Args:
        path: Path of the file, or of a variant.
        apart: Whether to move a recipe's parts for a plain encoder under ``PLAIN``, because a run that starts
            from an embedding model uses the model's own parts.

    Raises:
        ValueError: See ``read_config``; or there is no such recipe.
    """
    layer = read_config(path)
    base_name = layer.pop("recipe", None)
    is_method = bool(layer.pop(METHOD, False))
    if apart and is_shipped(path):
        layer = _set_apart(layer, is_method)
    file, variant = split_variant(path)
    if base_name is not None:
        file = recipe_file(str(base_name), f"--config: {path}: recipe")
    elif not variant:
        return [layer]
    return [*read_layers(file, apart), layer]


def _set_apart(recipe: Config, is_method: bool) -> Config:
    """Moves a recipe's parts for a plain encoder (pooler, head, length limit of training) under ``PLAIN``."""
    model = dict(recipe.get("model") or {})
    pooling = {name: model[name] for name in POOLING if name in model}
    plain: Config = {} if is_method else {name: model.pop(name) for name in pooling}
    encoder = model.get("encoder") or {}
    length = (encoder.get("init_args") or {}).get("max_length")
    if length is not None:
        arguments = {name: value for name, value in encoder["init_args"].items() if name != "max_length"}
        model["encoder"] = {**encoder, "init_args": arguments}
        plain["encoder"] = {**encoder, "init_args": {"max_length": length}}
    method = pooling if is_method else {}
    return {**recipe, "model": model, PLAIN: {"model": plain, "method": method}} if plain or method else recipe


def read_recipe(recipe: str | Path) -> Config:
    """Reads a recipe, merged over the recipes that it overrides.

    Args:
        recipe: Name of a recipe of this package, or path of a YAML file.

    Raises:
        ValueError: There is no such recipe or file.

    Example:
        >>> read_recipe("simcse/unsup_roberta_base")["model"]["pooler"]  # of simcse.yaml
        'CLSPooler'
    """
    return merge(read_layers(layer_file(recipe)))


def layer_file(recipe: str | Path) -> Path:
    """Returns the path of a recipe from its name, or the path of a YAML file (or variant) unchanged."""
    return Path(recipe) if names_file(recipe) else recipe_file(str(recipe))


def names_file(recipe: str | Path) -> bool:
    """Returns whether a text is the path of a YAML file or of its variant, and not the name of a recipe.

    Example:
        >>> names_file("mine.yaml"), names_file("mine.yaml/large"), names_file("simcse/sup")
        (True, True, False)
    """
    path = Path(recipe)
    return bool({path.suffix, path.parent.suffix} & {".yaml", ".yml"})


def merge(layers: Sequence[Config]) -> Config:
    """Merges configurations, of which later ones override earlier ones.

    Example:
        >>> merge([{"a": {"class_path": "X", "init_args": {"rate": 1}}}, {"a": {"class_path": "Y"}}])
        {'a': {'class_path': 'Y'}}
        >>> merge([{"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}}])
        {'a': {'b': 1, 'c': [3]}}
        >>> merge([{"views": {"anchor": [1]}}, {"views": {"positive": [2]}}])
        {'views': {'positive': [2]}}
        >>> merge([{"trainer": {"max_steps": 5}}, {"trainer": {"max_epochs": 2}}])
        {'trainer': {'max_epochs': 2, 'max_steps': -1}}
    """
    merged: Config = {}
    for layer in layers:
        merged = _over(replace_bounds(merged, layer.get("trainer")), layer)
    return merged


def replace_bounds(config: Config, trainer: object) -> Config:
    """Removes a limit on the run's length that the next layer replaces by the other limit.

    A layer with ``max_steps`` alone removes ``max_epochs`` of lower layers, and vice versa. If a layer has both
    options, both apply.

    Args:
        config: Merged lower layers.
        trainer: Trainer options of the next layer.

    Example:
        >>> replace_bounds({"trainer": {"max_epochs": 1, "precision": 32}}, {"max_steps": 50})
        {'trainer': {'max_epochs': None, 'precision': 32}}
    """
    if not isinstance(trainer, Mapping) or all(trainer.get(name) in (None, -1) for name in UNBOUNDED):
        return config
    replaced = {name: value for name, value in UNBOUNDED.items() if name not in trainer}
    return {**config, "trainer": {**(config.get("trainer") or {}), **replaced}} if replaced else config


def option_over(config: Config, key: str, value: str) -> Config | None:
    """Merges an option over a configuration if the parser can't do it; returns None if the parser can.

    The parser would keep arguments of a replaced part of another class. It also refuses a new entry in a
    dictionary with names of the user's choice, such as ``data.tasks.sst.train``.

    Args:
        config: Configuration from the files.
        key: Dotted name of the option, with or without ``init_args``.
        value: Text of the value: a list, a mapping, the class of a part, or in a new entry a word or a number. A
            single view becomes a chain.

    Raises:
        ValueError: A list or mapping isn't valid YAML.

    Example:
        >>> config = {"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.1}}}
        >>> option_over(config, "loss", "NTXent")
        {'loss': {'class_path': 'NTXent'}}
        >>> option_over(config, "loss", "null")
        {'loss': None}
        >>> option_over(config, "loss.temperature", "0.2") is None
        True
        >>> option_over({}, "data.tasks.sst.train", "sst.tsv")
        {'data': {'tasks': {'sst': {'train': 'sst.tsv'}}}}
    """
    current = value_at(config, key)
    if value.startswith(("[", "{")):
        return lay(config, key, parse_yaml(value, f"--{key}: {value}"))
    if isinstance(current, Mapping) and "class_path" in current:
        return lay(config, key, None if value == "null" else {"class_path": value})
    if not _opens_an_entry(config, key):
        return None
    word = None if value == "null" else value
    chain = word is not None and "views" in key.split(".")[:-1]
    return put(config, key, [word] if chain else word)


def lay(config: Config, key: str, value: object) -> Config:
    """Merges a value over a configuration at a dotted key, with or without ``init_args``.

    Example:
        >>> lay({"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.1}}}, "loss.temperature", 0.2)
        {'loss': {'class_path': 'InfoNCE', 'init_args': {'temperature': 0.2}}}
    """
    return put(config, key, _over(value_at(config, key), value, alone=key.rpartition(".")[2] in _NAMED_ALONE))


def _opens_an_entry(config: Config, key: str) -> bool:
    """Returns whether a key is in a new entry of a dictionary with names of the user's choice."""
    names = key.split(".")
    entries = [i for i, name in enumerate(names[:-1], start=1) if name in _NAMED_ALONE]
    if not entries:
        return False
    # The parser handles keys inside parts, and reports misspelt ones. A task isn't a part.
    part = value_at(config, ".".join(names[: entries[0] + 1]))
    return not isinstance(part, Mapping) or "class_path" not in part


def value_at(config: Any, key: str) -> Any:  # Any: a place of a configuration holds anything
    """Returns the value at a dotted key, with or without ``init_args``; None if there is no value.

    Example:
        >>> value_at({"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.1}}}, "loss.temperature")
        0.1
    """
    for name in key.split("."):
        if not isinstance(config, Mapping):
            return None
        config = _init_args(config, name).get(name)
    return config


def put(config: Config, key: str, value: object) -> Config:
    """Returns a configuration with a value set at a dotted key, with or without ``init_args``."""
    name, _, rest = key.partition(".")
    if _init_args(config, name) is not config:
        return {**config, "init_args": put(dict(_init_args(config, name)), key, value)}
    if rest:
        child = config.get(name)
        if isinstance(child, str):
            child = {"class_path": child}
        value = put(dict(child) if isinstance(child, Mapping) else {}, rest, value)
    return {**config, name: value}


def _init_args(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the part of a configuration that has a key: ``init_args`` of a class, or the mapping itself."""
    if "class_path" not in config or name in ("class_path", "init_args"):
        return config
    return config.get("init_args") or {}


def _over(below: Any, above: Any, alone: bool = False) -> Any:  # Any: a place of a configuration holds anything
    if isinstance(above, str) and isinstance(below, Mapping) and _same_class(below.get("class_path"), above):
        return below
    if isinstance(below, str) and isinstance(above, Mapping) and "class_path" in above:
        below = {"class_path": below}
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    if "class_path" in above and not _same_class(below.get("class_path"), above["class_path"]):
        return above
    values = {name: _over(below.get(name), value, alone=name in _NAMED_ALONE) for name, value in above.items()}
    return values if alone else {**below, **values}


def _same_class(one: object, other: object) -> bool:
    """Returns whether two class paths name the same class. Paths of this library may be short."""
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    ours = all("." not in path or path.startswith("contrastive_text.") for path in (one, other))
    return one == other or (ours and one.rpartition(".")[2] == other.rpartition(".")[2])


def build_part(part: type[T], place: str, config: Config, recipe: str) -> T:
    """Builds an object from a configuration, as the command line does.

    Args:
        part: Class of the object.
        place: Key of the object's arguments in the configuration, such as ``model``.
        config: The merged recipe.
        recipe: Name of the recipe, for errors.

    Raises:
        ValueError: The class doesn't accept the arguments.
    """
    arguments = {place: merge([read_config(BASE), config]).get(place) or {}}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(part, place)
    try:
        built: T = parser.instantiate(parser.parse_object(arguments))[place]
    except (ArgumentError, ValueError) as error:
        refuse_arguments(error, f"recipe {recipe}")
    return built


def read_yaml(path: Path, where: str) -> Any:
    """Reads a YAML file; see ``parse_yaml``. Any: what YAML can hold."""
    return parse_yaml(read_text(path), f"{where}: {path}")


def parse_yaml(text: str, where: str) -> Any:
    """Parses a YAML text in which no name occurs twice. Any: what YAML can hold.

    Args:
        text: The text.
        where: Beginning of error messages.

    Raises:
        ValueError: The text isn't YAML, a name occurs twice, or there are more values or levels than the limits.

    Example:
        >>> parse_yaml("a: {b: [1, 2]}", "mine.yaml")
        {'a': {'b': [1, 2]}}
    """
    try:
        _check(text, where)
        return get_loader("yaml")(text)
    except InvalidValueError:
        raise
    except yaml.MarkedYAMLError as error:
        got = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise _refusal(where, error.problem_mark or error.context_mark, "YAML", got) from error
    except Exception as error:  # the parser raises many kinds of errors, for example for an invalid character
        if not is_read_error(error):
            raise
        raise InvalidValueError(f"{where}: expected YAML, got: {' '.join(str(error).split())}") from error


@lru_cache(maxsize=32)  # ten times as slow as reading, because it keeps positions for errors
def _check(text: str, where: str) -> None:
    """Checks a YAML text for repeated names, and for too many values or levels."""
    level = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _refusal(where, event.start_mark, f"at most {MOST_LEVELS} levels", "more")
    node = yaml.compose(text, yaml.SafeLoader)
    if node is not None and _values(node, where, {}) > MOST_VALUES:
        got = "more, with aliases expanded"
        raise _refusal(where, node.start_mark, f"at most {MOST_VALUES:,} values", got)


def _values(node: yaml.Node, where: str, counts: dict[int, int | None]) -> int:
    """Counts the values of a YAML node with its aliases expanded; each node's count is computed once."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in counts:
        earlier_count = counts[id(node)]
        if earlier_count is None:
            raise _refusal(where, node.start_mark, "values that end", "an alias inside its own anchor")
        return earlier_count
    counts[id(node)] = None
    children = (
        [child for pair in node.value for child in pair] if isinstance(node, yaml.MappingNode) else node.value
    )
    if isinstance(node, yaml.MappingNode):
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in names:
                raise _refusal(where, key.start_mark, "every name once", f"{key.value} twice")
            names.add(name)
    counts[id(node)] = count = 1 + sum(_values(child, where, counts) for child in children)
    return count


def _refusal(where: str, mark: yaml.Mark | None, expected: str, got: str) -> InvalidValueError:
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return InvalidValueError(f"{where}{place}: expected {expected}, got {got}; look there")
