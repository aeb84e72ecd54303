"""Configurations as YAML: read within bounds, merged layer by layer, and built.

A later layer replaces lists and parts of another class as a whole, and merges what is left key by key; where it
names tasks, views, guides, objectives, weights, columns or labels, those that it names are all there are. Left to
itself jsonargparse keeps the arguments of the part that stood there before, wherever the new class has arguments
of the same name: a chain of views would inherit the rates of the recipe's.
"""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from jsonargparse import ArgumentParser, get_loader

from contrastive_text.core.config.misspelt import refuse_arguments
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.storage.text_files import read_text
from contrastive_text.recipes import BASE, recipe_file

Config: TypeAlias = dict[str, Any]  # Any: what YAML can hold
T = TypeVar("T")

VARIANTS = "variants"
"""Key of a file below which its variants stand by name, each with the options that it overrides."""
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
"""Dictionaries whose names the user chooses, and of which a later layer names all entries."""
UNBOUNDED: Mapping[str, int | None] = {"max_steps": -1, "max_epochs": None}
"""Bounds of a run's length among the trainer's options -> the value of no bound."""
METHOD = "pooler_is_method"
"""Key of a recipe whose method is its pooler: it replaces the pooler and the head of an embedding model."""
PLAIN = "of_plain_encoder"
"""Key under which ``read_layers`` puts a recipe's parts for a plain encoder; no file has it."""
POOLING = ("pooler", "inference", "head")
"""Arguments of the module between the network and the vector."""
MOST_VALUES = 100_000
"""Values of a file with its aliases written out: nine lines can stand for a thousand million."""
MOST_LEVELS = 60
"""Lists and mappings within each other."""


def split_variant(path: str | Path) -> tuple[Path, str]:
    """Splits the path of a recipe into that of its file and the name of the variant, which is empty for none.

    Example:
        >>> file, variant = split_variant(recipe_file("simcse/sup"))
        >>> file.name, variant
        ('simcse.yaml', 'sup')
    """
    path = Path(path)
    return (path.parent, path.name) if path.parent.is_file() else (path, "")


def is_shipped(path: str | Path) -> bool:
    """Returns whether a path is that of a shipped recipe.

    Example:
        >>> is_shipped(recipe_file("simcse")), is_shipped("mine.yaml")
        (True, False)
    """
    return split_variant(path)[0].resolve().parent == BASE.parent.resolve()


def read_config(path: str | Path) -> Config:
    """Reads a YAML file without its variants, or what one of them overrides.

    Args:
        path: The file; of a variant, the file and below it the variant's name: ``mine.yaml/large``.

    Raises:
        ValueError: There is no such file or variant, or it holds something else than names and values.
    """
    file, variant = split_variant(path)
    if not file.exists():
        raise InvalidValueError(f"--config: expected a YAML file, got {path}, which isn't there")
    content = _names_and_values(read_yaml(file, "--config"), str(file))
    variants = _names_and_values(content.pop(VARIANTS, None), f"{file}: {VARIANTS}")
    if not variant:
        return content
    if variant not in variants:
        known = ", ".join(variants) or "a file without variants"
        raise InvalidValueError(f"--config: {file}: expected a variant of {known}, got {variant!r}")
    return _names_and_values(variants[variant], f"{file}: {VARIANTS}.{variant}")


def _names_and_values(content: object, place: str) -> Config:
    if content is not None and not isinstance(content, Mapping):
        raise InvalidValueError(f"--config: expected names and values in {place}, got {type(content).__name__}")
    return dict(content or {})


def read_layers(path: str | Path, apart: bool = False) -> list[Config]:
    """Reads a YAML file with the recipes under it, the lowest first.

    Its line ``recipe``, if it has one, names a shipped recipe that it overrides, which may name one in its turn.
    A variant without that line overrides its file.

    Args:
        path: The file, or the path of a variant.
        apart: Whether a shipped recipe's parts for a plain encoder are put under ``PLAIN``, because a run that
            starts from an embedding model has that model's instead.

    Raises:
        ValueError: As ``read_config``; no such recipe.
    """
    own = read_config(path)
    below = own.pop("recipe", None)
    is_method = bool(own.pop(METHOD, False))
    if apart and is_shipped(path):
        own = _set_apart(own, is_method)
    file, variant = split_variant(path)
    if below is not None:
        file = recipe_file(str(below), f"--config: {path}: recipe")
    elif not variant:
        return [own]
    return [*read_layers(file, apart), own]


