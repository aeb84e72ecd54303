"""Parts as people type them: ``Class``, or ``Class(rate=0.3, mark=word)``."""

from __future__ import annotations

import ast
from typing import Any

from contrastive_text.core.errors import InvalidValueError

_QUOTE = "a text that is no single word, such as a path or a name with a dash, stands in quotes: 'encoder/'"


def typed_part(typed: str, where: str) -> dict[str, Any]:
    """Returns a part as a configuration names it.

    Args:
        typed: A class by its name or path, with arguments by name where it takes any. A word needs no quotes,
            a path or a name with a dash does.
        where: What errors begin with.

    Returns:
        ``class_path``, and ``init_args`` where there are brackets; Any: what YAML can hold.

    Raises:
        ValueError: Something else, or an argument without its name.

    Example:
        >>> typed_part("FirstLastPooler(first=block_1)", "--pooler")
        {'class_path': 'FirstLastPooler', 'init_args': {'first': 'block_1'}}
    """
    return part_of(expression(typed, where, "expected a part such as Class or Class(rate=0.3)"), where)


def typed_value(typed: str, where: str) -> Any:  # Any: what YAML can hold
    """Returns a plain value, a part, or a list of them.

    Raises:
        ValueError: Something else, or an argument without its name.

    Example:
        >>> typed_value("[DeleteTokens(rate=0.3), ReorderSpans]", "--vary")
        [{'class_path': 'DeleteTokens', 'init_args': {'rate': 0.3}}, 'ReorderSpans']
    """
    return _argument(
        expression(typed, where, "expected a value, a part such as Class(rate=0.3), or a list"), where
    )


def expression(typed: str, where: str, expected: str) -> ast.expr:
    """Returns what was typed as an expression, which is read and never run (ValueError where it is none)."""
    try:
        return ast.parse(typed, mode="eval").body
    except (SyntaxError, ValueError) as error:  # the latter of a NUL byte
        quote = f"; {_QUOTE}" if "(" in typed else ""
        raise InvalidValueError(f"{where}: {expected}, got {typed!r}{quote}") from error


def part_of(node: ast.expr, where: str) -> dict[str, Any]:
    """Returns the part that an expression calls for; as ``typed_part``."""
    called = node.func if isinstance(node, ast.Call) else node
    if not isinstance(called, ast.Name | ast.Attribute):
        raise InvalidValueError(
            f"{where}: expected a part such as Class or Class(rate=0.3), got {ast.unparse(node)!r}"
        )
    spec: dict[str, Any] = {"class_path": ast.unparse(called)}
    if not isinstance(node, ast.Call):
        return spec
    arguments = {keyword.arg: keyword.value for keyword in node.keywords}
    if node.args or None in arguments:
        raise InvalidValueError(f"{where}: expected arguments with their names, got {ast.unparse(node)!r}")
    return spec | {"init_args": {str(name): _argument(value, where) for name, value in arguments.items()}}


def _argument(node: ast.expr, where: str) -> Any:  # Any: what YAML can hold
    if isinstance(node, ast.Call):
        return part_of(node, where)
    if isinstance(node, ast.Name):
        return node.id  # a word without quotes, as in YAML
    if isinstance(node, ast.List | ast.Tuple):
        return [_argument(item, where) for item in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        got = ast.unparse(node)
        raise InvalidValueError(f"{where}: expected a plain value or a part, got {got!r}; {_QUOTE}") from error
