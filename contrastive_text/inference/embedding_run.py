"""Embedding of a file of texts into a file of vectors, which resumes after a kill."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from contrastive_text.core.errors import DiskError, InvalidValueError
from contrastive_text.core.random import text_id
from contrastive_text.core.setting import current_setting, other_setting
from contrastive_text.core.storage.disk import alone_with, remove_abandoned, replacing
from contrastive_text.core.storage.manifests import FileDigest, start_sha256
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import check_ranges, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    Array,
    Shard,
    VectorRecord,
    check_suffix,
    differences,
    files_of,
    ids_of,
    mapped_blocks,
    ranges_of,
    write_blocks,
)

CALIBRATION = 1_000
"""Number of texts whose vectors give the ranges of a byte if no ranges are given."""
_ANEW = "begin anew with --restart (restart=True)"


class UnfinishedVectors:
    """A file of vectors that grows block by block next to its final name, and resumes from its record.

    ``OUT.unfinished`` is a ``.npy`` file of all rows, of which the first are filled. ``OUT.unfinished.json`` is
    its record, with the origin of the vectors and the SHA-256 of the filled rows. The record is replaced after
    each block is on the disk, so a killed process loses only its last block. The ranges of bytes are kept as
    ``OUT.unfinished.ranges.npy``.

    Args:
        path: The final name, which ``check_suffix`` accepts.
        made_of: Everything that the vectors depend on, as JSON's types.
        count: Number of vectors.
        restart: Whether to discard the vectors of an earlier process.
        setting: Result of ``current_setting``; None for that of this processor.

    Attributes:
        done: Number of vectors on the disk. other_setting: Differences between this setting and the settings of
        the vectors on the disk; empty if equal.

    Raises:
        ValueError: The vectors on the disk have another origin, or are damaged.
    """

    def __init__(
        self,
        path: Path,
        made_of: Mapping[str, object],
        count: int,
        restart: bool = False,
        setting: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.setting = dict(setting or current_setting())
        self.made_of = {**made_of, "count": count}
        self.count = count
        *_, self._data, self._record_file, self._ranges, self._converted = files_of(path)
        self._restart = restart
        self._forget()
        if not restart:
            self._resume()

    @property
    def truncated(self) -> int:
        """Number of the texts so far that were cut to the model's limit."""
        return 0 if self._record is None else self._record.truncated

    def _forget(self) -> None:
        self.done = 0
        self.other_setting = ""
        self._record: VectorRecord | None = None
        self._settings: list[Mapping[str, str]] = [self.setting]
        self._digest = hashlib.sha256()
        self._ranges_digest: FileDigest | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other processes from writing the file during the block, which writes it.

        Raises:
            ValueError: Another process is writing the file, or its vectors have another origin or are damaged.
        """
        with alone_with(self.path):
            remove_abandoned(self.path.parent)
            if self._restart or not self._resume():
                self.discard()
            self._restart = False
            yield

    def _resume(self) -> bool:
        """Reads the record and the vectors of an earlier process. Returns False if there are none."""
        if not (self._record_file.exists() and self._data.exists()):
            self._forget()
            return False
        record = VectorRecord.read(self._data, _ANEW)
        if record == self._record:
            return True
        if said := differences(record.made_of, self.made_of):
            raise InvalidValueError(
                f"{self._data}: expected vectors of these texts and options, got {said}; give what it was begun "
                f"with, or {_ANEW}"
            )
        self._digest = hashlib.sha256()
        damage = "a link" if self._data.is_symlink() else None
        if damage is None:
            self._digest = start_sha256(self._data, record.vectors.size)
            damage = None if self._digest.hexdigest() == record.vectors.sha256 else "changed bytes"
        if damage is None and record.ranges is not None:
            damage = record.ranges.damage(self._ranges)
            damage = damage and f"{self._ranges}: {damage}"
        if damage is not None:
            raise InvalidValueError(
                f"{self._data}: expected the vectors as they were written, got changed ones ({damage}); {_ANEW}"
            )
        with self._data.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, kind = np.lib.format.read_array_header_1_0(file)
            self.done = (record.vectors.size - file.tell()) // (math.prod(shape[1:]) * kind.itemsize)
        self._record, self._ranges_digest = record, record.ranges
        others = [each for each in record.settings if each != self.setting]
        self._settings = [*others, self.setting]
        self.other_setting = "; ".join(other_setting(each, self.setting) for each in others)
        return True

    def discard(self) -> None:
        """Forgets and removes the unfinished vectors."""
        self._forget()
        self._remove()

    def _remove(self) -> None:
        # Without the record no other file counts.
        for path in (self._record_file, self._data, self._converted, self._ranges):
            path.unlink(missing_ok=True)

    @property
    def ranges(self) -> Array | None:
        """Ranges of the vectors on the disk; None if there are none."""
        return np.load(self._ranges) if self.done and self._ranges_digest is not None else None

    def keep_ranges(self, ranges: Array) -> None:
        """Saves the ranges of the vectors' bytes, (2, D), for later processes and for the final file."""
        with replacing(self._ranges) as file:
            np.save(file, ranges)
        self._ranges_digest = FileDigest.of(self._ranges)

    def append(self, vectors: Array, truncated: int) -> None:
        """Writes the next vectors, (n, D), and returns when they would survive a loss of power.

        Args:
            vectors: Vectors of the same D and type in every call.
            truncated: Number of all texts so far that were cut.

        Raises:
            OSError: The disk is full, or fails. The vectors before stay.
        """
        rows = np.ascontiguousarray(vectors)
        assert self.done + len(rows) <= self.count
        header, width = _header(self.count, rows), rows[:1].nbytes
        digest = self._digest.copy()
        try:
            if self.done == 0:
                size, free = self.count * width, shutil.disk_usage(self.path.parent).free
                if free < size:
                    raise OSError(errno.ENOSPC, f"{free / 1e9:.1f} GB free of {size / 1e9:.1f} GB")
                self._data.unlink(missing_ok=True)  # a link of that name is not followed
                with self._data.open("xb") as file:
                    file.write(header)
                    file.truncate(len(header) + size)
                digest = hashlib.sha256(header)
            with self._data.open("rb+") as file:
                file.seek(len(header) + self.done * width)
                file.write(rows.data)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            digest.update(rows.reshape(-1).view(np.uint8).data)
            vectors_digest = FileDigest(size, digest.hexdigest())
            record = VectorRecord(
                self.made_of, truncated, vectors_digest, self._settings, ranges=self._ranges_digest
            )
            record.write(self._data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            expected, todo = ("room for", "make room") if full else ("a disk that takes", "put that right")
            reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise DiskError(
                f"{self._data}: expected {expected} {self.count:,} vectors, got {reason.strerror or reason}; "
                f"{todo} and do the same again: it goes on after the first {self.done:,}"
            ) from error
        self.done += len(rows)
        self._record, self._digest = record, digest

    def finish(self, ids: Array | None = None) -> tuple[int, ...]:
        """Gives the vectors their final name and format, with their record as ``OUT.json``.

        The older vectors of that name are removed when all of the new ones are on the disk. Then ranges, ids and
        record take their places, and the vectors follow in one step: they are never next to a record of others.

        Args:
            ids: Text ids in rising order, and the place of the vector of each, (2, N), stored next to the
                vectors; None for no table.

        Returns:
            Shape of the vectors.
        """
        assert self._record is not None
        assert self.done == self.count
        shape: tuple[int, ...] = np.load(self._data, mmap_mode="r").shape
        ready, digest = self._data, self._record.vectors
        if self.path.suffix != ".npy":
            ready = self._converted
            with replacing(ready) as file:
                write_blocks(file, self.path.suffix, mapped_blocks(self._data))
            digest = FileDigest.of(ready)
        self.path.unlink(missing_ok=True)
        if self._ranges_digest is None:
            ranges_of(self.path).unlink(missing_ok=True)
        else:
            with replacing(ranges_of(self.path)) as file:
                file.write(self._ranges.read_bytes())
        ids_of(self.path).unlink(missing_ok=True)
        if ids is not None:
            with replacing(ids_of(self.path)) as file:
                np.save(file, ids)
        ids_digest = None if ids is None else FileDigest.of(ids_of(self.path))
        replace(self._record, vectors=digest, ids=ids_digest).write(self.path)
        ready.replace(self.path)
        self._remove()
        return shape


def _header(count: int, rows: Array) -> bytes:
    """Returns the first bytes of a ``.npy`` file of ``count`` rows like these."""
    file = io.BytesIO()
    kind = np.lib.format.dtype_to_descr(rows.dtype)
    shape = (count, *rows.shape[1:])
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


class EmbeddingRun:
    """Writes the vectors of a file's texts, and resumes an interrupted run of the same texts, model and options.

    Blocks of texts are encoded and saved one after the other; memory holds one. On one processor, with one
    number of threads and one set of versions, the final bytes don't depend on interruptions. A byte for each
    feature needs ranges. If ``encoding`` has none, they are those of the first texts' vectors. They are stored
    next to the output as ``OUT.ranges.npy``.

    Args:
        model: The model.
        texts: The texts. They are read once more beforehand, unless their ``summary`` is there.
        path: ``.npy``, ``.tsv`` or ``.parquet``.
        encoding: None for float32 vectors as the model gives them.
        restart: Whether to discard an unfinished output.
        with_ids: Whether to store a table of text ids next to the output as ``OUT.ids.npy``, by which
            ``TextVectors`` finds the vector of a text; for a ``distinct`` stream.
        shard: The only part of the texts to encode, into its own file (``shard.path(path)``); None for all.
            Readers of ``path`` read all parts as one file. A byte for each feature then needs ranges.

    Raises:
        FileNotFoundError: The file of texts, or the folder to write to, doesn't exist.
        ImportError: ``.parquet`` without pyarrow.
        ValueError: A file that can't be read or written, ranges that don't fit, or an unfinished output of other
            texts, model or options.

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
        """Number of vectors on the disk."""
        return self._vectors.done

    @property
    def count(self) -> int:
        """Number of vectors when the run has finished."""
        return self._vectors.count

    @property
    def truncated(self) -> int:
        """Number of the texts so far that were cut to the model's limit."""
        return self._vectors.truncated

    def _devices(self) -> list[str]:
        return list(self.encoding.devices or [str(self.encoding.device or self.model.device)])

    def _made_of(self) -> dict[str, object]:
        """Returns everything that the bytes depend on; of devices the kinds, because all GPUs compute alike."""
        given = self.encoding.ranges
        ranges = f"of the first {CALIBRATION:,} texts"
        if given is not None:
            content = np.ascontiguousarray(given, dtype=np.float32).tobytes()
            ranges = hashlib.blake2b(content, digest_size=16).hexdigest()
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
        """Path of the final file of ranges, which exists only for vectors of bytes."""
        return ranges_of(self.path)

    def finish(self, show_progress_bar: bool = False) -> tuple[int, ...]:
        """Encodes the remaining texts and gives the file its final name.

        Returns:
            Shape of all vectors.

        Raises:
            OSError: The disk is full.
            ValueError: A vector that is not finite, texts that changed during the run, or another process that is
                writing the file.
        """
        with self._vectors.alone():
            if differs := self._vectors.other_setting:
                warnings.warn(
                    f"{self.path}: what is there was made under another setting, so the last bits of what "
                    f"follows may differ: {differs}",
                    stacklevel=2,
                )
            before = self.truncated
            for vectors in self._blocks(show_progress_bar):
                self._vectors.append(vectors, before + self.model.truncated)
            if self.texts.summary is None or self.texts.summary.digest != self.summary.digest:
                self._vectors.discard()  # nobody knows which vectors are of the former texts
                raise InvalidValueError(
                    f"{self.texts.path}: expected the texts that were there at the start, got others: the file "
                    "was changed while it was encoded; do it once more"
                )
            table = None
            if self.with_ids:  # texts with the same id share the vector of the first, as in a batch
                own = islice(self.texts, self._rows.start, self._rows.stop)
                ids = np.fromiter(map(text_id, own), np.int64)
                table = np.stack(np.unique(ids, return_index=True)).astype(np.int64)
            return self._vectors.finish(table)

    def _blocks(self, show_progress_bar: bool) -> Iterator[Array]:
        encoding = self.encoding
        if encoding.is_byte:
            encoding = replace(encoding, ranges=self._saved_ranges())
        rest = _Rest(self.texts, self._rows[self.done :])
        return map(np.asarray, self.model.encode_blocks(rest, encoding, show_progress_bar))

    def _saved_ranges(self) -> Array:
        """Returns the ranges, and saves new ones next to the vectors."""
        if (saved := self._vectors.ranges) is not None:
            return saved
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
    """Texts without a vector. Iteration also reads the texts after them, for the digest of all."""

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