def _set_apart(recipe: Config, is_method: bool) -> Config:
    """Returns a recipe with its parts for a plain encoder under ``PLAIN``: pooler, head, training length."""
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
    """Reads a recipe with those under it.

    Args:
        recipe: Name of a shipped recipe, or path of a YAML file.

    Raises:
        ValueError: No such recipe, or no such file.

    Example:
        >>> read_recipe("simcse/unsup_roberta_base")["model"]["pooler"]  # of simcse.yaml
        'CLSPooler'
    """
    return merge(read_layers(layer_file(recipe)))


def layer_file(recipe: str | Path) -> Path:
    """Returns the path of a recipe: one of YAML, with or without a variant below it, or that of a shipped one."""
    path = Path(recipe)
    is_file = {path.suffix, path.parent.suffix} & {".yaml", ".yml"}
    return path if is_file else recipe_file(str(recipe))


def merge(layers: Sequence[Config]) -> Config:
    """Lays configurations over each other, the first lowest.

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
    """Removes a bound of the run's length that the next layer replaces by another one.

    A layer that gives ``max_steps`` alone ends the run there, whatever ``max_epochs`` a lower layer has, and the
    other way round. If it gives both, both are in force.

    Args:
        config: The layers below.
        trainer: Options of the trainer in the next layer.

    Example:
        >>> replace_bounds({"trainer": {"max_epochs": 1, "precision": 32}}, {"max_steps": 50})
        {'trainer': {'max_epochs': None, 'precision': 32}}
    """
    if not isinstance(trainer, Mapping) or all(trainer.get(name) in (None, -1) for name in UNBOUNDED):
        return config
    replaced = {name: value for name, value in UNBOUNDED.items() if name not in trainer}
    return {**config, "trainer": {**(config.get("trainer") or {}), **replaced}} if replaced else config


def option_over(config: Config, key: str, value: str) -> Config | None:
    """Lays an option over a configuration where the parser would not; None leaves it to the parser.

    The parser lets a part inherit from the one of another class, and knows no entry of a dictionary whose names
    the user chooses (``data.tasks.sst.train``) before the dictionary has it.

    Args:
        config: What the files say.
        key: The option's name, dotted, which may leave out ``init_args``.
        value: Its value as it was typed: a list, names and values, the class of a part, or in such an entry a
            word or a number; a view stands for a chain of one.

    Raises:
        ValueError: A list or names and values that are no YAML.

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
    there = value_at(config, key)
    if value.startswith(("[", "{")):
        return lay(config, key, parse_yaml(value, f"--{key}: {value}"))
    if isinstance(there, Mapping) and "class_path" in there:
        return lay(config, key, None if value == "null" else {"class_path": value})
    if not _opens_an_entry(config, key):
        return None
    word = None if value == "null" else value
    chain = word is not None and "views" in key.split(".")[:-1]
    return put(config, key, [word] if chain else word)


def lay(config: Config, key: str, value: object) -> Config:
    """Lays a value over a configuration, at a dotted name that may leave out ``init_args``.

    Example:
        >>> lay({"loss": {"class_path": "InfoNCE", "init_args": {"temperature": 0.1}}}, "loss.temperature", 0.2)
        {'loss': {'class_path': 'InfoNCE', 'init_args': {'temperature': 0.2}}}
    """
    return put(config, key, _over(value_at(config, key), value, alone=key.rpartition(".")[2] in _NAMED_ALONE))


