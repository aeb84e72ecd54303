"""How the commands over a saved model load it, and what they say of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.inference.model_folder import local_folder, read_folder
from contrastive_text.inference.readings import readings
from contrastive_text.inference.sentence_encoder import SentenceEncoder

DTYPES = {each: getattr(torch, each) for each in ("float32", "bfloat16", "float16", "int8")}


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


def load_model(
    path: str, device: str | None, pooler: str | None = None, backend: str = "torch", dtype: str = "float32"
) -> SentenceEncoder:
    """Loads a model and prints what is to be known of it, such as a pooler that its folder doesn't name."""
    check_device(device)
    with warnings_as_notes():
        return SentenceEncoder.from_pretrained(
            path, device=device, pooler=pooler, backend=backend, dtype=DTYPES[dtype]
        )


def load_readings(
    path: str, device: str | None, poolers: Sequence[str], backend: str = "torch", dtype: str = "float32"
) -> dict[str, SentenceEncoder]:
    """Loads a model, to be read with each of several poolers, and prints how its vectors are pooled.

    Args:
        path: Folder or hub name.
        device: Where to put it; None for the GPU if there is one.
        poolers: Their names; none for the model's own.
        backend: What runs its network; see ``SentenceEncoder.from_pretrained``.
        dtype: What that computes in.

    Returns:
        The model under its path; or, where poolers are named, each reading under path and pooler.
    """
    if poolers:
        check_device(device)
        with warnings_as_notes():
            parts = read_folder(local_folder(path)).run_by(backend, DTYPES[dtype])
            read = readings(parts, poolers, name=path)
        place, kind = parts.place(device, DTYPES[dtype])
        found = {f"{path} ({pooler})": model.to(place, kind).eval() for pooler, model in read.items()}
    else:
        found = {path: load_model(path, device, backend=backend, dtype=dtype)}
    for model in found.values():
        say(f"{path}: {model.pooling}, at most {model.max_length} tokens")
    return found


def say_truncated(model: SentenceEncoder, texts: int) -> None:
    """Prints how many of so many texts the last call of ``encode`` has cut, if any."""
    if model.truncated:
        say(f"{model.truncated:,} of {texts:,} texts are longer than {model.max_length} tokens and were cut")
