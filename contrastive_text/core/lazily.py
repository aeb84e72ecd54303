"""Packages whose names are imported when they are first asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def importing(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Returns the ``__getattr__`` of a package.

    Args:
        package: Its ``__name__``.
        modules: Name that it exports -> module below it that has the name.

    Example:
        >>> importing("contrastive_text", {"NTXent": "losses"})("NTXent").__name__
        'NTXent'
    """

    def attribute(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module(f"{package}.{modules[name]}"), name)
        return value

    return attribute
