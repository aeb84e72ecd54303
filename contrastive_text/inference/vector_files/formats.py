"""The files that hold vectors: ``.npy``, ``.tsv`` and ``.parquet``, each there whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import DiskError, InvalidValueError, MissingFileError
from contrastive_text.core.libraries import require
from contrastive_text.core.storage.disk import replacing

Array: TypeAlias = npt.NDArray[Any]  # Any: of float32, or of a byte where a precision asks for it

UNFINISHED = ".unfinished"
"""What follows the name of a file of vectors in the one in which they grow."""
_ROWS = 16_384
"""Vectors that are written at once, a row group of ``.parquet``: 25 MB with 384 features."""


def check_suffix(path: Path) -> None:
    """Checks that vectors can be written to a name, before any text is encoded.

    Raises:
        FileNotFoundError: No such folder.
        ImportError: ``.parquet`` without pyarrow.
        OSError: A name that no file can have, or that is too long for those beside it.
        ValueError: Another suffix than ``.npy``, ``.tsv`` and ``.parquet``.
    """
    if path.suffix not in (".npy", ".tsv", ".parquet"):
        raise InvalidValueError(
            f"{path}: expected a name that ends in .npy, .tsv or .parquet, got {path.suffix!r}"
        )
    if not path.parent.is_dir():
        raise MissingFileError(f"{path}: expected an existing folder, found none at {path.parent}; make it first")
    if path.suffix == ".parquet":
        require("pyarrow", str(path))
    for file in files_of(path):
        try:
            file.exists()
        except OSError as error:
            raise DiskError(
                error.errno or errno.EIO,
                f"{path}: expected a name that can be written to, got {error.strerror}; name another file",
            ) from error


def write_vectors(path: Path, vectors: Array) -> None:
    r"""Writes vectors (N, D) in the format that the suffix names: ``.npy``, ``.tsv`` or ``.parquet``.

    Raises:
        FileNotFoundError: No such folder.
        ImportError: ``.parquet`` without pyarrow.
        ValueError: Another suffix.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_vectors(Path(folder, "v.tsv"), np.array([[0.5, 1], [-2, 3]], dtype=np.float32))
        ...     Path(folder, "v.tsv").read_text()
        '0.5\t1\n-2\t3\n'
    """
    check_suffix(path)
    record_of(path).unlink(missing_ok=True)  # of other vectors that were there
    with replacing(path) as file:
        if path.suffix == ".npy":
            np.save(file, vectors)
        else:
            write_blocks(file, path.suffix, (vectors[at : at + _ROWS] for at in range(0, len(vectors), _ROWS)))


def record_of(path: Path) -> Path:
    """Returns the name of the file that says of what a file of vectors was made."""
    return path.with_name(f"{path.name}.json")


def ranges_of(path: Path) -> Path:
    """Returns the name of the file that holds the ranges of a file of bytes."""
    return path.with_name(f"{path.name}.ranges.npy")


def ids_of(path: Path) -> Path:
    """Returns the name of the file that says which text each vector of a file is of."""
    return path.with_name(f"{path.name}.ids.npy")


def files_of(path: Path) -> list[Path]:
    """Returns the names of all files that may be written for a file of vectors, itself the first."""
    growing = path.with_name(f"{path.name}{UNFINISHED}")
    converted = growing.with_name(f"{growing.name}{path.suffix}")
    each = [file for name in (path, growing) for file in (name, record_of(name), ranges_of(name))]
    return [path, ids_of(path), *each[1:], converted]


def mapped_blocks(path: Path) -> Iterator[Array]:
    """Yields the rows of a ``.npy`` file block by block; memory holds one of them."""
    count = len(np.load(path, mmap_mode="r"))
    for start in range(0, count, _ROWS):
        # Mapped anew: pages that were read would stay in memory as long as their mapping.
        yield np.array(np.load(path, mmap_mode="r")[start : start + _ROWS])


def write_blocks(file: BinaryIO, suffix: str, blocks: Iterable[Array]) -> None:
    """Writes blocks of rows (n, D) one after the other, as ``.tsv`` or ``.parquet``."""
    if suffix == ".tsv":
        for block in blocks:
            # Nine digits hold a float32.
            np.savetxt(file, block, fmt="%.9g" if block.dtype.kind == "f" else "%d", delimiter="\t")
        return
    pyarrow, parquet = require("pyarrow", ".parquet"), require("pyarrow.parquet", ".parquet")
    writer = None
    for block in blocks:
        flat = pyarrow.array(block.ravel())
        table = pyarrow.table({"embedding": pyarrow.FixedSizeListArray.from_arrays(flat, block.shape[1])})
        writer = writer or parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
