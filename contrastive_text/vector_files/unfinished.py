"""Vectors on their way to a file: what is on the disk is kept, whatever ends the process."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from contrastive_text.vector_files.formats import Array, mapped_blocks, record_of, whole, write_blocks


class UnfinishedVectors:
    """A file of vectors that grows block by block beside its final name, and is taken up again by its record.

    ``OUT.unfinished`` is the ``.npy`` file of all rows, of which the first ones are filled; how many, and of what
    they are made, is in ``OUT.unfinished.json``, which is replaced after each block that is on the disk. So a
    process that is killed loses the block at which it was.

    Args:
        path: The final name, as ``check_suffix`` takes it.
        made_of: All that the vectors depend on, as JSON's types.
        count: Number of vectors.
        restart: Whether what is there is thrown away.

    Attributes:
        done: Number of vectors on the disk.
        truncated: How many of their texts were cut to the model's limit.

    Raises:
        ValueError: What is there is made of something else, or damaged.
    """

    def __init__(self, path: Path, made_of: Mapping[str, object], count: int, restart: bool = False) -> None:
        self.path = path
        self.made_of = dict(made_of)
        self.count = count
        self.done = 0
        self.truncated = 0
        self._data = path.with_name(f"{path.name}.unfinished")
        self._record = path.with_name(f"{path.name}.unfinished.json")
        if restart:
            self.discard()
        elif self._record.exists() and self._data.exists():
            self._take_up()

    def _take_up(self) -> None:
        kept = json.loads(self._record.read_text(encoding="utf-8"))
        if said := differences(kept["made_of"], self.made_of):
            raise ValueError(
                f"{self._data}: expected vectors of these texts and options, got {said}; give what it was begun "
                "with, or begin anew with --restart (restart=True)"
            )
        self.done, self.truncated = kept["rows"], kept["truncated"]
        try:
            held = len(np.load(self._data, mmap_mode="r"))
        except ValueError:  # shorter than its header says
            held = 0
        if held != self.count:
            raise ValueError(
                f"{self._data}: expected a file of {self.count:,} rows, got a damaged one; begin anew with "
                "--restart (restart=True)"
            )

    def discard(self) -> None:
        """Throws away what is not finished."""
        self.done = self.truncated = 0
        self._remove()

    def _remove(self) -> None:
        self._record.unlink(missing_ok=True)
        self._data.unlink(missing_ok=True)

    def append(self, vectors: Array, truncated: int) -> None:
        """Writes the next vectors, (n, D), and returns when they would outlive a loss of power.

        Args:
            vectors: The same D and type in every call.
            truncated: How many of all texts so far were cut.

        Raises:
            OSError: No room; what was written before stays.
        """
        rows = np.ascontiguousarray(vectors)
        assert self.done + len(rows) <= self.count
        header, width = _header(self.count, rows), rows[:1].nbytes
        try:
            if self.done == 0:
                _need(self.path.parent, self.count * width)
                self._data.write_bytes(header)
                os.truncate(self._data, len(header) + self.count * width)
            with self._data.open("rb+") as file:
                file.seek(len(header) + self.done * width)
                file.write(rows.data)
                file.flush()
                os.fsync(file.fileno())
            self.done += len(rows)
            self.truncated = truncated
            self._write_record(self._record)
        except OSError as error:
            raise OSError(
                f"{self._data}: expected room for {self.count:,} vectors, got {error}; make room and do the same "
                f"again: it goes on behind the first {self.done:,}"
            ) from error

    def _write_record(self, path: Path) -> None:
        kept = {"made_of": self.made_of, "rows": self.done, "truncated": self.truncated}
        with whole(path) as partial:
            partial.write_text(json.dumps(kept, indent=1), encoding="utf-8")

    def finish(self) -> tuple[int, ...]:
        """Gives the vectors their final name and format, with the record beside them as ``OUT.json``.

        Returns:
            Their shape.
        """
        assert self.done == self.count
        shape: tuple[int, ...] = np.load(self._data, mmap_mode="r").shape
        if self.path.suffix == ".npy":
            record_of(self.path).unlink(missing_ok=True)  # of older vectors, while these take their place
            self._data.replace(self.path)
        else:
            with whole(self.path) as partial:
                write_blocks(partial, self.path.suffix, mapped_blocks(self._data))
                record_of(self.path).unlink(missing_ok=True)
        self._write_record(record_of(self.path))
        self._remove()
        return shape


def differences(kept: Mapping[str, object], asked: Mapping[str, object]) -> str:
    """Gives what differs between what vectors were made of and what is asked for; nothing if all is equal.

    Example:
        >>> differences({"model": "a", "batch_size": 64}, {"model": "a", "batch_size": 32})
        'batch_size 64 instead of 32'
    """
    names = dict.fromkeys([*kept, *asked])
    found = [name for name in names if kept.get(name) != asked.get(name)]
    return ", ".join(f"{name} {kept.get(name)} instead of {asked.get(name)}" for name in found)


def _need(folder: Path, size: int) -> None:
    """Refuses a disk that would be full before the end."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{free / 1e9:.1f} GB free of {size / 1e9:.1f} GB")


def _header(count: int, rows: Array) -> bytes:
    """Gives what a ``.npy`` file of so many rows like these begins with."""
    file = io.BytesIO()
    kind = np.lib.format.dtype_to_descr(rows.dtype)
    shape = (count, *rows.shape[1:])
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()
