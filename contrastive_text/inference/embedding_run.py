"""Encoding of a file of texts into a file of vectors. An interrupted run resumes after its last saved block."""

from __future__ import annotations

import errno
import hashlib
import io
import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from contrastive_text.core.errors import DiskError, InvalidValueError
from contrastive_text.core.machine import current_setting, describe_setting_change
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.disk import atomic_file, lock_output, remove_abandoned
from contrastive_text.core.storage.manifests import FileDigest, start_sha256
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import check_ranges, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    Array,
    Shard,
    VectorRecord,
    all_paths,
    check_output_path,
    differences,
    ids_path,
    mapped_blocks,
    ranges_path,
    write_blocks,
)

CALIBRATION = 1_000
"""Number of first texts whose vectors give the value ranges for int8 and uint8, if no ranges are given."""
_RESTART = "start again with --restart (restart=True)"
"""Advice for a file of vectors that can't be resumed."""


class UnfinishedVectors:
    """Unfinished file of vectors, which is filled block by block and can be resumed by another process.

    ``OUT.unfinished`` is a ``.npy`` file with all rows; the first ``done`` rows are filled.
    ``OUT.unfinished.json`` is its record, with the origin of the vectors and the SHA-256 of the filled rows. The
    record is replaced when a block is on the disk, so a killed process loses only its last block. The value
    ranges of int8 and uint8 are saved as ``OUT.unfinished.ranges.npy``.

    Args:
        path: Final path of the file, with a suffix that ``check_output_path`` accepts.
        made_of: Everything that the vectors depend on (model, texts, options), with values of JSON types.
        count: Number of vectors of the finished file.
        restart: Whether to discard the vectors of an earlier process.
        setting: Result of ``current_setting``; None for the setting of this process on the CPU.

    Attributes:
        done: Number of vectors on the disk.
        setting_difference: Differences between the current setting and the settings of the vectors on the
            disk, as text; empty if there are none.

    Raises:
        ValueError: The vectors on the disk are damaged, or were computed from other texts or options.
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
        *_, self._data, self._record_file, self._ranges, self._converted = all_paths(path)
        self._restart = restart
        self._reset()
        if not restart:
            self._resume()

    @property
    def truncated(self) -> int:
        """Number of encoded texts that were truncated to the model's length limit."""
        return 0 if self._record is None else self._record.truncated

    def _reset(self) -> None:
        self.done = 0
        self.setting_difference = ""
        self._record: VectorRecord | None = None
        self._settings: list[Mapping[str, str]] = [self.setting]
        self._digest = hashlib.sha256()
        self._ranges_digest: FileDigest | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the unfinished file against other processes, and resumes its vectors or removes them.

        Raises:
            ValueError: Another process is writing the file, or its vectors are damaged or have another origin.
        """
        with lock_output(self.path):
            remove_abandoned(self.path.parent)
            if self._restart or not self._resume():
                self.discard()
            self._restart = False
            yield

    def _resume(self) -> bool:
        """Checks the saved vectors of an earlier process and resumes after them. Returns False without any."""
        if not (self._record_file.exists() and self._data.exists()):
            self._reset()
            return False
        record = VectorRecord.read(self._data, _RESTART)
        if record == self._record:
            return True
        if difference := differences(record.made_of, self.made_of):
            raise InvalidValueError(
                f"{self._data}: expected vectors of these texts and options, got {difference}; use the texts and "
                f"options that the file was started with, or {_RESTART}"
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
                f"{self._data}: expected the vectors of its record, got changed ones ({damage}); {_RESTART}"
            )
        with self._data.open("rb") as file:
            np.lib.format.read_magic(file)
            shape, _, kind = np.lib.format.read_array_header_1_0(file)
            self.done = (record.vectors.size - file.tell()) // (math.prod(shape[1:]) * kind.itemsize)
        self._record, self._ranges_digest = record, record.ranges
        other_settings = [setting for setting in record.settings if setting != self.setting]
        self._settings = [*other_settings, self.setting]
        self.setting_difference = "; ".join(
            describe_setting_change(setting, self.setting) for setting in other_settings
        )
        return True

    def discard(self) -> None:
        """Deletes the unfinished vectors and starts again at the first text."""
        self._reset()
        self._remove()

    def _remove(self) -> None:
        # The record first: without it, no process resumes the other files.
        for path in (self._record_file, self._data, self._converted, self._ranges):
            path.unlink(missing_ok=True)

    @property
    def ranges(self) -> Array | None:
        """Value ranges of the int8 or uint8 vectors on the disk, (2, D); None if there are no such vectors."""
        return np.load(self._ranges) if self.done and self._ranges_digest is not None else None

    def save_ranges(self, ranges: Array) -> None:
        """Saves the value ranges of int8 or uint8 vectors, (2, D), for a resumed run and for the final file."""
        with atomic_file(self._ranges) as file:
            np.save(file, ranges)
        self._ranges_digest = FileDigest.of(self._ranges)

    def append(self, vectors: Array, truncated: int) -> None:
        """Appends vectors, (n, D), to the unfinished file, and writes their record.

        Returns when the disk has stored them (fsync).

        Args:
            vectors: Vectors, with the same D and dtype in every call.
            truncated: Number of truncated texts among all texts up to here.

        Raises:
            OSError: The disk is full, or writing fails. The vectors of earlier calls remain.
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
                self._data.unlink(missing_ok=True)  # don't follow a link of that name
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
            expected, todo = ("room for", "make room") if full else ("a disk that stores", "fix the disk")
            reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise DiskError(
                f"{self._data}: expected {expected} {self.count:,} vectors, got {reason.strerror or reason}; "
                f"{todo} and run the same again, which resumes after the first {self.done:,}"
            ) from error
        self.done += len(rows)
        self._record, self._digest = record, digest

    def finish(self, ids: Array | None = None) -> tuple[int, ...]:
        """Converts the unfinished file of vectors to its final name and format, and writes its record.

        Older vectors of that name are removed when all new vectors are on the disk. Then the files of ranges, ids
        and record are written. The vectors are renamed last, so that a record never describes other vectors.

        Args:
            ids: Sorted text ids, and the row of each id's vector, (2, N), for the table ``OUT.ids.npy``; None for
                no table.

        Returns:
            Shape of the vectors.
        """
        assert self._record is not None
        assert self.done == self.count
        shape: tuple[int, ...] = np.load(self._data, mmap_mode="r").shape
        ready, digest = self._data, self._record.vectors
        if self.path.suffix != ".npy":
            ready = self._converted
            with atomic_file(ready) as file:
                write_blocks(file, self.path.suffix, mapped_blocks(self._data))
            digest = FileDigest.of(ready)
        self.path.unlink(missing_ok=True)
        if self._ranges_digest is None:
            ranges_path(self.path).unlink(missing_ok=True)
        else:
            with atomic_file(ranges_path(self.path)) as file:
                file.write(self._ranges.read_bytes())
        ids_path(self.path).unlink(missing_ok=True)
        if ids is not None:
            with atomic_file(ids_path(self.path)) as file:
                np.save(file, ids)
        ids_digest = None if ids is None else FileDigest.of(ids_path(self.path))
        replace(self._record, vectors=digest, ids=ids_digest).write(self.path)
        ready.replace(self.path)
        self._remove()
        return shape


