"""Security checks for parts that an untrusted file names: allowed classes, and imports by the parser."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from jsonargparse import set_parsing_settings
from jsonargparse._common import parsing_settings

from contrastive_text.core.config.class_paths import import_class, is_trusted, trusted
from contrastive_text.core.errors import InvalidValueError

# By default the parser instantiates any class that is named for an argument of type Any.
set_parsing_settings(instantiate_subclass_spec_in_any=False)

_LIBRARIES = ("contrastive_text", "pytorch_lightning", "lightning_fabric")
_CALLS_FUNCTIONS = "pytorch_lightning.callbacks.lambda_function"
"""Module of a Lightning callback that calls functions named in a configuration."""


def check_untrusted(plain: object, where: str) -> None:
    """Raises ValueError if plain data from an untrusted file name a class that isn't allowed.

    Only modules of this library and trusted modules are imported.

    Args:
        plain: Arguments from a checkpoint, or from the configuration in a run folder.
        where: The file, for the error.

    Raises:
        ValueError: A class that the file may not name, or that doesn't exist.
    """
    if isinstance(plain, Mapping):
        if "class_path" in plain:
            _check_class(plain["class_path"], where)
        for name, value in plain.items():
            check_untrusted(value, where if name == "init_args" else f"{where}.{name}")
    elif isinstance(plain, list | tuple):
        for i, item in enumerate(plain):
            check_untrusted(item, f"{where}[{i}]")


def _check_class(class_path: object, where: str) -> None:
    """Checks that a class is from a trusted module, or derived from a class of this library or Lightning."""
    if not isinstance(class_path, str) or "." not in class_path:
        raise InvalidValueError(f"{where}: expected module.Class, got {class_path!r}")
    cls: type = import_class(class_path, object, where)
    if not is_trusted(class_path) and all(
        base.__module__.partition(".")[0] not in _LIBRARIES for base in cls.__mro__
    ):
        raise InvalidValueError(f"{where}: expected a part, got {class_path}, which is not a part")


@contextmanager
def importing_only(modules: Iterable[str]) -> Iterator[None]:
    """Makes the configuration parser refuse class paths outside the given modules, inside the block.

    Without this, the parser imports any text as a class where the type of an argument is a class. Modules of this
    library, of Lightning and trusted modules stay allowed.

    Args:
        modules: Names of the modules that are allowed.

    Example:
        >>> with importing_only(["my_views"]):
        ...     pass
    """
    settings = dict(parsing_settings)  # jsonargparse can add entries to its lists, but not remove them
    set_parsing_settings(
        import_path_denylist=["*", _CALLS_FUNCTIONS], import_path_allowlist=[*_LIBRARIES, *trusted(), *modules]
    )
    try:
        yield
    finally:
        parsing_settings.update(settings)
