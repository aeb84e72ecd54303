"""YAML that others wrote: read within bounds, with line and column of what can't be read."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from jsonargparse import get_loader

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.storage.text_files import read_text

MOST_VALUES = 100_000
"""Values of a file with its aliases written out: nine lines can stand for a thousand million."""
MOST_LEVELS = 60
"""Lists and mappings within each other."""


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