def finished_rows(
    path: Path, origin: Mapping[str, object], count: int, blocks: Callable[[int], Iterator[tuple[Array, int]]]
) -> Array:
    """Returns the rows of a working file, (N, D), memory-mapped. Computes rows that aren't on the disk yet.

    Args:
        path: File of the rows, ``.npy``.
        origin: Everything that the rows depend on, with values of JSON types.
        count: Number of rows.
        blocks: Function from the number of rows on the disk to the further blocks of rows. Each block comes with
            the number of texts that were truncated since the first of these blocks.

    Raises:
        OSError: The disk is full.
        ValueError: Unfinished rows have another origin, or another process is writing them.
    """
    record = path.exists() and VectorRecord.read(path, _RESTART)
    if not record or differences(record.made_of, {**origin, "count": count}) or record.damage(path):
        rows = UnfinishedVectors(path, origin, count)
        with rows.locked():
            before = rows.truncated
            for block, truncated in blocks(rows.done):
                rows.append(block, before + truncated)
            rows.finish()
    content: Array = np.load(path, mmap_mode="r")
    return content


def _header(count: int, rows: Array) -> bytes:
    """Returns the header of a ``.npy`` file with ``count`` rows of the shape and dtype of ``rows``."""
    file = io.BytesIO()
    kind = np.lib.format.dtype_to_descr(rows.dtype)
    shape = (count, *rows.shape[1:])
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


