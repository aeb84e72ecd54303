"""Libraries of others: what installs those that only some users need, and quiet where they talk."""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from types import ModuleType

from contrastive_text.core.errors import ContrastiveTextError, MissingLibraryError, causes

_LACKING = re.compile(
    "can't allocate memory|Cannot allocate memory|os error 12\\b|bad_alloc|bad allocation|out of memory"
    "|Failed to allocate memory|_STATUS_ALLOC_FAILED|insufficient shared memory",
)
"""Messages by which libraries report lack of memory in errors of other classes."""
_EXTRAS = {
    "sklearn": ("scikit-learn", "evaluation"),
    "mteb": ("mteb", "mteb"),
    "matplotlib": ("matplotlib", "report"),
    "onnx": ("onnx", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino", "openvino"),
    "pyarrow": ("pyarrow", "parquet"),
    "peft": ("peft", "adapters"),
    "bitsandbytes": ("bitsandbytes", "qlora"),
}
"""Top module -> its distribution, and the extra that brings it."""


def require(module: str, where: str) -> ModuleType:
    """Imports a module of an optional library.

    Args:
        module: Such as ``sklearn.linear_model``.
        where: What needs it, for the error.

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
def quiet() -> Iterator[None]:
    """Keeps away Transformers' load report and progress bar, which every process would show."""
    from transformers.utils import logging  # here: views are imported without it

    # The handlers' levels, for another one of the logger makes Python forget those of all loggers.
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
    """Returns whether an error, or one that it was raised from, says that memory is lacking.

    Python raises MemoryError, the system ENOMEM, torch OutOfMemoryError on a GPU and RuntimeError on the CPU.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("can't allocate memory"))
        (True, True)
        >>> is_out_of_memory(ValueError("no memory of that"))
        False
    """
    for each in causes(error):
        number = isinstance(each, OSError) and each.errno == errno.ENOMEM
        said = not isinstance(each, ContrastiveTextError) and _LACKING.search(str(each)) is not None
        if isinstance(each, MemoryError) or number or said:
            return True
    return False


def is_failure(error: BaseException) -> bool:
    """Returns whether an error says that what was read is damaged: neither an end on purpose nor lack of memory.

    A panic of tokenizers is no ``Exception``.
    """
    return (isinstance(error, Exception) or is_panic(error)) and not is_out_of_memory(error)


def is_panic(error: BaseException) -> bool:
    """Returns whether an error is a panic of a library in Rust, such as tokenizers, which is no ``Exception``."""
    return type(error).__name__ == "PanicException"
