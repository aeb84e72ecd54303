"""Class paths in files: which path is written, which classes a file may name, and how a path is imported.

A checkpoint, a model folder and the records of a run or a sweep may come from anyone. They may name classes of
this library, of modules that the caller's program has imported, and of modules that the caller trusts by name.
Each option also has a base class. Nothing is imported before a class path is checked.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TypeVar

from contrastive_text.core.config.suggestions import suggest_class, suggest_name
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError

_T = TypeVar("_T")
_LIBRARY = __name__.partition(".")[0]
_trusted_modules: ContextVar[tuple[str, ...]] = ContextVar("_trusted_modules", default=())
_finds_own: ContextVar[bool] = ContextVar("_finds_own", default=False)


class UntrustedError(InvalidValueError):
    """Raised if a file names a class of a module that the program hasn't imported and the user doesn't trust.

    Args:
        where: The file, and the place in it.
        class_path: The class path in the file.
    """

    def __init__(self, where: str, class_path: str) -> None:
        self.module = class_path.rpartition(".")[0]
        super().__init__(
            f"{where}: expected a class of this library or of a module that you trust, got {class_path}; nothing "
            f"was imported: if you know what {self.module} does, give --trust {self.module}, or in Python "
            f'trust=["{self.module}"]'
        )


@contextmanager
def trusting(modules: Sequence[str] | None) -> Iterator[None]:
    """Trusts further modules, and their submodules, inside the block: files may name their classes.

    Args:
        modules: Names of the modules; None for no further modules.

    Raises:
        TypeError: A text in place of a list.
        ValueError: A text that isn't a module name.

    Example:
        >>> with trusting(["my_views"]):
        ...     pass
    """
    if isinstance(modules, str):
        raise InvalidTypeError(f'trust: expected a list of modules, got {modules!r}; give ["{modules}"]')
    for module in modules or ():
        if not _is_dotted(module):
            raise InvalidValueError(
                f"trust: expected the name of a module, such as my_views for my_views.py, got {module!r}"
            )
    token = _trusted_modules.set((*_trusted_modules.get(), *(modules or ())))
    try:
        yield
    finally:
        _trusted_modules.reset(token)


@contextmanager
def import_from_working_directory() -> Iterator[None]:
    """Makes modules in the working directory importable as parts inside the block.

    The working directory becomes the last entry of ``sys.path``. It is added only when a module that is named on
    purpose is found there and nowhere else, because libraries try to import many modules that may be absent.

    Example:
        >>> with import_from_working_directory():
        ...     pass
    """
    path = list(sys.path)
    token = _finds_own.set(True)
    try:
        yield
    finally:
        _finds_own.reset(token)
        sys.path[:] = path


def add_working_directory(path: str) -> None:
    """Appends the working directory to ``sys.path`` if a named module is found there and nowhere else.

    Args:
        path: Path of the module, or of a class in it.
    """
    root = path.partition(".")[0]
    if not (_finds_own.get() and root.isidentifier()) or root in sys.modules:
        return
    folder = os.getcwd()
    if folder in sys.path or importlib.util.find_spec(root) is not None:
        return
    if PathFinder.find_spec(root, [folder]) is not None:
        sys.path.append(folder)


def trusted() -> tuple[str, ...]:
    """Returns the modules that are currently trusted by name."""
    return _trusted_modules.get()


def dotted_texts(plain: object) -> Iterator[str]:
    """Yields the strings in nested plain data that look like a class path, such as ``module.Class``.

    Example:
        >>> list(dotted_texts({"views": [{"class_path": "my_views.Shout"}], "pooler": "CLSPooler"}))
        ['my_views.Shout']
    """
    if isinstance(plain, str):
        yield from [plain] if "." in plain and _is_dotted(plain) else []
    elif isinstance(plain, Mapping | list | tuple):
        for value in plain.values() if isinstance(plain, Mapping) else plain:
            yield from dotted_texts(value)


def foreign_modules(plain: object) -> list[str]:
    """Returns the modules of parts outside this library. A file with these parts needs ``--trust`` for them.

    Args:
        plain: Arguments as plain data, as stored in checkpoints.

    Example:
        >>> views = [{"class_path": "my_views.Shout"}, {"class_path": "contrastive_text.NTXent"}]
        >>> foreign_modules({"views": views})
        ['my_views']
    """
    if isinstance(plain, Mapping):
        path = plain.get("class_path")
        is_ours = not isinstance(path, str) or not _is_dotted(path) or "." not in path or is_own(path)
        inner_modules = [module for value in plain.values() for module in foreign_modules(value)]
        return list(dict.fromkeys([*([] if is_ours else [str(path).rpartition(".")[0]]), *inner_modules]))
    if isinstance(plain, list | tuple):
        return list(dict.fromkeys(module for value in plain for module in foreign_modules(value)))
    return []


def trust_options(modules: Iterable[str]) -> list[str]:
    """Returns the command-line options that trust the given modules.

    Example:
        >>> trust_options(["my_views"])
        ['--trust', 'my_views']
    """
    return [word for module in modules for word in ("--trust", module)]


def public_path(cls: type) -> str:
    """Returns the import path of a class that is written to files.

    For a class of this library it is the path of the outermost package whose ``__all__`` lists the class. A file
    stays readable if the class moves to another module. For other classes it is the module's path.

    Example:
        >>> from contrastive_text.losses import NTXent, SupCon
        >>> public_path(NTXent), public_path(SupCon), public_path(dict)
        ('contrastive_text.NTXent', 'contrastive_text.losses.SupCon', 'builtins.dict')
    """
    names = cls.__module__.split(".")
    for end in range(1, len(names)) if names[0] == _LIBRARY else ():
        package = sys.modules[".".join(names[:end])]
        if cls.__qualname__ in vars(package).get("__all__", ()) and getattr(package, cls.__name__) is cls:
            return f"{package.__name__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def import_class(class_path: object, base: type[_T] | tuple[type[_T], ...], where: str) -> type[_T]:
    """Imports the class that a file names, after checking that the file may name it.

    Args:
        class_path: ``module.Class``, or only the name for a class of this library.
        base: Base class that is required, or several of which one is.
        where: The file and the place in it, for the error.

    Raises:
        ValueError: The class doesn't exist, isn't a subclass, or is of a module that isn't trusted. An untrusted
            module isn't imported.

    Example:
        >>> from collections import OrderedDict
        >>> import_class("collections.OrderedDict", dict, "a.json").__name__
        'OrderedDict'
        >>> try:
        ...     import_class("subprocess.Popen", dict, "a.json")
        ... except InvalidValueError as error:
        ...     print(error)
        a.json: expected a subclass of dict, got subprocess.Popen, which is not a subclass of it
    """
    kinds = base if isinstance(base, tuple) else (base,)
    expected = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(class_path, str) or not _is_dotted(class_path):
        raise InvalidValueError(f"{where}: expected the path of a class ({expected}), got {class_path!r}")
    candidate = find_imported(class_path, kinds)
    if candidate is None and is_trusted(class_path):
        candidate = import_object(class_path)
    elif candidate is None and "." in class_path:
        raise UntrustedError(where, class_path)
    if candidate is None:
        is_bare = "." not in class_path
        suggestion = (
            suggest_name(class_path, [cls.__name__ for cls in subclasses(kinds)])
            if is_bare
            else suggest_class(class_path)
        )
        raise InvalidValueError(
            f"{where}: expected a subclass of {expected}, got {class_path}; there is no such class{suggestion}"
        )
    if not (isinstance(candidate, type) and issubclass(candidate, kinds)):
        raise InvalidValueError(
            f"{where}: expected a subclass of {expected}, got {class_path}, which is not a subclass of it"
        )
    return candidate


def is_own(class_path: str) -> bool:
    """Returns whether a class path names a class of this library."""
    return class_path.partition(".")[0] == _LIBRARY


def is_trusted(class_path: str) -> bool:
    """Returns whether a class path is of this library, or of a module that is trusted by name."""
    return any(f"{class_path}.".startswith(f"{module}.") for module in (_LIBRARY, *_trusted_modules.get()))


def find_imported(class_path: str, kinds: tuple[type, ...] = ()) -> object:
    """Returns the object that a class path names, if its module is already imported; else None.

    Args:
        class_path: ``module.Class``, or the name of a subclass of ``kinds``.
        kinds: Base classes, used for a name without a module.
    """
    names = class_path.split(".")
    if len(names) == 1:
        matches = [cls for cls in subclasses(kinds) if cls.__name__ == class_path]
        return min(matches, key=lambda cls: not cls.__module__.startswith(f"{_LIBRARY}."), default=None)
    for end in range(len(names) - 1, 0, -1):
        module = sys.modules.get(".".join(names[:end]))
        if module is not None:
            return _inside(module, names[end:])
    return None


def import_object(class_path: str) -> object:
    """Imports the module of a class path and returns the object that it names; None if there is no such object.

    Raises:
        Exception: Any error that the module raises.
    """
    names = class_path.split(".")
    add_working_directory(class_path)
    for end in range(len(names) - 1, 0, -1):
        module = ".".join(names[:end])
        try:
            return _inside(importlib.import_module(module), names[end:])
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module exists, but an import inside it fails
    return None


def _inside(module: ModuleType, names: Sequence[str]) -> object:
    """Looks up a chain of names in a module and its classes. Enters no other module and calls no hook of it."""
    value: object = module
    for name in names:
        if not isinstance(value, type) and value is not module:
            return None
        # Packages of this library import a name on demand. ``__getattr__`` of another module may import anything.
        value = getattr(value, name, None) if is_own(module.__name__) else vars(value).get(name)
    return value


def subclasses(kinds: Iterable[type]) -> Iterator[type]:
    """Yields classes and all their imported subclasses, recursively."""
    for kind in kinds:
        yield kind
        yield from subclasses(kind.__subclasses__())


def _is_dotted(text: object) -> bool:
    return isinstance(text, str) and all(name.isidentifier() for name in text.split("."))
