"""Vectors on their way to a file: what is on the disk is kept, whatever ends the process."""

from __future__ import annotations

import errno
import io
import os
import shutil
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from contrastive_text.core.errors import DiskError, InvalidValueError
from contrastive_text.core.setting import current_setting, other_setting
from contrastive_text.core.storage.disk import alone_with, remove_abandoned, replacing
from contrastive_text.core.storage.manifests import FileDigest, GrowingDigest
from contrastive_text.inference.vector_files.formats import (
    Array,
    files_of,
    ids_of,
    mapped_blocks,
    ranges_of,
    write_blocks,
)
from contrastive_text.inference.vector_files.records import VectorRecord

_DIGESTS = {"model": "another model", "texts": "other texts"}
"""What is known by a digest, which tells nobody anything -> how a difference is called."""

_ANEW = "begin anew with --restart (restart=True)"


class UnfinishedVectors:
    """A file of vectors that grows block by block beside its final name, and is taken up again by its record.

    ``OUT.unfinished`` is the ``.npy`` file of all rows, of which the first ones are filled; how many, and of what
    they are made and the digest of what is filled, is in ``OUT.unfinished.json``, which is replaced after each
    block that is on the disk. So a process that is killed loses the block at which it was. The ranges of bytes
    are kept likewise, as ``OUT.unfinished.ranges.npy``. A lock on the final name keeps other processes away.

    Args:
        path: The final name, as ``check_suffix`` takes it.
        made_of: All that the vectors depend on, as JSON's types.
        count: Number of vectors.
        restart: Whether what is there is thrown away.
        setting: As ``current_setting`` gives it; None for that of this processor.

    Attributes:
        other_setting: How the setting under which what is there was made differs from this one; empty if it
            doesn't.
        done: Number of vectors on the disk.
        truncated: How many of their texts were cut to the model's limit.

    Raises:
        ValueError: What is there is made of something else, or damaged, or another process is writing it.
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
        self.other_setting = ""
        # Of all processes that had a part in what is there.
        self._settings: list[Mapping[str, str]] = [self.setting]
        self.made_of = {**made_of, "count": count}
        self.count = count
        self.done = self.truncated = 0
        self._unlock: weakref.finalize[..., UnfinishedVectors] | None = None
        self._digest = GrowingDigest()
        self._ranges_digest: FileDigest | None = None
        *_, self._data, self._record, self._ranges, self._converted = files_of(path)
        self.open(restart)

    def open(self, restart: bool = False) -> None:
        """Takes up what is there and keeps other processes away; does nothing if that is done already.

        Raises:
            ValueError: As for the class.
        """
        if self._unlock is not None and self._unlock.alive:
            return
        lock = ExitStack()
        lock.enter_context(alone_with(self.path))
        self._unlock = weakref.finalize(self, lock.close)
        remove_abandoned(self.path.parent)
        try:
            if restart or not (self._record.exists() and self._data.exists()):
                self.discard()
            else:
                self._take_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Lets other processes write; what is on the disk stays."""
        if self._unlock is not None:
            self._unlock()

    def _take_up(self) -> None:
        kept = VectorRecord.read(self._data, _ANEW)
        if said := differences(kept.made_of, self.made_of):
            raise InvalidValueError(
                f"{self._data}: expected vectors of these texts and options, got {said}; give what it was begun "
                f"with, or {_ANEW}"
            )
        damage = [f"{self._data}: a link"] if self._data.is_symlink() else kept.damage(self._data, grows=True)
        if damage:
            raise InvalidValueError(
                f"{self._data}: expected {kept.rows:,} vectors as they were written, got changed ones "
                f"({'; '.join(damage)}); {_ANEW}"
            )
        self.done, self.truncated = kept.rows, kept.truncated
        self._digest = GrowingDigest.after(kept.vectors, self._data)
        self._ranges_digest = kept.ranges
        others = [each for each in kept.settings if each != self.setting]
        self._settings = [*others, self.setting]
        self.other_setting = "; ".join(other_setting(each, self.setting) for each in others)

    def discard(self) -> None:
        """Throws away what is not finished."""
        self.done = self.truncated = 0
        self._settings, self.other_setting = [self.setting], ""
        self._digest = GrowingDigest()
        self._ranges_digest = None
        self._remove()

    def _remove(self) -> None:
        for path in (self._record, self._data, self._converted, self._ranges):  # without its record, none counts
            path.unlink(missing_ok=True)

    @property
    def ranges(self) -> Array | None:
        """The ranges of the vectors that are done; None if there are none."""
        return np.load(self._ranges) if self.done and self._ranges_digest is not None else None

    def keep_ranges(self, ranges: Array) -> None:
        """Keeps the ranges of the vectors' bytes, (2, D), which then come to lie beside them."""
        with replacing(self._ranges) as file:
            np.save(file, ranges)
        self._ranges_digest = FileDigest.of(self._ranges)

    def append(self, vectors: Array, truncated: int) -> None:
        """Writes the next vectors, (n, D), and returns when they would outlive a loss of power.

        Args:
            vectors: The same D and type in every call.
            truncated: How many of all texts so far were cut.

        Raises:
            OSError: No room, or another failure of the disk; what was written before stays.
        """
        rows = np.ascontiguousarray(vectors)
        assert self.done + len(rows) <= self.count
        header, width = _header(self.count, rows), rows[:1].nbytes
        digest = self._digest.copy()
        try:
            if self.done == 0:
                _need(self.path.parent, self.count * width)
                self._begin(header, len(header) + self.count * width)
                digest = GrowingDigest()
                digest.update(header)
            with self._data.open("rb+") as file:
                file.seek(len(header) + self.done * width)
                file.write(rows.data)
                file.flush()
                os.fsync(file.fileno())
            digest.update(rows.data)
            self._record_of(self.done + len(rows), truncated, digest.digest()).write(self._data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            expected, todo = ("room for", "make room") if full else ("a disk that takes", "put that right")
            reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
            raise DiskError(
                f"{self._data}: expected {expected} {self.count:,} vectors, got {reason.strerror or reason}; "
                f"{todo} and do the same again: it goes on after the first {self.done:,}"
            ) from error
        self.done += len(rows)
        self.truncated = truncated
        self._digest = digest

    def _begin(self, header: bytes, size: int) -> None:
        """Makes the file, of its final size from the start; a link of that name is not followed."""
        self._data.unlink(missing_ok=True)
        with self._data.open("xb") as file:
            file.write(header)
            file.truncate(size)

    def _record_of(self, rows: int, truncated: int, vectors: FileDigest) -> VectorRecord:
        return VectorRecord(self.made_of, rows, truncated, vectors, self._ranges_digest, self._settings)

    def finish(self, ids: Array | None = None) -> tuple[int, ...]:
        """Returns the vectors their final name and format, with the record beside them as ``OUT.json``.

        The older vectors of that name go when all of these are on the disk. Then ranges and record take their
        places, and the vectors join them in one step: none ever lie beside the record or the ranges of others.

        Args:
            ids: Which text each vector is of, as ``table_of`` has it, to lie beside them too; None for no such
                table.

        Returns:
            Their shape.
        """
        assert self.done == self.count
        shape: tuple[int, ...] = np.load(self._data, mmap_mode="r").shape
        ready, digest = self._data, self._digest.digest()
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
        known = None if ids is None else FileDigest.of(ids_of(self.path))
        replace(self._record_of(self.done, self.truncated, digest), ids=known).write(self.path)
        ready.replace(self.path)
        self._remove()
        self.close()
        return shape


def differences(kept: Mapping[str, object], asked: Mapping[str, object]) -> str:
    """Returns what differs between what vectors were made of and what is asked for; nothing if all is equal.

    Example:
        >>> differences({"model": "1f2f", "batch_size": 64}, {"model": "b569", "batch_size": 32})
        'another model, batch_size 64 instead of 32'
        >>> differences({"prompt": "query: "}, {"prompt": "passage: "})
        "prompt 'query: ' instead of 'passage: '"
    """

    def value(values: Mapping[str, object], name: str) -> str:
        return f"{values.get(name)!r}" if name == "prompt" else f"{values.get(name)}"  # blanks count in prompts

    names = dict.fromkeys([*kept, *asked])
    found = [name for name in names if kept.get(name) != asked.get(name)]
    return ", ".join(
        _DIGESTS.get(name) or f"{name} {value(kept, name)} instead of {value(asked, name)}" for name in found
    )


def _need(folder: Path, size: int) -> None:
    """Checks that the disk has space for all of it."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise DiskError(errno.ENOSPC, f"{free / 1e9:.1f} GB free of {size / 1e9:.1f} GB")


def _header(count: int, rows: Array) -> bytes:
    """Returns what a ``.npy`` file of so many rows like these begins with."""
    file = io.BytesIO()
    kind = np.lib.format.dtype_to_descr(rows.dtype)
    shape = (count, *rows.shape[1:])
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()
