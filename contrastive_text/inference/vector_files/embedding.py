"""From a file of texts to a file of vectors, however long, with a kill in between or without."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import fields, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.setting import current_setting
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import check_ranges, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files.formats import Array, check_suffix, ranges_of
from contrastive_text.inference.vector_files.shards import Shard
from contrastive_text.inference.vector_files.text_ids import table_of
from contrastive_text.inference.vector_files.unfinished import UnfinishedVectors

CALIBRATION = 1_000
"""Texts whose vectors give the ranges of a byte where none are given."""


class EmbeddingRun:
    """Writes the vectors of a file's texts, and goes on where an earlier run for the same was broken off.

    Blocks of texts are encoded and saved one after the other; memory holds one. On one processor, with one number
    of threads and one set of versions, the bytes at the end are the same however often the run was broken off. A
    byte for each feature needs ranges, which without any in ``encoding`` are those of the first texts' vectors;
    they lie beside the output as ``OUT.ranges.npy``.

    Args:
        model: The encoder.
        texts: What to encode; read once more beforehand, unless its ``summary`` is there.
        path: ``.npy``, ``.tsv`` or ``.parquet``.
        encoding: None for float32 vectors as the model gives them.
        restart: Whether to throw away what an earlier run has left.
        with_ids: Whether a table of text ids, by which the vector of a text is found (``TextVectors``), comes to
            lie beside the output as ``OUT.ids.npy``; of a ``distinct`` stream.
        shard: The only part of the texts to encode, into a file of its own (``shard.path(path)``); None for all.
            Whatever reads ``path`` reads all parts as one. A byte for each feature then needs ranges.

    Raises:
        FileNotFoundError: No such file of texts, or no such folder to write to.
        ImportError: ``.parquet`` without pyarrow.
        ValueError: What can't be read or written, ranges that don't fit, an unfinished output of other texts,
            model or options, or one that another process is writing.

    Example:
        >>> run = EmbeddingRun(model, TextStream("texts.txt"), Path("vectors.npy"))  # doctest: +SKIP
        >>> run.done, run.count  # doctest: +SKIP
        (16384, 1000000)
        >>> run.finish()  # doctest: +SKIP
    """

    def __init__(
        self,
        model: SentenceEncoder,
        texts: TextStream,
        path: Path,
        encoding: Encoding | None = None,
        restart: bool = False,
        with_ids: bool = False,
        shard: Shard | None = None,
    ) -> None:
        path = path if shard is None else shard.path(path)
        check_suffix(path)
        self.model = model
        self.texts = texts
        self.path = path
        self.shard = shard
        self.encoding = encoding or Encoding()
        self.with_ids = with_ids
        if self.encoding.ranges is not None:
            if not self.encoding.is_byte:
                raise InvalidValueError(
                    f"ranges: expected int8 or uint8 for them, got {self.encoding.precision}; leave them out"
                )
            width = self.encoding.truncate_dim or model.truncate_dim or model.features
            check_ranges(self.encoding.ranges, width, self.encoding.precision)
        elif self.encoding.is_byte and shard is not None:
            raise InvalidValueError(
                f"ranges: expected some for {self.encoding.precision} with a shard, for all parts the same, got "
                "none; encode some 1,000 of the texts alone and give the ranges that then lie beside them"
            )
        self.summary = texts.summary or texts.scan()
        self._rows = range(self.summary.texts) if shard is None else shard.rows(self.summary.texts)
        setting = current_setting(self._devices()[0])
        self._vectors = UnfinishedVectors(path, self._made_of(), len(self._rows), restart, setting)

    @property
    def done(self) -> int:
        """Number of vectors that are there."""
        return self._vectors.done

    @property
    def count(self) -> int:
        """Number of vectors that there will be."""
        return self._vectors.count

    @property
    def truncated(self) -> int:
        """How many of those that are there are of texts that were cut to the model's limit."""
        return self._vectors.truncated

    def _devices(self) -> list[str]:
        return list(self.encoding.devices or [str(self.encoding.device or self.model.device)])

    def _made_of(self) -> dict[str, object]:
        """Returns all that the bytes depend on; of devices the kinds, for one GPU computes as the next."""
        given = self.encoding.ranges
        ranges = f"of the first {CALIBRATION:,} texts"
        if given is not None:
            ranges = blake2b(np.ascontiguousarray(given, dtype=np.float32).data, digest_size=16).hexdigest()
        made_of = {
            "model": self.model.identity,
            "texts": self.summary.digest,
            **{each.name: getattr(self.encoding, each.name) for each in fields(self.encoding)},
            "device": sorted({torch.device(name).type for name in self._devices()}),
            "ranges": ranges if self.encoding.is_byte else None,
            "prompt": self.encoding.prompt_in(self.model.prompts) or None,
            "prompt_name": None,
            "with_ids": self.with_ids or None,
            "shard": None if self.shard is None else str(self.shard),
        }
        optional = ("prompt", "prompt_name", "ranges", "max_length", "with_ids", "shard")
        without = [name for name in optional if made_of[name] is None]
        return {name: value for name, value in made_of.items() if name not in without}

    @property
    def ranges_path(self) -> Path:
        """Where the ranges will be, if there are any."""
        return ranges_of(self.path)

    def finish(self, show_progress_bar: bool = False) -> tuple[int, ...]:
        """Encodes what is left and gives the file its name.

        Returns:
            The shape of all vectors.

        Raises:
            OSError: No room on the disk.
            ValueError: A vector that is not finite, texts that were changed meanwhile, or, where an earlier call
                was broken off, another process that has gone on since.
        """
        self._vectors.open()
        try:
            return self._finish(show_progress_bar)
        finally:
            self._vectors.close()

    def _finish(self, show_progress_bar: bool) -> tuple[int, ...]:
        if differs := self._vectors.other_setting:
            warnings.warn(
                f"{self.path}: what is there was made under another setting, so the last bits of what follows "
                f"may differ: {differs}",
                stacklevel=3,
            )
        before = self.truncated
        for vectors in self._blocks(show_progress_bar):
            self._vectors.append(vectors, before + self.model.truncated)
        if self.texts.summary is None or self.texts.summary.digest != self.summary.digest:
            raise self._changed()
        own = islice(self.texts, self._rows.start, self._rows.stop)
        return self._vectors.finish(table_of(own) if self.with_ids else None)

    def _changed(self) -> ValueError:
        """Throws the vectors away, for nobody knows which of them are of the texts that there were."""
        self._vectors.discard()
        return InvalidValueError(
            f"{self.texts.path}: expected the texts that were there at the start, got others: the file was "
            "changed while it was encoded; do it once more"
        )

    def _blocks(self, show_progress_bar: bool) -> Iterator[Array]:
        encoding = self.encoding
        if encoding.is_byte:
            encoding = replace(encoding, ranges=self._known_ranges())
        rest = _Rest(self.texts, self._rows[self.done :])
        return map(np.asarray, self.model.encode_blocks(rest, encoding, show_progress_bar))

    def _known_ranges(self) -> Array:
        """Returns the ranges, which from then on lie beside the vectors."""
        if (kept := self._vectors.ranges) is not None:
            return kept
        ranges = self.encoding.ranges
        if ranges is None:
            few = list(islice(self.texts, CALIBRATION))
            encoding = replace(self.encoding, block_size=CALIBRATION, precision="float32")
            ranges = value_ranges(
                torch.as_tensor(next(self.model.encode_blocks(few, encoding), np.empty((0, 0))))
            )
        check_ranges(ranges, ranges.shape[-1], self.encoding.precision)
        self._vectors.keep_ranges(np.asarray(ranges))
        return np.asarray(ranges)


class _Rest:
    """The texts that are not done; what follows them in the file is read too, for the digest of all."""

    def __init__(self, texts: TextStream, rows: range) -> None:
        self._texts = texts
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        texts = iter(self._texts)
        yield from islice(texts, self._rows.start, self._rows.stop)
        for _ in texts:
            pass
