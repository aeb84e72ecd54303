"""Parts that a file of a stranger names: which classes it may name, and what the parser imports for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from jsonargparse import set_parsing_settings
from jsonargparse._common import parsing_settings

from contrastive_text.core.config.class_paths import is_trusted, resolve, trusted
from contrastive_text.core.errors import InvalidValueError

# Otherwise the parser builds any class that is named where the type is Any.
set_parsing_settings(instantiate_subclass_spec_in_any=False)

_OURS = ("contrastive_text", "pytorch_lightning", "lightning_fabric")
_CALLS_FUNCTIONS = "pytorch_lightning.callbacks.lambda_function"
"""Callback that calls functions named by a configuration."""


def foreign_modules(plain: object, where: str) -> set[str]:
    """Checks that a stranger's plain data name only classes that a file may name.

    Only modules of this library and trusted modules are imported.

    Args:
        plain: Arguments from a checkpoint or from the configuration in a run folder.
        where: The file, for the error.

    Returns:
        The modules of the classes, for ``importing_only``.

    Raises:
        ValueError: A class that the file may not name, or no such class.
    """
    if isinstance(plain, Mapping):
        named = set()
        if "class_path" in plain:
            cls = _part_class(plain["class_path"], where)
            named = {cls.__module__, str(plain["class_path"]).rpartition(".")[0]}
        inner = {name: where if name == "init_args" else f"{where}.{name}" for name in plain}
        return named.union(*(foreign_modules(plain[name], inner[name]) for name in plain))
    if isinstance(plain, list | tuple):
        return set().union(*(foreign_modules(item, f"{where}[{i}]") for i, item in enumerate(plain)))
    return set()


def _part_class(class_path: object, where: str) -> type:
    """Returns the class of a part: from a trusted module, or derived from a class of ours or Lightning's."""
    if not isinstance(class_path, str) or "." not in class_path:
        raise InvalidValueError(f"{where}: expected module.Class, got {class_path!r}")
    cls: type = resolve(class_path, object, where)
    if is_trusted(class_path) or any(base.__module__.partition(".")[0] in _OURS for base in cls.__mro__):
        return cls
    raise InvalidValueError(f"{where}: expected a part, got {class_path}, which is none")


@contextmanager
def importing_only(modules: Iterable[str]) -> Iterator[None]:
    """Makes the parser of configurations refuse class paths of all but some modules while the block runs.

    The parser imports any text as a class where the type of an argument is a class. Modules of this library, of
    Lightning and trusted modules are allowed too.

    Args:
        modules: Names of the modules that are allowed.

    Example:
        >>> with importing_only(["my_views"]):
        ...     pass
    """
    before = dict(parsing_settings)  # jsonargparse can add to its list, and not take an entry back
    set_parsing_settings(
        import_path_denylist=["*", _CALLS_FUNCTIONS], import_path_allowlist=[*_OURS, *trusted(), *modules]
    )
    try:
        yield
    finally:
        parsing_settings.update(before)
