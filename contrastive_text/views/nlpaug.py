"""Augmenters of the library nlpaug as views."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from contrastive_text.core.config.class_paths import resolve, trusting
from contrastive_text.core.errors import InvalidTypeError, MissingLibraryError
from contrastive_text.views.base import TextView


class _Augmenter(Protocol):
    def augment(self, data: str) -> object: ...


class NlpaugView(TextView):
    """Alters texts with an augmenter of nlpaug (Ma 2019, https://github.com/makcedward/nlpaug).

    The augmenter draws from the global generators of Python, numpy and torch; they are seeded from ``rng`` for
    each text and put back afterwards. Where it gives nothing, or fails because the text is too short for it,
    the text stays as it is. It is made in each process that needs it, and looks for its data and models by
    itself: some augmenters download what they don't find.

    Args:
        augmenter: Class of the augmenter, such as ``nlpaug.augmenter.word.SynonymAug``; of nlpaug, or of a module
            that is imported, or trusted by ``--trust``.
        arguments: Its constructor's arguments, as plain data; None for its defaults.

    Raises:
        ImportError: nlpaug is not installed.
        ValueError: No such class, or one that is no augmenter.
        TypeError: Arguments that it doesn't take.
    """

    def __init__(
        self,
        augmenter: str,
        arguments: Mapping[str, Any] | None = None,  # Any: whatever the augmenter takes
    ) -> None:
        self.augmenter = augmenter
        self.arguments = arguments
        signature = inspect.signature(_find(augmenter))
        try:
            signature.bind(**(arguments or {}))
        except TypeError as error:
            raise InvalidTypeError(
                f"NlpaugView.arguments: expected some of {', '.join(signature.parameters)}, got "
                f"{', '.join(arguments or {}) or 'none'}: {error}"
            ) from error
        self._made: _Augmenter | None = None

    def __getstate__(self) -> dict[str, Any]:  # Any: as in object.__getstate__
        """Returns the state without the augmenter, which may hold a model."""
        return {**self.__dict__, "_made": None}

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns what the augmenter makes of the text."""
        if not text.strip():
            return text
        if self._made is None:
            self._made = _find(self.augmenter)(**(self.arguments or {}))
        with _seeded(int(rng.integers(2**32))):
            try:
                found = self._made.augment(text)
            except ValueError as error:
                # nlpaug 1.1.11 draws more words or sentences than a short text has: crop, RandomSentAug.
                if "than population" not in str(error):
                    raise
                return text
        first = found[0] if isinstance(found, list) and found else found
        return first if isinstance(first, str) and first.strip() else text


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators of the CPU, and puts them back."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed: that would seed the GPU too
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(pytorch)


def _find(path: str) -> type[_Augmenter]:
    try:
        from nlpaug import Augmenter  # type: ignore[import-untyped]  # theirs
    except ImportError as error:
        raise MissingLibraryError(
            f"NlpaugView: expected the package nlpaug, got {error}; pip install 'contrastive-text[augment]'"
        ) from error
    with trusting(["nlpaug"]):
        return resolve(path, Augmenter, "NlpaugView.augmenter")
