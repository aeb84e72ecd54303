"""Encoding of a command's file of texts: the model with its devices, the progress, and the summary."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from contrastive_text.cli.models import check_device, load_model, say_truncated, warnings_as_notes
from contrastive_text.cli.options import EncodingCommand
from contrastive_text.core.terminal import print_message
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.text_vectors import document_encoding, read_document_vectors
from contrastive_text.inference.vector_files import Array, has_files


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
    try:
        with warnings_as_notes():
            rows, width = run.finish(show_progress_bar=True)
    except KeyboardInterrupt:
        note = (
            f"the vectors of {run.done:,} of {run.count:,} texts are saved; the same command resumes after them"
        )
        print_message(f"\nstopped: {note if stays else 'no vector is saved'}", file=sys.stderr)
        raise SystemExit(130) from None
    speed = (rows - before) / (time.perf_counter() - start)
    say_truncated(run.truncated, rows, run.model)
    unit = "bytes" if "binary" in run.encoding.precision else "features"
    print_message(f"{rows:,} vectors of {width} {unit} {became} ({speed:,.0f} texts/s)")
