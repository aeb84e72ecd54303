"""Libraries of others: what installs those that only some users need, and quiet where they talk."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from logging import ERROR
from types import ModuleType

from contrastive_text.core.errors import MissingLibraryError

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


def is_failure(error: BaseException) -> bool:
    """Whether something has failed, and nobody wants to end: a panic of tokenizers is no ``Exception``."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
