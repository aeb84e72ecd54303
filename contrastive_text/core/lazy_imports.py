"""Lazy imports: names of a package that are imported on first access."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path


def lazy_getattr(package: str) -> Callable[[str], object]:
    """Returns a ``__getattr__`` for a package that imports each name on first access.

    The imports under ``if TYPE_CHECKING`` in the package's file are the only list of its names and their modules.

    Args:
        package: ``__name__`` of the package.

    Example:
        >>> lazy_getattr("contrastive_text")("NTXent").__name__
        'NTXent'
    """

    def attribute(name: str) -> object:
        modules = _modules(package)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(modules[name]), name)
        vars(sys.modules[package])[name] = value  # __getattr__ isn't called for this name again
        return value

    return attribute


@cache
def _modules(package: str) -> dict[str, str]:
    """Returns name -> module of the imports under an ``if`` in a package's file."""
    tree = ast.parse(Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8"))
    blocks = [statement.body for statement in tree.body if isinstance(statement, ast.If)]
    imports = [statement for block in blocks for statement in block if isinstance(statement, ast.ImportFrom)]
    return {alias.name: str(statement.module) for statement in imports for alias in statement.names}
