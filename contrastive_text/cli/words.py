"""Words of the shell before a parser reads them: recipes, trusted modules, and short spellings of options."""

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
"""Short spelling -> the key that it stands for. ``Run.from_recipe`` has some of them as arguments."""
RUN_COMMANDS = ("fit", "validate", "test", "predict", "views", "sweep")
"""Commands that have the short spellings: those that take any key of a run's configuration."""
_COLUMNS = re.compile(r"--([\w.]+[._])?columns")
_PAIR = re.compile(r"(?P<name>\w+)=(?P<column>.+)", flags=re.DOTALL)


def with_values(words: Sequence[str], *names: str) -> Iterator[tuple[str, str | None]]:
    """Yields each word with None, but options of some names with their value, joined by ``=`` or the next word.

    Example:
        >>> list(with_values(["a", "--b", "1", "--b=2", "--b"], "--b"))
        [('a', None), ('--b', '1'), ('--b', '2'), ('--b', '')]
    """
    rest = iter(words)
    for word in rest:
        name, joined, value = word.partition("=")
        yield (name, value if joined else next(rest, "")) if name in names else (word, None)


def option_value(words: Sequence[str], name: str) -> str | None:
    """Returns the last value of an option among the words, the one that parsers take; None if it isn't there."""
    return next(reversed(option_values(words, name)), None)


def option_values(words: Sequence[str], name: str) -> list[str]:
    """Returns all values of an option among the words, in their order.

    Example:
        >>> option_values(["--seeds", "1", "--seeds=2"], "--seeds")
        ['1', '2']
    """
    return [value for _, value in with_values(words, name) if value]


def expand_recipes(words: Sequence[str]) -> list[str]:
    """Puts ``--config FILE`` where ``--recipe NAME`` stands, so that what follows overrides it.

    Raises:
        ValueError: An unknown recipe, or none named.

    Example:
        >>> from pathlib import Path
        >>> [Path(word).name for word in expand_recipes(["fit", "--recipe", "simcse"])]
        ['fit', '--config', 'simcse.yaml']
    """
    each = with_values(words, "--recipe")
    pairs = ([word] if recipe is None else ["--config", str(recipe_file(recipe))] for word, recipe in each)
    return [word for pair in pairs for word in pair]


def take_trust(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the modules after ``--trust``, an empty one where none follows it, and the other words.

    Example:
        >>> take_trust(["--trust", "my_views", "--ckpt_path", "a.ckpt", "--trust=more"])
        (['my_views', 'more'], ['--ckpt_path', 'a.ckpt'])
    """
    end = words.index("--") if "--" in words else len(words)
    found = list(with_values(words[:end], "--trust"))
    trusted = [module for _, module in found if module is not None]
    return trusted, [*(word for word, module in found if module is None), *words[end:]]


def spelled_out(words: Sequence[str]) -> list[str]:
    """Returns the words with short spellings written out.

    After an option that ends in ``columns``, words of NAME=COLUMN become one mapping; a name that comes twice
    has a list of columns.

    Raises:
        ValueError: A key in both of its spellings.

    Example:
        >>> spelled_out(["--lr", "3e-5", "--epochs=1"])
        ['--model.optimizer.lr', '3e-5', '--trainer.max_epochs=1']
        >>> spelled_out(["--columns", "anchor=searched", "positive=clicked", "--lr", "3e-5"])
        ['--data.task.columns', '{"anchor": "searched", "positive": "clicked"}', '--model.optimizer.lr', '3e-5']
        >>> spelled_out(["--lr", "1e-5", "--model.optimizer.lr=3e-5"])
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: --lr: expected one spelling of ...
    """
    known = {f"--{long}": short for short, long in SHORT.items()}
    long = {known[word.partition("=")[0]] for word in words if word.partition("=")[0] in known}
    found: list[str] = []
    for word in _mapped(words):
        option = re.fullmatch(r"--(?P<name>\w+)(?P<value>=.*)?", word, flags=re.DOTALL)
        if option and (name := option["name"]) in SHORT:
            if name in long:
                raise InvalidValueError(
                    f"--{name}: expected one spelling of {SHORT[name]}, got both; drop --{name}, or the other"
                )
            word = f"--{SHORT[name]}{option['value'] or ''}"
        found.append(word)
    return found


def _mapped(words: Sequence[str]) -> list[str]:
    """Returns the words with those of NAME=COLUMN after an option of columns as one, in JSON."""
    found: list[str] = []
    rest = [*words]
    while rest:
        found.append(rest.pop(0))
        columns: dict[str, list[str]] = {}
        while _COLUMNS.fullmatch(found[-1]) and rest and (pair := _PAIR.fullmatch(rest[0])):
            columns.setdefault(pair["name"], []).append(pair["column"])
            del rest[0]
        if columns:
            found.append(
                json.dumps({name: each[0] if len(each) == 1 else each for name, each in columns.items()})
            )
    return found
