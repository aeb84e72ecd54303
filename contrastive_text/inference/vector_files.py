"""Files of vectors: their names, formats and records, and files that are written in parts."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import DiskError, InvalidValueError, MissingFileError
from contrastive_text.core.libraries import require
from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.storage.manifests import OLD_FORM, FileDigest
from contrastive_text.core.storage.records import Record, records, write_json

Array: TypeAlias = npt.NDArray[Any]  # Any: float32, or a byte if the precision says so

UNFINISHED = ".unfinished"
"""Suffix of the file in which vectors are collected until all are there."""
_ROWS = 16_384
"""Vectors that are written at once, a row group of ``.parquet``: 25 MB with 384 features."""
_DIGESTS = {"model": "another model", "texts": "other texts"}
"""Origins that are recorded as digests, which no reader can compare -> words for a difference."""
_OF_ONE_PART = ("shard", "count", "block_size", "batch_size", "device")
"""Origins in which parts of one file may differ: their rows, and options that change only the rounding."""
_SHOWN = 5
"""Largest number of missing parts that an error names."""


def record_of(path: Path) -> Path:
    """Returns the name of the record of a file of vectors."""
    return path.with_name(f"{path.name}.json")


def ranges_of(path: Path) -> Path:
    """Returns the name of the file with the ranges of vectors of bytes."""
    return path.with_name(f"{path.name}.ranges.npy")


def ids_of(path: Path) -> Path:
    """Returns the name of the table of the text ids of vectors."""
    return path.with_name(f"{path.name}.ids.npy")


def files_of(path: Path) -> list[Path]:
    """Returns the names of all files that may be written for a file of vectors, itself first."""
    growing = path.with_name(f"{path.name}{UNFINISHED}")
    converted = growing.with_name(f"{growing.name}{path.suffix}")
    each = [file for name in (path, growing) for file in (name, record_of(name), ranges_of(name))]
    return [path, ids_of(path), *each[1:], converted]


def check_suffix(path: Path) -> None:
    """Checks that vectors can be written to a path, before any text is encoded.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ImportError: ``.parquet`` without pyarrow.
        OSError: No file can have that name, or the names of its companion files are too long.
        ValueError: The suffix is not ``.npy``, ``.tsv`` or ``.parquet``.
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
    r"""Writes vectors (N, D) in the format of the suffix: ``.npy``, ``.tsv`` or ``.parquet``.

    Raises:
        FileNotFoundError: The folder doesn't exist.
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
    record_of(path).unlink(missing_ok=True)  # of older vectors
    with replacing(path) as file:
        if path.suffix == ".npy":
            np.save(file, vectors)
        else:
            write_blocks(file, path.suffix, (vectors[at : at + _ROWS] for at in range(0, len(vectors), _ROWS)))


def mapped_blocks(path: Path) -> Iterator[Array]:
    """Yields the rows of a ``.npy`` file in blocks. Memory holds one block."""
    count = len(np.load(path, mmap_mode="r"))
    for start in range(0, count, _ROWS):
        # Mapped again: pages that were read would stay in memory as long as their mapping.
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


@dataclass(frozen=True, slots=True)
class VectorRecord:
    """Origin and digests of a file of vectors, stored next to it as ``OUT.json``.

    Args:
        made_of: Everything that the vectors depend on.
        truncated: Number of their texts that were cut to the model's limit.
        vectors: Digest of the file; of an unfinished file, digest of its bytes so far.
        settings: Machine, versions and threads of each process that encoded some of them.
        ranges: Digest of the file of ranges; None without ranges.
        ids: Digest of the table of text ids; None without a table.
    """

    made_of: Mapping[str, object]
    truncated: int
    vectors: FileDigest
    settings: Sequence[Mapping[str, str]]
    ranges: FileDigest | None = None
    ids: FileDigest | None = None

    def write(self, path: Path) -> None:
        """Writes the record of the vectors at a path."""
        write_json(record_of(path), asdict(self))

    @classmethod
    def read(cls, path: Path, todo: str) -> VectorRecord:
        """Reads the record of the vectors at a path.

        Args:
            path: The vectors.
            todo: Remedy for a damaged record, for the error.

        Raises:
            OSError: There is no record.
            ValueError: The record has another form.
        """
        record = Record.read(record_of(path), todo)
        if "block" in record:
            raise InvalidValueError(f"{record.where}: expected a record with a SHA-256, got {OLD_FORM}; {todo}")
        digests = {
            name: FileDigest.of_record(record.record(name)) for name in ("ranges", "ids") if name in record
        }
        settings = records(record.values.get("settings"), of="settings", where=record.where, todo=todo)
        return cls(
            made_of=record.record("made_of").values,
            truncated=record.integer("truncated", least=0),
            vectors=FileDigest.of_record(record.record("vectors")),
            settings=[{name: each.text(name) for name in each} for each in settings],
            **digests,
        )

    def digests(self, path: Path) -> dict[Path, FileDigest]:
        """Returns the digest of each file of the vectors at a path."""
        files = {path: self.vectors, ranges_of(path): self.ranges, ids_of(path): self.ids}
        return {file: digest for file, digest in files.items() if digest is not None}

    def damage(self, path: Path) -> list[str]:
        """Returns a line for each changed file: the vectors, their ranges, their ids.

        Files up to 1 GiB are read whole. Of a larger file the size is compared; ``contrastive-text verify`` reads
        it.
        """
        lines = {file: digest.damage(file, whole=False) for file, digest in self.digests(path).items()}
        return [f"{file}: {line}" for file, line in lines.items() if line is not None]


def differences(kept: Mapping[str, object], asked: Mapping[str, object]) -> str:
    """Returns the differences between two origins of vectors as text; empty if they are equal.

    Example:
        >>> differences({"model": "1f2f", "batch_size": 64}, {"model": "b569", "batch_size": 32})
        'another model, batch_size 64 instead of 32'
        >>> differences({"prompt": "query: "}, {"prompt": "passage: "})
        "prompt 'query: ' instead of 'passage: '"
    """

    def value(values: Mapping[str, object], name: str) -> str:
        return f"{values.get(name)!r}" if name == "prompt" else f"{values.get(name)}"  # blanks count in prompts

    names = dict.fromkeys([*kept, *asked])
    differing = [name for name in names if kept.get(name) != asked.get(name)]
    return ", ".join(
        _DIGESTS.get(name) or f"{name} {value(kept, name)} instead of {value(asked, name)}" for name in differing
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal parts of the texts of a file, in their order.

    Args:
        number: Number of the part, from 1.
        of: Number of parts.

    Raises:
        ValueError: A number out of range.

    Example:
        >>> Shard.parse("3/16")
        Shard(number=3, of=16)
        >>> [list(Shard(number, of=3).rows(8)) for number in (1, 2, 3)]
        [[0, 1], [2, 3, 4], [5, 6, 7]]
        >>> Shard(3, of=16).path(Path("vectors.npy")).name
        'vectors-00003-of-00016.npy'
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            todo = "; add 1 to an index that begins at 0" if self.number == 0 else ""
            raise InvalidValueError(
                f"shard: expected 1/N to N/N, such as 3/16 for the third of 16 parts, got {self}{todo}"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, word: str) -> Self:
        """Reads a shard from the text that ``str`` returns.

        Raises:
            ValueError: Another form, or a number out of range.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", word, flags=re.ASCII)
        if match is None:
            raise InvalidValueError(
                f"shard: expected K/N, such as 3/16 for the third of 16 parts, got {word!r}; give two numbers"
            )
        return cls(int(match[1]), int(match[2]))

    def rows(self, texts: int) -> range:
        """Returns the places of the shard's texts among all texts. Sizes differ by one text at most.

        Raises:
            ValueError: Fewer texts than parts.
        """
        if texts < self.of:
            raise InvalidValueError(
                f"shard {self}: expected no more parts than there are texts, got {texts:,} texts; make fewer"
            )
        return range(texts * (self.number - 1) // self.of, texts * self.number // self.of)

    def path(self, path: Path) -> Path:
        """Returns the name of the shard's file, from the name of the whole file."""
        return path.with_name(f"{path.stem}-{self.number:05d}-of-{self.of:05d}{path.suffix}")


def is_begun(path: Path) -> bool:
    """Returns whether a file of vectors exists, or any part of it, finished or unfinished."""
    return path.exists() or bool(_parts(path))


def records_of(path: Path, todo: str) -> dict[Path, VectorRecord]:
    """Returns a file of vectors, or all of its parts in order, each with its record.

    Args:
        path: The whole file. If it exists, parts are ignored.
        todo: Remedy for a damaged or foreign file, for errors.

    Raises:
        FileNotFoundError: There is neither the file nor a part.
        ValueError: A file without a record, a damaged record, missing parts, or parts of several models, texts or
            options.
    """
    shards = {} if path.exists() else _whole(path, todo)
    files = list(shards) or [path]
    for file in files:
        if not record_of(file).exists():
            raise InvalidValueError(
                f"{file}: expected {record_of(file).name} beside it, which says of what it was made, got none; "
                f"{todo}"
            )
    read = {file: VectorRecord.read(file, todo) for file in files}
    first = _shared(read[files[0]])
    for file, shard in shards.items():
        made_of = {**_shared(read[file]), "shard": read[file].made_of.get("shard")}
        if said := differences(made_of, {**first, "shard": str(shard)}):
            raise InvalidValueError(
                f"{file}: expected this part of the texts, with the model and the options of {files[0].name}, "
                f"got {said}; {todo}"
            )
    return read


def check_written(records: Mapping[Path, VectorRecord], todo: str) -> None:
    """Compares files of vectors, and their companion files, with their records; see ``VectorRecord.damage``.

    Raises:
        ValueError: A file was changed.
    """
    for file, record in records.items():
        if damage := record.damage(file):
            raise InvalidValueError(
                f"{file}: expected the vectors as they were written, got changed ones ({'; '.join(damage)}); "
                f"{todo}"
            )


def _shared(record: VectorRecord) -> dict[str, object]:
    """Returns the origins in which all parts of a file agree."""
    return {name: value for name, value in record.made_of.items() if name not in _OF_ONE_PART}


def _parts(path: Path) -> dict[Shard, bool]:
    """Returns the parts of a file that exist, and whether each is finished."""
    form = rf"{re.escape(path.stem)}-(\d{{5,}})-of-(\d{{5,}}){re.escape(path.suffix)}({re.escape(UNFINISHED)})?"
    names = (each.name for each in path.parent.iterdir()) if path.parent.is_dir() else ()
    parts: dict[Shard, bool] = {}
    for match in filter(None, (re.fullmatch(form, name, flags=re.ASCII) for name in names)):
        number, of = int(match[1]), int(match[2])
        if 1 <= number <= of:
            shard = Shard(number, of)
            parts[shard] = parts.get(shard, False) or match[3] is None
    return parts


def _whole(path: Path, todo: str) -> dict[Path, Shard]:
    """Returns the files of all parts of a file, in order."""
    parts = _parts(path)
    numbers = sorted({shard.of for shard in parts})
    if not numbers:
        raise MissingFileError(f"{path}: expected vectors, got nothing there; {todo}")
    if len(numbers) > 1:
        raise InvalidValueError(
            f"{path}: expected the parts of one division, got some of {' and of '.join(map(str, numbers))}; "
            "delete those that are out of date"
        )
    shards = [Shard(number, numbers[0]) for number in range(1, numbers[0] + 1)]
    if missing := [str(shard) for shard in shards if not parts.get(shard)]:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InvalidValueError(
            f"{path}: expected all {len(shards)} parts, got {len(shards) - len(missing)}; run contrastive-text "
            f"embed with --shard {', '.join(missing[:_SHOWN])}{more}"
        )
    return {shard.path(path): shard for shard in shards}