def _opens_an_entry(config: Config, key: str) -> bool:
    """Whether a key leads through a dictionary of chosen names to a place that isn't there yet."""
    names = key.split(".")
    entries = [i for i, name in enumerate(names[:-1], start=1) if name in _NAMED_ALONE]
    if not entries:
        return False
    # The parser finds its way through parts, where it answers a misspelt name; not through a task, which is none.
    part = value_at(config, ".".join(names[: entries[0] + 1]))
    return not isinstance(part, Mapping) or "class_path" not in part


def value_at(config: Any, key: str) -> Any:  # Any: a place of a configuration holds anything
    """Returns the value at a dotted name that may leave out ``init_args``; None if there is none.

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
    """Returns a configuration with a value at a place; on its way to it, ``init_args`` may be left out."""
    name, _, rest = key.partition(".")
    if _init_args(config, name) is not config:
        return {**config, "init_args": put(dict(_init_args(config, name)), key, value)}
    if rest:
        below = config.get(name)
        if isinstance(below, str):
            below = {"class_path": below}
        value = put(dict(below) if isinstance(below, Mapping) else {}, rest, value)
    return {**config, name: value}


def _init_args(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns where a name stands: in a part's arguments, or in the configuration itself."""
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
    named = {name: _over(below.get(name), value, alone=name in _NAMED_ALONE) for name, value in above.items()}
    return named if alone else {**below, **named}


def _same_class(one: object, other: object) -> bool:
    """Whether two class paths name one class; ours may be written short, or by any of its packages."""
    if not isinstance(one, str) or not isinstance(other, str):
        return False
    ours = all("." not in path or path.startswith("contrastive_text.") for path in (one, other))
    return one == other or (ours and one.rpartition(".")[2] == other.rpartition(".")[2])


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
    try:
        built: T = parser.instantiate(parser.parse_object(given))[place]
    except (ArgumentError, ValueError) as error:
        refuse_arguments(error, f"recipe {recipe}")
    return built


def read_yaml(path: Path, where: str) -> Any:
    """Reads a YAML file; see ``parse_yaml``. Any: what YAML can hold."""
    return parse_yaml(read_text(path), f"{where}: {path}")


def parse_yaml(text: str, where: str) -> Any:
    """Returns what a YAML text holds, in which no name stands twice. Any: what YAML can hold.

    Args:
        text: The text.
        where: What errors begin with.

    Raises:
        ValueError: No YAML, a name that stands twice, or more values or levels than the bounds above.

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
    except Exception as error:  # whatever the parser raises, for a character or a number that it can't take
        if not is_failure(error):
            raise
        raise InvalidValueError(f"{where}: expected YAML, got: {' '.join(str(error).split())}") from error


@lru_cache(maxsize=32)  # the marks that it has for its errors take ten times the reading
def _check(text: str, where: str) -> None:
    """Checks the names and the bounds of a YAML text."""
    level = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _refusal(where, event.start_mark, f"at most {MOST_LEVELS} levels", "more")
    node = yaml.compose(text, yaml.SafeLoader)
    if node is not None and _values(node, where, {}) > MOST_VALUES:
        got = "more, with its aliases written out"
        raise _refusal(where, node.start_mark, f"at most {MOST_VALUES:,} values", got)


def _values(node: yaml.Node, where: str, known: dict[int, int | None]) -> int:
    """Counts the values of a node, each alias anew; every node is counted once."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in known:
        counted = known[id(node)]
        if counted is None:
            raise _refusal(where, node.start_mark, "values that end", "an alias within what it stands for")
        return counted
    known[id(node)] = None
    below = [each for pair in node.value for each in pair] if isinstance(node, yaml.MappingNode) else node.value
    if isinstance(node, yaml.MappingNode):
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in names:
                raise _refusal(where, key.start_mark, "every name once", f"{key.value} twice")
            names.add(name)
    known[id(node)] = count = 1 + sum(_values(each, where, known) for each in below)
    return count


def _refusal(where: str, mark: yaml.Mark | None, expected: str, got: str) -> InvalidValueError:
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return InvalidValueError(f"{where}{place}: expected {expected}, got {got}; look there")