class EmbeddingRun:
    """Encodes a file of texts into a file of vectors. Resumes an interrupted run of the same model and options.

    Texts are encoded and saved block by block; memory holds one block. With the same processor, number of threads
    and library versions, the final bytes don't depend on interruptions. ``int8`` and ``uint8`` need value ranges.
    If ``encoding`` has no ranges, they are computed from the first 1,000 texts. They are saved next to the output
    as ``OUT.ranges.npy``.

    Args:
        model: The model.
        texts: The texts. They are first read once for a digest, unless ``texts.summary`` is set.
        path: Output file: ``.npy``, ``.tsv`` or ``.parquet``.
        encoding: Encoding options; None for the model's own float32 vectors.
        restart: Whether to discard an unfinished output.
        with_ids: Whether to save a table of text ids as ``OUT.ids.npy``, with which ``TextVectors`` looks up the
            vector of a text. The stream must be ``distinct``.
        shard: Part of the texts to encode, into its own file (``shard.path(path)``); None for all texts. Readers
            of ``path`` read all parts as one file. ``int8`` and ``uint8`` then need given ranges.

    Raises:
        FileNotFoundError: The file of texts, or the folder of the output, doesn't exist.
        ImportError: The output is ``.parquet``, and pyarrow isn't installed.
        ValueError: A file can't be read or written, ranges don't fit, or an unfinished output has other texts,
            another model or other options.

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
        check_output_path(path)
        self.model = model
        self.texts = texts
        self.path = path
        self.shard = shard
        self.encoding = encoding or Encoding()
        self.with_ids = with_ids
        if self.encoding.ranges is not None:
            if not self.encoding.is_byte:
                raise InvalidValueError(
                    f"ranges: expected precision int8 or uint8, got {self.encoding.precision}; remove the ranges"
                )
            width = self.encoding.truncate_dim or model.truncate_dim or model.features
            check_ranges(self.encoding.ranges, width, self.encoding.precision)
        elif self.encoding.is_byte and shard is not None:
            raise InvalidValueError(
                f"ranges: expected ranges for {self.encoding.precision} with a shard, equal in all parts, got no "
                "ranges; encode some 1,000 of the texts alone and give their OUT.ranges.npy"
            )
        self.summary = texts.summary or texts.scan()
        self._rows = range(self.summary.texts) if shard is None else shard.rows(self.summary.texts)
        setting = current_setting(self._devices()[0])
        self._vectors = UnfinishedVectors(path, self._origin(), len(self._rows), restart, setting)

    @property
    def done(self) -> int:
        """Number of encoded texts, whose vectors are on the disk."""
        return self._vectors.done

    @property
    def count(self) -> int:
        """Number of vectors in the finished file."""
        return self._vectors.count

    @property
    def truncated(self) -> int:
        """Number of encoded texts that were truncated to the model's length limit."""
        return self._vectors.truncated

    def _devices(self) -> list[str]:
        return list(self.encoding.devices or [str(self.encoding.device or self.model.device)])

    def _origin(self) -> dict[str, object]:
        """Returns the origin of a file of vectors: model, texts and options, all that its bytes depend on."""
        ranges = f"of the first {CALIBRATION:,} texts"
        if self.encoding.ranges is not None:
            content = np.ascontiguousarray(self.encoding.ranges, dtype=np.float32).tobytes()
            ranges = hashlib.blake2b(content, digest_size=16).hexdigest()
        origin = {
            "model": self.model.identity,
            "texts": self.summary.digest,
            **{field.name: getattr(self.encoding, field.name) for field in fields(self.encoding)},
            "device": sorted({torch.device(name).type for name in self._devices()}),
            "ranges": ranges if self.encoding.is_byte else None,
            "prompt": self.encoding.resolve_prompt(self.model.prompts) or None,
            "prompt_name": None,
            "kind": self.encoding.resolve_kind(self.model.encoder),
            "with_ids": self.with_ids or None,
            "shard": None if self.shard is None else str(self.shard),
        }
        optional = ("prompt", "prompt_name", "kind", "ranges", "max_length", "with_ids", "shard")
        unset = [name for name in optional if origin[name] is None]
        return {name: value for name, value in origin.items() if name not in unset}

    @property
    def ranges_path(self) -> Path:
        """Path of the file of value ranges, which is written only for ``int8`` and ``uint8``."""
        return ranges_path(self.path)

    def finish(self, show_progress_bar: bool = False) -> tuple[int, ...]:
        """Encodes the remaining texts of the run and writes the finished file.

        Returns:
            Shape of all vectors.

        Raises:
            OSError: The disk is full.
            ValueError: A vector is not finite, the texts changed during the run, or another process is writing
                the file.

        Warns:
            UserWarning: The existing vectors were computed on another machine, or with other versions or threads.
        """
        with self._vectors.locked():
            if difference := self._vectors.setting_difference:
                warnings.warn(
                    f"{self.path}: its first vectors were computed under another setting, so the last bits of "
                    f"the remaining vectors may differ: {difference}",
                    stacklevel=2,
                )
            truncated = self.truncated
            for vectors in self._blocks(show_progress_bar):
                self._vectors.append(vectors, truncated + self.model.truncated)
            if self.texts.summary is None or self.texts.summary.digest != self.summary.digest:
                self._vectors.discard()  # it is unknown which vectors belong to the earlier texts
                raise InvalidValueError(
                    f"{self.texts.path}: expected the same texts as at the start of the run, got a changed file; "
                    "run the command again"
                )
            table = None
            if self.with_ids:  # texts with the same id share the vector of the first, as in a batch
                texts = islice(self.texts, self._rows.start, self._rows.stop)
                ids = np.fromiter(map(text_id, texts), np.int64)
                table = np.stack(np.unique(ids, return_index=True)).astype(np.int64)
            return self._vectors.finish(table)

    def _blocks(self, show_progress_bar: bool) -> Iterator[Array]:
        encoding = self.encoding
        if encoding.is_byte:
            encoding = replace(encoding, ranges=self._saved_ranges())
        texts = _RemainingTexts(self.texts, self._rows[self.done :])
        return map(np.asarray, self.model.encode_blocks(texts, encoding, show_progress_bar))

    def _saved_ranges(self) -> Array:
        """Returns the value ranges for int8 or uint8. Computes and saves them if the unfinished file has none."""
        if (saved := self._vectors.ranges) is not None:
            return saved
        ranges = self.encoding.ranges
        if ranges is None:
            texts = list(islice(self.texts, CALIBRATION))
            encoding = replace(self.encoding, block_size=CALIBRATION, precision="float32")
            vectors = next(self.model.encode_blocks(texts, encoding), np.empty((0, 0)))
            ranges = value_ranges(torch.as_tensor(vectors))
        check_ranges(ranges, ranges.shape[-1], self.encoding.precision)
        self._vectors.save_ranges(np.asarray(ranges))
        return np.asarray(ranges)


class _RemainingTexts:
    """Texts of the run without a vector yet. Iteration also reads all texts after them, for the file's digest."""

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
