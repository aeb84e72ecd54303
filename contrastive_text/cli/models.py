"""How the commands over a saved model load it, and what they say of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.inference.sentence_encoder import SentenceEncoder


def check_device(name: str | None) -> None:
    """Checks that this machine has a device, before a model is loaded; None is left to the model.

    Raises:
        ValueError: It has none of that name.
    """
    try:
        torch.empty(0, device="cpu" if name is None else name)
    except (AssertionError, RuntimeError) as error:  # a build of torch without CUDA asserts it
        raise InvalidValueError(
            f"--device: expected a device of this machine, such as cpu, got {name!r}"
        ) from error


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Prints what users are warned of as notes, each once, also before an error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            notes = [str(each.message) for each in said if issubclass(each.category, UserWarning)]
            for note in dict.fromkeys(notes):
                say(f"note: {note}")


def load_model(path: str, device: str | None) -> SentenceEncoder:
    """Loads a model and prints what is to be known of it, such as a pooler that its folder doesn't name."""
    check_device(device)
    with warnings_as_notes():
        return SentenceEncoder.from_pretrained(path, device=device)


def say_truncated(model: SentenceEncoder, texts: int) -> None:
    """Prints how many of so many texts the last call of ``encode`` has cut, if any."""
    if model.truncated:
        say(f"{model.truncated:,} of {texts:,} texts are longer than {model.max_length} tokens and were cut")
