"""Packages whose names are imported when they are first asked for."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path


def importing(package: str) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package, which imports a name from where type checkers find it.

    So ``if TYPE_CHECKING`` in the package's file is the one list of its names and their modules.

    Args:
        package: Its ``__name__``.

    Example:
        >>> importing("contrastive_text")("NTXent").__name__
        'NTXent'
    """

    def attribute(name: str) -> object:
        modules = _modules(package)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(modules[name]), name)
        vars(sys.modules[package])[name] = value  # so that it is asked for once
        return value

    return attribute


@cache
def _modules(package: str) -> dict[str, str]:
    """Returns the module of each name that a package's file imports under a condition."""
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    blocks = [statement.body for statement in tree.body if isinstance(statement, ast.If)]
    found = [statement for block in blocks for statement in block if isinstance(statement, ast.ImportFrom)]
    return {alias.name: str(statement.module) for statement in found for alias in statement.names}
