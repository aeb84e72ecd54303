"""How models are fetched: without Transformers' own report, for what matters of it becomes an error here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps away Transformers' load report and progress bar, which every process would show."""
    from transformers.utils import logging  # here: views are imported without it

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # theirs
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # theirs


def is_failure(error: BaseException) -> bool:
    """Tells whether something has failed, and nobody wants to end: a panic of tokenizers is no ``Exception``."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
