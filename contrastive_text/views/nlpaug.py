"""View that alters texts with an augmenter of the library nlpaug."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from contrastive_text.core.config.class_paths import import_class, trusting
from contrastive_text.core.errors import InvalidTypeError, MissingLibraryError
from contrastive_text.views.base import TextView


class _Augmenter(Protocol):
    def augment(self, data: str) -> object: ...


class NlpaugView(TextView):
    """Alters texts with an augmenter of nlpaug (Ma 2019, https://github.com/makcedward/nlpaug).

    Augmenters draw from the global random generators of Python, numpy and torch. The generators are seeded from
    ``rng`` for each text and restored afterwards. If the augmenter returns no text, or fails because the text is
    too short, the text is unchanged. Each process that uses the view builds the augmenter, which loads its own
    data and models; some augmenters download missing files.

    Args:
        augmenter: Class path of the augmenter, such as ``nlpaug.augmenter.word.SynonymAug``. It must be in
            nlpaug, in an imported module, or in a module that ``--trust`` allows.
        arguments: Arguments of the augmenter, as plain data; None for its defaults.

    Raises:
        ImportError: nlpaug is not installed.
        ValueError: The class doesn't exist, or is not an augmenter.
        TypeError: The augmenter doesn't accept the arguments.
    """

    def __init__(
        self,
        augmenter: str,
        arguments: Mapping[str, Any] | None = None,  # Any: whatever the augmenter takes
    ) -> None:
        self.augmenter = augmenter
        self.arguments = arguments
        signature = inspect.signature(_resolve_class(augmenter))
        try:
            signature.bind(**(arguments or {}))
        except TypeError as error:
            raise InvalidTypeError(
                f"NlpaugView.arguments: expected arguments out of {', '.join(signature.parameters)}, got "
                f"{', '.join(arguments or {}) or 'no arguments'}: {error}"
            ) from error
        self._augmenter: _Augmenter | None = None

    def __getstate__(self) -> dict[str, Any]:  # Any: as in object.__getstate__
        """Returns the view's state for pickling without the augmenter, which may hold a model."""
        return {**self.__dict__, "_augmenter": None}

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns nlpaug's alteration of a text, or the text itself if there is none."""
        if not text.strip():
            return text
        if self._augmenter is None:
            self._augmenter = _resolve_class(self.augmenter)(**(self.arguments or {}))
        with _seeded(int(rng.integers(2**32))):
            try:
                output = self._augmenter.augment(text)
            except ValueError as error:
                # nlpaug 1.1.11 draws more words or sentences than a short text has: crop, RandomSentAug.
                if "than population" not in str(error):
                    raise
                return text
        first = output[0] if isinstance(output, list) and output else output
        return first if isinstance(first, str) and first.strip() else text


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global random generators of the CPU inside a block, and restores them afterwards."""
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


def _resolve_class(path: str) -> type[_Augmenter]:
    try:
        from nlpaug import Augmenter  # type: ignore[import-untyped]  # theirs
    except ImportError as error:
        raise MissingLibraryError(
            f"NlpaugView: expected the package nlpaug, got {error}; pip install 'contrastive-text[augment]'"
        ) from error
    with trusting(["nlpaug"]):
        return import_class(path, Augmenter, "NlpaugView.augmenter")
