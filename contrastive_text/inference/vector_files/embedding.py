"""From a file of texts to a file of vectors, however long, with a kill in between or without."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.setting import current_setting
from contrastive_text.data.files.streaming import TextStream
from contrastive_text.inference.blocks import BLOCK_SIZE
from contrastive_text.inference.quantization import Precision, check_precision, check_ranges, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files.formats import Array, check_suffix, ranges_of
from contrastive_text.inference.vector_files.unfinished import UnfinishedVectors

CALIBRATION = 1_000
"""Texts whose vectors give the ranges of a byte where none are given."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How texts become vectors; each option as for ``SentenceEncoder.encode_blocks``.

    Args:
        block_size: Texts that are encoded, and then saved, together.
        batch_size: Texts at once.
        normalize_embeddings: Whether to give vectors of unit length.
        truncate_dim: Features to keep, the first ones; None for the model's own number, or all.
        precision: ``float32``, or a byte or a bit for each feature.
        device: Where to encode, or a list; None for where the model is.
    """

    block_size: int = BLOCK_SIZE
    batch_size: int = 64
    normalize_embeddings: bool = False
    truncate_dim: int | None = None
    precision: Precision = "float32"
    device: str | Sequence[str] | None = None


class EmbeddingRun:
    """Writes the vectors of a file's texts, and goes on where an earlier run for the same was broken off.

    Blocks of texts are encoded and saved one after the other; memory holds one. On one processor, with one number
    of threads and one set of versions, the bytes at the end are the same however often the run was broken off. A
    byte for each feature needs ranges, which without ``ranges`` are those of the first texts' vectors; they lie
    beside the output as ``OUT.ranges.npy``.

    Args:
        model: The encoder.
        texts: What to encode; read once more beforehand, unless its ``summary`` is there.
        path: ``.npy``, ``.tsv`` or ``.parquet``.
        encoding: None for float32 vectors as the model gives them.
        ranges: Smallest and largest value of each feature, (2, D), for ``int8`` and ``uint8``.
        restart: Whether to throw away what an earlier run has left.

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
        ranges: Array | None = None,
        restart: bool = False,
    ) -> None:
        check_suffix(path)
        self.model = model
        self.texts = texts
        self.path = path
        self.encoding = encoding or Encoding()
        self.ranges = ranges
        check_precision(self.encoding.precision)
        if ranges is not None and not self.is_byte:
            raise InvalidValueError(
                f"ranges: expected int8 or uint8 for them, got {self.encoding.precision}; leave them out"
            )
        if ranges is not None:
            width = self.encoding.truncate_dim or model.truncate_dim or model.features
            check_ranges(ranges, width, self.encoding.precision)
        self.summary = texts.summary or texts.scan()
        setting = current_setting(self._devices()[0])
        self._vectors = UnfinishedVectors(path, self._made_of(), self.summary.texts, restart, setting)

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
        device = self.encoding.device
        return list(device) if isinstance(device, list | tuple) else [str(device or self.model.device)]

    def _made_of(self) -> dict[str, object]:
        """Returns all that the bytes depend on; of devices the kinds, for one GPU computes as the next."""
        made_of = {
            "model": self.model.identity,
            "texts": self.summary.digest,
            **asdict(self.encoding),
            "device": sorted({torch.device(name).type for name in self._devices()}),
        }
        if self.is_byte:
            given = self.ranges
            made_of["ranges"] = (
                f"of the first {CALIBRATION:,} texts"
                if given is None
                else blake2b(np.ascontiguousarray(given, dtype=np.float32).data, digest_size=16).hexdigest()
            )
        return made_of

    @property
    def is_byte(self) -> bool:
        """Whether there are ranges."""
        return self.encoding.precision in ("int8", "uint8")

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
            if self.done + len(vectors) > self.count:
                raise self._changed()
            self._vectors.append(vectors, before + self.model.truncated)
        if self.texts.summary is None or self.texts.summary.digest != self.summary.digest:
            raise self._changed()
        return self._vectors.finish()

    def _changed(self) -> ValueError:
        """Throws the vectors away, for nobody knows which of them are of the texts that there were."""
        self._vectors.discard()
        return InvalidValueError(
            f"{self.texts.path}: expected the texts that were there at the start, got others: the file was "
            "changed while it was encoded; do it once more"
        )

    def _blocks(self, show_progress_bar: bool) -> Iterator[Array]:
        options = asdict(self.encoding)
        if self.is_byte:
            options["ranges"] = self._known_ranges()
        rest = _Rest(self.texts, self.done, self.count)
        return map(np.asarray, self.model.encode_blocks(rest, show_progress_bar=show_progress_bar, **options))

    def _known_ranges(self) -> Array:
        """Returns the ranges, which from then on lie beside the vectors."""
        if (kept := self._vectors.ranges) is not None:
            return kept
        ranges = self.ranges
        if ranges is None:
            options = {name: value for name, value in asdict(self.encoding).items() if name != "block_size"}
            few = list(islice(self.texts, CALIBRATION))
            ranges = value_ranges(self.model.encode(few, **{**options, "precision": "float32"})).numpy()
        self._vectors.keep_ranges(ranges)
        return np.asarray(ranges)


class _Rest:
    """The texts behind those that are done."""

    def __init__(self, texts: TextStream, done: int, count: int) -> None:
        self._texts = texts
        self._done = done
        self._count = count

    def __len__(self) -> int:
        return self._count - self._done

    def __iter__(self) -> Iterator[str]:
        return islice(self._texts, self._done, None)
