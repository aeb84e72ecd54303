"""Command ``embed``: writes one vector per text of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from contrastive_text.cli.commands import Embed
from contrastive_text.cli.files import text_stream
from contrastive_text.cli.models import complete, encoder_of
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message
from contrastive_text.inference.embedding_run import CALIBRATION, EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.vector_files import Array, Shard, check_output_path, ids_path


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
