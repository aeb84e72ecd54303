"""Model of a command: loads it, prints notes about it, and encodes a file of texts."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from contrastive_text.cli.options import EncodingCommand
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message
from contrastive_text.data.files.readers import TextStream
from contrastive_text.data.prompts import DOCUMENT
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.head_models import HeadModel, Reranker
from contrastive_text.inference.model_folder import local_folder, read_folder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import models_by_pooler
from contrastive_text.inference.vector_files import Array, differences, has_files, open_vectors

_Head = TypeVar("_Head", bound=HeadModel)
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "int8")}
"""Value of ``--dtype`` -> data type of torch."""
_AGAIN = "write them with contrastive-text embed, with --restart over older vectors, or name another file"
_PROMPT = "embed takes the model's prompt of documents with --prompt_name document; "


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


def encoder_of(options: EncodingCommand) -> tuple[SentenceEncoder, list[str] | None]:
    """Loads the model of a command. Returns it with its devices, or with None if there is only one device."""
    devices: list[str] = options.device.split(",") if options.device else []
    for name in devices:
        check_device(name)
    first = devices[0] if devices else None
    model = load_model(options.model, device=first, backend=options.backend, dtype=options.dtype)
    return model, devices if len(devices) > 1 else None


def document_vectors(
    options: EncodingCommand,
    model: SentenceEncoder,
    devices: list[str] | None,
    texts: TextStream,
    path: Path,
    stays: bool = True,
) -> list[Array]:
    """Returns the vectors of a file of texts. Encodes the texts as documents if the file of vectors is missing.

    Args:
        options: The record of the command.
        model: The model.
        devices: Its devices; None for one device.
        texts: The texts.
        path: File of the vectors.
        stays: Whether later commands find the file.
    """
    if options.restart or not has_files(path):
        encoding = Encoding(
            block_size=options.block_size,
            batch_size=options.batch_size,
            device=devices,
            prompt=model.prompts.for_kind(DOCUMENT),
            max_length=model.document_length,
        )
        complete(EmbeddingRun(model, texts, path, encoding, restart=options.restart), stays=stays)
    return read_document_vectors(model, texts, path)


def read_document_vectors(model: SentenceEncoder, texts: TextStream, path: str | Path) -> list[Array]:
    """Reads the vectors of a corpus that ``embed`` wrote, after comparing them with their record.

    The file, or each of its shards, is memory-mapped; see ``open_vectors``.

    Args:
        model: Model that encoded the corpus, with its prompt of documents.
        texts: The texts of the corpus.
        path: File of vectors, ``.npy``. If it doesn't exist, its shards are read.

    Returns:
        Vectors of the file or of each shard, (n, D), float32, with their rows in the order of the texts.

    Raises:
        FileNotFoundError: Neither the file nor a shard exists.
        ValueError: A file was changed or has no record; its model, texts, prompt or precision differ; or a shard
            is missing or doesn't belong to the others.

    Example:
        >>> parts = read_document_vectors(model, TextStream("corpus.txt"), "corpus.npy")  # doctest: +SKIP
    """
    path = Path(path)
    files = open_vectors(path, _AGAIN)
    summary = texts.summary or texts.scan()
    origin: dict[str, object] = {
        "model": model.identity,
        "texts": summary.digest,
        "precision": "float32",
        "prompt": model.prompts.for_kind(DOCUMENT) or None,
        "kind": Encoding(kind=DOCUMENT).resolve_kind(model.encoder),
    }
    if model.similarity_fn_name != "cosine":  # which alone ignores lengths
        origin["normalize_embeddings"] = False
    for file, (record, vectors) in files.items():
        origin["shard"] = None if file == path else record.made_of.get("shard")  # a single shard isn't the corpus
        if difference := differences({name: record.made_of.get(name) for name in origin}, origin):
            todo = "" if record.made_of.get("prompt") == origin["prompt"] else _PROMPT
            raise InvalidValueError(
                f"{file}: expected vectors of this model and these texts, got {difference}; {todo}{_AGAIN}"
            )
        width = vectors.shape[1] if vectors.ndim == 2 else 0
        if not 0 < width <= model.features or vectors.dtype != np.float32:
            raise InvalidValueError(
                f"{path}: expected float32 of 1 to {model.features} features, got {vectors.dtype} of "
                f"{vectors.shape}; {_AGAIN}"
            )
    return [vectors for _, vectors in files.values()]


def complete(run: EmbeddingRun, became: str = "encoded", stays: bool = True) -> None:
    """Encodes the remaining texts of a run with a progress bar, and prints a summary.

    Args:
        run: The run to complete.
        became: End of the summary, such as "written to vectors.npy".
        stays: Whether later commands find the vectors of a stopped run.

    Raises:
        SystemExit: The user stopped the command. A note says how to resume.
    """
    before, start = run.done, time.perf_counter()
    if before:
        print_message(f"{before:,} of {run.count:,} texts are encoded already; resuming after them")

    def saved() -> str:
        if not stays:
            return "no vector is saved"
        texts = f"{run.done:,} of {run.count:,} texts"
        return f"the vectors of {texts} are saved; the same command resumes after them"

    with resumable(saved):
        rows, width = run.finish(show_progress_bar=True)
    speed = (rows - before) / (time.perf_counter() - start)
    say_truncated(run.truncated, rows, run.model)
    unit = "bytes" if "binary" in run.encoding.precision else "features"
    print_message(f"{rows:,} vectors of {width} {unit} {became} ({speed:,.0f} texts/s)")
