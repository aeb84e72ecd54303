"""Public parts of a kind, and properties that parts of every kind share; for tests/conformance."""

from __future__ import annotations

import importlib
import inspect
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from contrastive_text.core.config.specs import to_plain

Refused = tuple[Callable[[], object], type[Exception], list[str]]
"""A call, the class of its error, and words of the message: the option, and what came."""


def public_parts(module: ModuleType, base: type) -> set[type]:
    """Returns the concrete public classes of a kind; of a single file those that it defines."""
    names = vars(module).get("__all__") or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    values = (getattr(module, name) for name in names)
    return {each for each in values if inspect.isclass(each) and issubclass(each, base) and _is_concrete(each)}


def _is_concrete(cls: type) -> bool:
    return (
        not inspect.isabstract(cls)
        and len(cls.__mro__) > 2
        and not any(is_own(each) for each in cls.__subclasses__())
    )


def is_own(cls: type) -> bool:
    """Returns whether a class is part of the library, and not of a test."""
    return cls.__module__.startswith("contrastive_text.")


def rebuilt(plain: Any) -> Any:
    """Makes a part again from its plain data."""
    if isinstance(plain, list):
        return [rebuilt(each) for each in plain]
    if not (isinstance(plain, dict) and "class_path" in plain):
        return plain
    module, _, name = plain["class_path"].rpartition(".")
    arguments = {key: rebuilt(value) for key, value in plain["init_args"].items()}
    return getattr(importlib.import_module(module), name)(**arguments)


def check_part(part: object) -> None:
    """A part has an example, is made again from its plain data, and travels to another process."""
    assert ">>> " in str(type(part).__doc__) or "Raises:" in str(type(part).__doc__), (
        "docstring without an example"
    )
    plain = to_plain(part, "part")
    assert to_plain(rebuilt(plain), "part") == plain
    assert to_plain(pickle.loads(pickle.dumps(part)), "part") == plain


def check_refused(refused: Callable[[], object], error: type[Exception], words: list[str]) -> None:
    """A call is refused with an error that holds all words."""
    with pytest.raises(error) as caught:
        refused()
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)
