"""Loads the model of a command and prints notes about it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message
from contrastive_text.inference.head_models import HeadModel, Reranker
from contrastive_text.inference.model_folder import local_folder, read_folder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import models_by_pooler

_Head = TypeVar("_Head", bound=HeadModel)
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "int8")}
"""Value of ``--dtype`` -> data type of torch."""


def check_device(name: str | None) -> None:
    """Checks that this machine has the device that ``--device`` names. None passes.

    Raises:
        ValueError: This machine has no such device.
    """
    try:
        torch.empty(0, device="cpu" if name is None else name)
    except (AssertionError, RuntimeError) as error:  # a build of torch without CUDA asserts it
        raise InvalidValueError(
            f"--device: expected a device of this machine, such as cpu, got {name!r}"
        ) from error


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Prints each ``UserWarning`` of the block once, as a note, also if the block raises."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            notes = [str(item.message) for item in caught if issubclass(item.category, UserWarning)]
            for note in dict.fromkeys(notes):
                print_message(f"note: {note}")


@contextmanager
def resumable(saved: Callable[[], str]) -> Iterator[None]:
    """Prints warnings of the block as notes. If the user stops the command, prints how to resume it, and exits.

    Args:
        saved: Function that describes the saved results when the command is stopped.

    Raises:
        SystemExit: The user stopped the command.
    """
    try:
        with warnings_as_notes():
            yield
    except KeyboardInterrupt:
        print_message(f"\nstopped: {saved()}", file=sys.stderr)
        raise SystemExit(130) from None


def load_model(
    path: str, device: str | None, pooler: str | None = None, backend: str = "torch", dtype: str = "float32"
) -> SentenceEncoder:
    """Loads a model and prints its warnings as notes, such as a pooler that the folder does not define."""
    check_device(device)
    with warnings_as_notes():
        return SentenceEncoder.from_pretrained(
            path, device=device, pooler=pooler, backend=backend, dtype=DTYPES[dtype]
        )


def load_head(kind: type[_Head], path: str, device: str | None) -> _Head:
    """Loads a model with a trained head and prints its warnings as notes.

    Raises:
        ValueError: The model has no head of this kind.
    """
    check_device(device)
    with warnings_as_notes():
        return kind.from_pretrained(path, device=device)


def load_reranker(path: str, device: str | None) -> Reranker:
    """Loads a reranker and prints its length limit; see ``load_head``."""
    reranker = load_head(Reranker, path, device)
    print_message(f"{path}: a reranker, at most {reranker.tokenizer.max_length} tokens for both texts")
    return reranker


def load_readings(
    path: str, device: str | None, poolers: Sequence[str], backend: str = "torch", dtype: str = "float32"
) -> dict[str, SentenceEncoder]:
    """Loads a model once for each of several poolers and prints pooler and length limit.

    Args:
        path: Model folder or hub name.
        device: Device of the model; None for the GPU if there is one.
        poolers: Names of poolers; empty for the model's own pooler.
        backend: Library that runs the network; see ``SentenceEncoder.from_pretrained``.
        dtype: Number type of the network, a key of ``DTYPES``.

    Returns:
        The model by its path, or, with poolers, one model per pooler by "path (pooler)".
    """
    if poolers:
        check_device(device)
        with warnings_as_notes():
            parts = read_folder(local_folder(path)).with_runtime(backend, DTYPES[dtype])
            by_pooler = models_by_pooler(parts, poolers, name=path)
        place, kind = parts.device_and_dtype(device, DTYPES[dtype])
        models = {f"{path} ({pooler})": model.to(place, kind).eval() for pooler, model in by_pooler.items()}
    else:
        models = {path: load_model(path, device, backend=backend, dtype=dtype)}
    for model in models.values():
        print_message(f"{path}: {model.pooling}, at most {model.max_length} tokens")
    return models


def say_truncated(truncated: int, texts: int, model: SentenceEncoder) -> None:
    """Prints how many texts were truncated to the length limit of a model, if any.

    Args:
        truncated: Number of truncated texts.
        texts: Number of encoded texts.
        model: The model that encoded the texts.
    """
    if truncated:
        print_message(f"{truncated:,} of {texts:,} texts exceed {model.max_length} tokens and were truncated")
