"""Expands words of the shell before they are parsed: recipes, trusted modules, short names of options."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes import recipe_file

SHORT = {
    "encoder": "model.encoder.model_name_or_path",
    "train": "data.train",
    "columns": "data.task.columns",
    "validation": "data.validation",
    "batch_size": "data.batch_size",
    "lr": "model.optimizer.lr",
    "epochs": "trainer.max_epochs",
}
"""Short option -> configuration key, such as ``lr`` -> ``model.optimizer.lr``.

``Run.from_recipe`` has some of the short names as arguments.
"""
RUN_COMMANDS = ("fit", "validate", "test", "predict", "views", "sweep")
"""Commands that accept any key of a run's configuration, and the short options."""
_COLUMNS = re.compile(r"--([\w.]+[._])?columns")
_PAIR = re.compile(r"(?P<name>\w+)=(?P<column>.+)", flags=re.DOTALL)


def with_values(words: Sequence[str], *names: str) -> Iterator[tuple[str, str | None]]:
    """Yields each word of the shell with None, and each option of the given names with its value.

    A value follows its option as the next word or after ``=``.

    Example:
        >>> list(with_values(["a", "--b", "1", "--b=2", "--b"], "--b"))
        [('a', None), ('--b', '1'), ('--b', '2'), ('--b', '')]
    """
    rest = iter(words)
    for word in rest:
        name, joined, value = word.partition("=")
        yield (name, value if joined else next(rest, "")) if name in names else (word, None)


def option_value(words: Sequence[str], name: str) -> str | None:
    """Returns the last value of an option, which overrides earlier ones, or None if the option is absent."""
    return next(reversed(option_values(words, name)), None)


def option_values(words: Sequence[str], name: str) -> list[str]:
    """Returns all values of an option among the words of the shell, in their order.

    Example:
        >>> option_values(["--seeds", "1", "--seeds=2"], "--seeds")
        ['1', '2']
    """
    return [value for _, value in with_values(words, name) if value]


def expand_recipes(words: Sequence[str]) -> list[str]:
    """Replaces ``--recipe NAME`` by ``--config FILE`` at the same position; later files override it.

    Raises:
        ValueError: An unknown recipe, or no name after ``--recipe``.

    Example:
        >>> from pathlib import Path
        >>> [Path(word).name for word in expand_recipes(["fit", "--recipe", "simcse"])]
        ['fit', '--config', 'simcse.yaml']
    """
    options = (
        [word] if recipe is None else ["--config", str(recipe_file(recipe))]
        for word, recipe in with_values(words, "--recipe")
    )
    return [word for option in options for word in option]


def take_trust(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits the words of the shell into the modules after ``--trust`` and all other words.

    A ``--trust`` at the end, without a module, gives an empty name.

    Example:
        >>> take_trust(["--trust", "my_views", "--ckpt_path", "a.ckpt", "--trust=more"])
        (['my_views', 'more'], ['--ckpt_path', 'a.ckpt'])
    """
    end = words.index("--") if "--" in words else len(words)
    pairs = list(with_values(words[:end], "--trust"))
    trusted = [module for _, module in pairs if module is not None]
    return trusted, [*(word for word, module in pairs if module is None), *words[end:]]


def expand_short_options(words: Sequence[str]) -> list[str]:
    """Replaces short options by their keys.

    Words NAME=COLUMN after an option that ends in ``columns`` become one mapping. A repeated name gets a list of
    columns.

    Raises:
        ValueError: An option is given by its short name and by its key.

    Example:
        >>> expand_short_options(["--lr", "3e-5", "--epochs=1"])
        ['--model.optimizer.lr', '3e-5', '--trainer.max_epochs=1']
        >>> expand_short_options(["--columns", "anchor=searched", "positive=clicked", "--lr", "3e-5"])
        ['--data.task.columns', '{"anchor": "searched", "positive": "clicked"}', '--model.optimizer.lr', '3e-5']
        >>> expand_short_options(["--lr", "1e-5", "--model.optimizer.lr=3e-5"])
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: --lr: expected one spelling of ...
    """
    short_names = {f"--{key}": short for short, key in SHORT.items()}
    options = (word.partition("=")[0] for word in words)
    spelled_by_key = {short_names[option] for option in options if option in short_names}
    expanded: list[str] = []
    for word in _join_columns(words):
        option = re.fullmatch(r"--(?P<name>\w+)(?P<value>=.*)?", word, flags=re.DOTALL)
        if option and (name := option["name"]) in SHORT:
            if name in spelled_by_key:
                raise InvalidValueError(
                    f"--{name}: expected one spelling of {SHORT[name]}, got both; drop --{name}, or the other"
                )
            word = f"--{SHORT[name]}{option['value'] or ''}"
        expanded.append(word)
    return expanded


def _join_columns(words: Sequence[str]) -> list[str]:
    """Joins the words NAME=COLUMN after an option of columns into one word, in JSON."""
    joined: list[str] = []
    rest = [*words]
    while rest:
        joined.append(rest.pop(0))
        columns: dict[str, list[str]] = {}
        while _COLUMNS.fullmatch(joined[-1]) and rest and (pair := _PAIR.fullmatch(rest[0])):
            columns.setdefault(pair["name"], []).append(pair["column"])
            del rest[0]
        if columns:
            single_or_list = {name: values[0] if len(values) == 1 else values for name, values in columns.items()}
            joined.append(json.dumps(single_or_list))
    return joined
