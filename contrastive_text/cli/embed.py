"""Command ``embed``, which writes one vector per text of a file, and the encoding of texts for other commands."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from contrastive_text.cli.commands import Embed
from contrastive_text.cli.files import text_stream
from contrastive_text.cli.models import check_device, load_model, resumable, say_truncated
from contrastive_text.cli.options import EncodingCommand
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import CALIBRATION, EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.text_vectors import document_encoding, read_document_vectors
from contrastive_text.inference.vector_files import Array, Shard, check_output_path, has_files, ids_path


def encoder_of(options: EncodingCommand) -> tuple[SentenceEncoder, list[str] | None]:
    """Loads the model of a command. Returns it with its devices, or with None if there is only one device."""
    devices: list[str] = options.device.split(",") if options.device else []
    for name in devices:
        check_device(name)
    first = devices[0] if devices else None
    model = load_model(options.model, device=first, backend=options.backend, dtype=options.dtype)
    return model, devices if len(devices) > 1 else None


def document_vectors(
    options: EncodingCommand, texts: TextStream, path: Path, stays: bool = True
) -> tuple[SentenceEncoder, list[Array]]:
    """Returns the model of a command, and the vectors of a file of texts. Encodes the texts if it has none.

    Args:
        options: The record of the command.
        texts: The texts.
        path: File of the vectors.
        stays: Whether later commands find the file.
    """
    model, devices = encoder_of(options)
    if options.restart or not has_files(path):
        encoding = Encoding(block_size=options.block_size, batch_size=options.batch_size, device=devices)
        run = EmbeddingRun(model, texts, path, document_encoding(model, encoding), restart=options.restart)
        complete(run, stays=stays)
    return model, read_document_vectors(model, texts, path)


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


def _ranges(path: Path) -> Array:
    """Reads the value ranges of features from the file of ``--ranges``."""
    try:
        if path.exists() and not path.is_file():
            raise InvalidValueError("a folder or a special file")
        ranges = np.array(np.load(path, mmap_mode="r"))  # a header can claim any size
        if ranges.dtype.kind not in "fiu":
            raise InvalidValueError(f"an array of {ranges.dtype}")
        return ranges
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"--ranges {path}: expected a .npy file that embed wrote for int8 vectors, got {error}; name one"
        ) from error


def embed(options: Embed) -> None:
    """Writes one vector per text of a file."""
    check_output_path(options.output)
    ranges = None if options.ranges is None else _ranges(options.ranges)
    texts = text_stream(options, options.input, options.distinct)
    print_message(texts.scan().description)
    model, devices = encoder_of(options)
    encoding = Encoding(
        block_size=options.block_size,
        batch_size=options.batch_size,
        normalize_embeddings=options.normalize,
        prompt_name=options.prompt_name,
        truncate_dim=options.truncate_dim,
        precision=options.precision,
        ranges=ranges,
        device=devices,
    )
    if model.prompts:
        prompt, names = encoding.resolve_prompt(model.prompts), ", ".join(sorted(model.prompts.named))
        usage = (
            f"texts are encoded with the prompt {prompt!r}" if prompt else "texts are encoded without a prompt"
        )
        print_message(f"{usage}; --prompt_name selects one of {names}")
    shard = None if options.shard is None else Shard.parse(options.shard)
    run = EmbeddingRun(
        model, texts, options.output, encoding, options.restart, with_ids=options.distinct, shard=shard
    )
    complete(run, became=f"written to {run.path}")
    if encoding.is_byte:
        source = options.ranges or f"the vectors of the first {CALIBRATION:,} texts"
        print_message(f"value ranges of the features are from {source}; saved to {run.ranges_path}")
    if options.distinct:
        print_message(f"text ids of the vectors are in {ids_path(run.path)}")
