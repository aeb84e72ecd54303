"""The command that writes one vector per text of a file, and what it shares with others that encode files."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from contrastive_text.cli.commands import Embed, EncodingCommand
from contrastive_text.cli.files import form_of
from contrastive_text.cli.models import check_device, load_model, warnings_as_notes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.core.terminal import say
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import CALIBRATION, EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Array, Shard, check_suffix, ids_of, is_begun
from contrastive_text.inference.vector_index import VectorIndex, of_documents


def encoder_of(options: EncodingCommand) -> tuple[SentenceEncoder, list[str] | None]:
    """Loads the model that the options name; gives the devices too, where they are several."""
    devices: list[str] = options.device.split(",") if options.device else []
    for name in devices:
        check_device(name)
    first = devices[0] if devices else None
    model = load_model(options.model, device=first, backend=options.backend, dtype=options.dtype)
    return model, devices if len(devices) > 1 else None


def index_of(options: EncodingCommand, texts: TextStream, path: Path, stays: bool = True) -> VectorIndex:
    """Returns the index of a file of texts, made now where none is begun; it may be for this time alone."""
    model, devices = encoder_of(options)
    if options.restart or not is_begun(path):
        encoding = Encoding(block_size=options.block_size, batch_size=options.batch_size, device=devices)
        run = EmbeddingRun(model, texts, path, of_documents(model, encoding), restart=options.restart)
        complete(run, stays=stays)
    return VectorIndex.load(model, texts, path)


def complete(run: EmbeddingRun, became: str = "encoded", stays: bool = True) -> None:
    """Encodes what is left of a run with a bar, and says what became of it.

    Args:
        run: What to complete.
        became: What the vectors are when it is.
        stays: Whether another command finds what this one leaves.

    Raises:
        SystemExit: Stopped by the user, who is told how it goes on.
    """
    before, begun = run.done, time.perf_counter()
    if before:
        say(f"{before:,} of {run.count:,} texts are encoded already; going on after them")
    try:
        with warnings_as_notes():
            rows, width = run.finish(show_progress_bar=True)
    except KeyboardInterrupt:
        kept = f"the vectors of {run.done:,} of {run.count:,} texts are kept; the same command goes on after them"
        say(f"\nstopped: {kept if stays else 'nothing is kept'}", file=sys.stderr)
        raise SystemExit(130) from None
    speed = (rows - before) / (time.perf_counter() - begun)
    if run.truncated:
        say(f"{run.truncated:,} of {rows:,} texts are longer than {run.model.max_length} tokens and were cut")
    each = "bytes" if "binary" in run.encoding.precision else "features"
    say(f"{rows:,} vectors of {width} {each} {became} ({speed:,.0f} texts/s)")


def _ranges(path: Path) -> Array:
    try:
        if path.exists() and not path.is_file():
            raise InvalidValueError("something else")
        ranges = np.array(np.load(path, mmap_mode="r"))  # a header can claim any size
        if ranges.dtype.kind not in "fiu":
            raise InvalidValueError(f"an array of {ranges.dtype}")
        return ranges
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"--ranges {path}: expected a .npy file, such as lies beside vectors of a byte, got {error}"
        ) from error


def embed(options: Embed) -> None:
    """Writes one vector per text of a file."""
    check_suffix(options.output)
    ranges = None if options.ranges is None else _ranges(options.ranges)
    bounds = Bounds.of(options.bounds)
    texts = TextStream(
        options.input,
        options.column,
        options.distinct,
        split=options.split,
        bounds=bounds,
        form=form_of(options),
    )
    say(texts.scan().understood)
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
        prompt, named = encoding.prompt_in(model.prompts), ", ".join(sorted(model.prompts.named))
        said = f"each text is read with the prompt {prompt!r}" if prompt else "texts are read without a prompt"
        say(f"{said}; --prompt_name takes one of {named}")
    shard = None if options.shard is None else Shard.parse(options.shard)
    run = EmbeddingRun(
        model, texts, options.output, encoding, options.restart, with_ids=options.distinct, shard=shard
    )
    complete(run, became=f"written to {run.path}")
    if encoding.is_byte:
        whose = options.ranges or f"the first {CALIBRATION:,} texts' vectors"
        say(f"a byte's ranges are those of {whose}; they are in {run.ranges_path}")
    if options.distinct:
        say(f"which text each vector is of is in {ids_of(run.path)}")
