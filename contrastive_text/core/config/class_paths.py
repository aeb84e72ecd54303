"""Class paths in files: the one that is written, which classes a file may name, and how a name becomes a class.

A checkpoint, a model folder and the records of a run or a sweep may come from anyone. They name classes of this
library, of modules that the caller's program has imported, and of modules that the caller trusts by name; each
place has a base class. Until that is settled nothing is imported.
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

from contrastive_text.core.config.misspelt import near_class, nearest
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError

_T = TypeVar("_T")
_OWN = __name__.partition(".")[0]
_trusted: ContextVar[tuple[str, ...]] = ContextVar("_trusted", default=())
_finding: ContextVar[bool] = ContextVar("_finding", default=False)


class UntrustedError(InvalidValueError):
    """A file names a class of a module that neither the program has imported nor its user trusts.

    Args:
        where: The file, and the place in it.
        class_path: What it names.
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
    """Lets files name classes of further modules, and of their submodules, while the block runs.

    Args:
        modules: Their names; None for no further ones.

    Raises:
        TypeError: A name in place of a list.
        ValueError: Something that can't be the name of a module.

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
    token = _trusted.set((*_trusted.get(), *(modules or ())))
    try:
        yield
    finally:
        _trusted.reset(token)


@contextmanager
def finding_own_parts() -> Iterator[None]:
    """Lets parts of the user's own be found in the working directory while the block runs.

    It becomes the last place where Python looks for modules, and only from where a module that is named on
    purpose was found there and nowhere else: a library asks for many a module that may be absent.

    Example:
        >>> with finding_own_parts():
        ...     pass
    """
    before = list(sys.path)
    token = _finding.set(True)
    try:
        yield
    finally:
        _finding.reset(token)
        sys.path[:] = before


def find_own(path: str) -> None:
    """Puts the working directory last on ``sys.path``, if a named module is there and nowhere else.

    Args:
        path: Of the module, or of something in it.
    """
    root = path.partition(".")[0]
    if not (_finding.get() and root.isidentifier()) or root in sys.modules:
        return
    here = os.getcwd()
    if here in sys.path or importlib.util.find_spec(root) is not None:
        return
    if PathFinder.find_spec(root, [here]) is not None:
        sys.path.append(here)


def trusted() -> tuple[str, ...]:
    """Returns the modules that are trusted by name at this moment."""
    return _trusted.get()


def dotted_texts(plain: object) -> Iterator[str]:
    """Yields the texts of plain data that have the form of a class path.

    Example:
        >>> list(dotted_texts({"views": [{"class_path": "my_views.Shout"}], "pooler": "CLSPooler"}))
        ['my_views.Shout']
    """
    if isinstance(plain, str):
        yield from [plain] if "." in plain and _is_dotted(plain) else []
    elif isinstance(plain, Mapping | list | tuple):
        for inner in plain.values() if isinstance(plain, Mapping) else plain:
            yield from dotted_texts(inner)


def own_modules(plain: object) -> list[str]:
    """Returns the modules of parts that aren't this library's, which a file with these parts needs trust for.

    Args:
        plain: Arguments as plain data, as checkpoints hold them.

    Example:
        >>> own_modules({"views": [{"class_path": "my_views.Shout"}, {"class_path": "contrastive_text.NTXent"}]})
        ['my_views']
    """
    if isinstance(plain, Mapping):
        path = plain.get("class_path")
        ours = not isinstance(path, str) or not _is_dotted(path) or "." not in path or is_own(path)
        inner = [module for value in plain.values() for module in own_modules(value)]
        return list(dict.fromkeys([*([] if ours else [str(path).rpartition(".")[0]]), *inner]))
    if isinstance(plain, list | tuple):
        return list(dict.fromkeys(module for value in plain for module in own_modules(value)))
    return []


def trust_words(modules: Iterable[str]) -> list[str]:
    """Returns the words of a command that let it import these modules.

    Example:
        >>> trust_words(["my_views"])
        ['--trust', 'my_views']
    """
    return [word for module in modules for word in ("--trust", module)]


def public_path(cls: type) -> str:
    """Returns the path by which a class is imported, as every file that we write has it.

    Of this library's classes it is that of the outermost package whose ``__all__`` names it, whichever module
    defines it: a file outlives a change of places. Of others it is that of their module.

    Example:
        >>> from contrastive_text.losses import NTXent, SupCon
        >>> public_path(NTXent), public_path(SupCon), public_path(dict)
        ('contrastive_text.NTXent', 'contrastive_text.losses.SupCon', 'builtins.dict')
    """
    packages = cls.__module__.split(".")
    for end in range(1, len(packages)) if packages[0] == _OWN else ():
        package = sys.modules[".".join(packages[:end])]
        if cls.__qualname__ in vars(package).get("__all__", ()) and getattr(package, cls.__name__) is cls:
            return f"{package.__name__}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def resolve(class_path: object, base: type[_T] | tuple[type[_T], ...], where: str) -> type[_T]:
    """Returns the class that a file names for a place.

    Args:
        class_path: ``module.Class``, or the name alone of a class of this library.
        base: What the place may hold: subclasses of it, or of one of several.
        where: The file and the place, for the error.

    Raises:
        ValueError: No such class, one of another kind, or of a module that nobody trusts, which isn't imported.

    Example:
        >>> from collections import OrderedDict
        >>> resolve("collections.OrderedDict", dict, "a.json").__name__
        'OrderedDict'
        >>> try:
        ...     resolve("subprocess.Popen", dict, "a.json")
        ... except InvalidValueError as error:
        ...     print(error)
        a.json: expected a subclass of dict, got subprocess.Popen, which is none
    """
    kinds = base if isinstance(base, tuple) else (base,)
    said = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(class_path, str) or not _is_dotted(class_path):
        raise InvalidValueError(f"{where}: expected the path of a class ({said}), got {class_path!r}")
    found = loaded(class_path, kinds)
    if found is None and is_trusted(class_path):
        found = imported(class_path)
    elif found is None and "." in class_path:
        raise UntrustedError(where, class_path)
    if found is None:
        is_bare = "." not in class_path
        near = (
            nearest(class_path, [cls.__name__ for cls in subclasses(kinds)])
            if is_bare
            else near_class(class_path)
        )
        raise InvalidValueError(
            f"{where}: expected a subclass of {said}, got {class_path}; there is no such class{near}"
        )
    if not (isinstance(found, type) and issubclass(found, kinds)):
        raise InvalidValueError(f"{where}: expected a subclass of {said}, got {class_path}, which is none")
    return found


def is_own(class_path: str) -> bool:
    """Whether a path leads into this library."""
    return class_path.partition(".")[0] == _OWN


def is_trusted(class_path: str) -> bool:
    """Whether a path leads into this library, or into a module that is trusted by name."""
    return any(f"{class_path}.".startswith(f"{module}.") for module in (_OWN, *_trusted.get()))


def loaded(class_path: str, kinds: tuple[type, ...] = ()) -> object:
    """Returns what a path names among the modules that are imported already; None if there is nothing.

    Args:
        class_path: ``module.Class``, or the name of a subclass of ``kinds``.
        kinds: Base classes of the place.
    """
    names = class_path.split(".")
    if len(names) == 1:
        named = [cls for cls in subclasses(kinds) if cls.__name__ == class_path]
        return min(named, key=lambda cls: not cls.__module__.startswith(f"{_OWN}."), default=None)
    for end in range(len(names) - 1, 0, -1):
        module = sys.modules.get(".".join(names[:end]))
        if module is not None:
            return _inside(module, names[end:])
    return None


def imported(class_path: str) -> object:
    """Imports the module of a path, and gives what the path names there; None if there is nothing.

    Raises:
        Exception: Whatever the module raises.
    """
    names = class_path.split(".")
    find_own(class_path)
    for end in range(len(names) - 1, 0, -1):
        module = ".".join(names[:end])
        try:
            return _inside(importlib.import_module(module), names[end:])
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # the module is there, and lacks another one
    return None


def _inside(module: ModuleType, names: Sequence[str]) -> object:
    """Follows names from a module into classes; no other module is entered, and of others' no hook is called."""
    found: object = module
    for name in names:
        if not isinstance(found, type) and found is not module:
            return None
        # Ours import what is asked for by themselves; those of others may import anything.
        found = getattr(found, name, None) if is_own(module.__name__) else vars(found).get(name)
    return found


def subclasses(kinds: Iterable[type]) -> Iterator[type]:
    """Yields classes and all that are derived from them, as far as they are imported."""
    for kind in kinds:
        yield kind
        yield from subclasses(kind.__subclasses__())


def _is_dotted(text: object) -> bool:
    return isinstance(text, str) and all(name.isidentifier() for name in text.split("."))
