"""Imports of other libraries and of lazy names, silence while a library loads, and classes of their errors."""

from __future__ import annotations

import ast
import errno
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from logging import ERROR
from pathlib import Path
from types import ModuleType

from contrastive_text.core.errors import (
    ContrastiveTextError,
    InvalidValueError,
    MissingLibraryError,
    first_line,
    iter_causes,
)

_OUT_OF_MEMORY = re.compile(
    "can't allocate memory|Cannot allocate memory|os error 12\\b|bad_alloc|bad allocation|out of memory"
    "|Failed to allocate memory|_STATUS_ALLOC_FAILED|insufficient shared memory",
)
"""Messages of libraries that report a lack of memory by an error of another class than MemoryError."""
_EXTRAS = {
    "sklearn": ("scikit-learn", "evaluation"),
    "mteb": ("mteb", "mteb"),
    "matplotlib": ("matplotlib", "report"),
    "onnx": ("onnx", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
    "pyarrow": ("pyarrow", "parquet"),
    "nltk": ("nltk", "synonyms"),
    "peft": ("peft", "adapters"),
    "bitsandbytes": ("bitsandbytes", "qlora"),
    "faiss": ("faiss-cpu", "faiss"),
    "scipy": ("scipy", "sparse"),
}
"""Top-level module -> its distribution on PyPI, and the extra of this package that installs it."""


def require(module: str, where: str) -> ModuleType:
    """Imports a module of an optional library.

    Args:
        module: Full name, such as ``sklearn.linear_model``.
        where: The feature that needs it, for the error.

    Raises:
        ImportError: The library isn't installed; the message has the command that installs it.

    Example:
        >>> require("sklearn.linear_model", "transfer tasks").LogisticRegression.__name__
        'LogisticRegression'
    """
    library, extra = _EXTRAS[module.partition(".")[0]]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibraryError(
            f"{where}: expected {library}, found none ({error}); pip install 'contrastive-text[{extra}]'"
        ) from error


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silences the load report and the progress bar of Transformers, which every process would print."""
    from transformers.utils import logging  # here: views are imported without Transformers

    # Levels of handlers: setting the level of a logger makes Python clear the level cache of all loggers.
    handlers = logging.get_logger("transformers").handlers
    levels, bar = [handler.level for handler in handlers], logging.is_progress_bar_enabled()
    for handler in handlers:
        handler.setLevel(ERROR)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=False):
            handler.setLevel(level)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # theirs


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or an error in its chain of causes, reports a lack of memory.

    Python raises MemoryError, the system ENOMEM, torch OutOfMemoryError on a GPU and RuntimeError on the CPU.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("can't allocate memory"))
        (True, True)
        >>> is_out_of_memory(ValueError("no memory of that"))
        False
    """
    for cause in iter_causes(error):
        has_number = isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        has_message = (
            not isinstance(cause, ContrastiveTextError) and _OUT_OF_MEMORY.search(str(cause)) is not None
        )
        if isinstance(cause, MemoryError) or has_number or has_message:
            return True
    return False


def is_read_error(error: BaseException) -> bool:
    """Returns whether an error while reading a file means damage, not an intended exit or a lack of memory.

    A panic of tokenizers counts, although it is no ``Exception``.
    """
    return (isinstance(error, Exception) or is_panic(error)) and not is_out_of_memory(error)


@contextmanager
def read_errors_as(expected: str, todo: str) -> Iterator[None]:
    """Converts errors of a library that reads a damaged or foreign file to an error of this library.

    Args:
        expected: Beginning of the message: the file, and what was expected of it.
        todo: What to do about the file.

    Raises:
        ValueError: The block raised an error that ``is_read_error`` accepts. Errors of this library pass.

    Example:
        >>> with read_errors_as("a.json: expected JSON", "save it again"):
        ...     int("x")
        Traceback (most recent call last):
            ...
        contrastive_text.core.errors.InvalidValueError: a.json: expected JSON, got ValueError: invalid ...
    """
    try:
        yield
    except BaseException as error:  # a damaged file raises nearly any error
        if isinstance(error, ContrastiveTextError) or not is_read_error(error):
            raise
        got = f"{type(error).__name__}: {first_line(error)}"
        raise InvalidValueError(f"{expected}, got {got}; {todo}") from error


def is_panic(error: BaseException) -> bool:
    """Returns whether an error is a panic of a Rust library, such as tokenizers. A panic is no ``Exception``."""
    return type(error).__name__ == "PanicException"


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
