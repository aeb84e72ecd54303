"""Options that are picked out of the words of the shell before a parser reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contrastive_text.recipes import recipe_file


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
