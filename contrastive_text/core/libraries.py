"""Libraries that only some users need: imported where they are used, or named with what installs them."""

from __future__ import annotations

import importlib
from types import ModuleType

from contrastive_text.core.errors import MissingLibraryError

_EXTRAS = {
    "sklearn": ("scikit-learn", "evaluation"),
    "mteb": ("mteb", "mteb"),
    "matplotlib": ("matplotlib", "report"),
    "onnx": ("onnx", "onnx"),
    "onnxscript": ("onnxscript", "onnx"),
    "onnxruntime": ("onnxruntime", "onnx"),
    "pyarrow": ("pyarrow", "parquet"),
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
