"""Files of vectors: their names, formats, records and shards, and look-up of the vectors of texts."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import DiskError, InvalidValueError, MissingFileError, check_ending, two_numbers
from contrastive_text.core.libraries import require
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.manifests import OLD_FORM, FileDigest
from contrastive_text.core.storage.records import Record, describe_value, records, write_json

Array: TypeAlias = npt.NDArray[Any]  # Any: float32, int8 or uint8, by the precision
Ids: TypeAlias = npt.NDArray[np.int64]

UNFINISHED = ".unfinished"
"""Suffix of a file of vectors until all its vectors are written."""
_ROWS = 16_384
"""Number of vectors that are written together, as a row group of ``.parquet``: 25 MB with 384 features."""
_DIGESTS = {"model": "another model", "texts": "other texts"}
"""Key of an origin that stores a digest -> text that a difference shows in place of the two digests."""
_SHARD_KEYS = ("shard", "count", "block_size", "batch_size", "device")
"""Keys of origins in which the shards of a file may differ: their rows, and options that change the rounding."""
_EMBED = "contrastive-text embed TEXTS OUT.npy --model MODEL --distinct"
"""Advice for vectors without a table of text ids."""
_SHOWN = 5
"""Largest number of missing shards that an error names."""


def record_path(path: Path) -> Path:
    """Returns the path of the record of a file of vectors, ``OUT.json``."""
    return path.with_name(f"{path.name}.json")


def ranges_path(path: Path) -> Path:
    """Returns the path of the value ranges of a file of int8 or uint8 vectors, ``OUT.ranges.npy``."""
    return path.with_name(f"{path.name}.ranges.npy")


def ids_path(path: Path) -> Path:
    """Returns the path of the table of text ids of a file of vectors, ``OUT.ids.npy``."""
    return path.with_name(f"{path.name}.ids.npy")


def all_paths(path: Path) -> list[Path]:
    """Returns the paths of all files that may be written for a file of vectors, the file itself first."""
    unfinished = path.with_name(f"{path.name}{UNFINISHED}")
    converted = unfinished.with_name(f"{unfinished.name}{path.suffix}")
    files = [file for name in (path, unfinished) for file in (name, record_path(name), ranges_path(name))]
    return [path, ids_path(path), *files[1:], converted]


def check_output_path(path: Path) -> None:
    """Checks that vectors can be written to a path, before texts are encoded.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ImportError: The suffix is ``.parquet``, and pyarrow isn't installed.
        OSError: The file system doesn't allow the name, or the longer names of its companion files.
        ValueError: The suffix is not ``.npy``, ``.tsv`` or ``.parquet``.
    """
    check_ending(path, ".npy", ".tsv", ".parquet")
    if not path.parent.is_dir():
        raise MissingFileError(f"{path}: expected an existing folder, found none at {path.parent}; make it first")
    if path.suffix == ".parquet":
        require("pyarrow", str(path))
    for file in all_paths(path):
        try:
            file.exists()
        except OSError as error:
            raise DiskError(
                error.errno or errno.EIO,
                f"{path}: expected a name that can be written to, got {error.strerror}; name another file",
            ) from error


def write_vectors(path: Path, vectors: Array) -> None:
    r"""Writes vectors to a file in the format of its suffix: ``.npy``, ``.tsv`` or ``.parquet``.

    Args:
        path: File to write.
        vectors: Vectors, (N, D).

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ImportError: The suffix is ``.parquet``, and pyarrow isn't installed.
        ValueError: The suffix is not ``.npy``, ``.tsv`` or ``.parquet``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_vectors(Path(folder, "v.tsv"), np.array([[0.5, 1], [-2, 3]], dtype=np.float32))
        ...     Path(folder, "v.tsv").read_text()
        '0.5\t1\n-2\t3\n'
    """
    check_output_path(path)
    record_path(path).unlink(missing_ok=True)  # of older vectors
    with atomic_file(path) as file:
        if path.suffix == ".npy":
            np.save(file, vectors)
        else:
            write_blocks(file, path.suffix, (vectors[at : at + _ROWS] for at in range(0, len(vectors), _ROWS)))


def mapped_blocks(path: Path) -> Iterator[Array]:
    """Reads the rows of a ``.npy`` file block by block. Memory holds one block."""
    count = len(np.load(path, mmap_mode="r"))
    for start in range(0, count, _ROWS):
        # A new mapping for each block: pages that were read stay in memory as long as their mapping.
        yield np.array(np.load(path, mmap_mode="r")[start : start + _ROWS])


def write_blocks(file: BinaryIO, suffix: str, blocks: Iterable[Array]) -> None:
    """Writes blocks of vectors, (n, D), one after the other, as ``.tsv`` or ``.parquet``."""
    if suffix == ".tsv":
        for block in blocks:
            # Nine digits represent a float32 exactly.
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
    """Record of a file of vectors with its origin and digests, stored next to the file as ``OUT.json``.

    Args:
        made_of: Everything that the vectors depend on (model, texts, options), by name.
        truncated: Number of texts that were truncated to the model's length limit.
        vectors: Digest of the file of vectors, or of the bytes that are written so far.
        settings: Machine, versions and threads of each process that encoded vectors of the file.
        ranges: Digest of the file of value ranges; None if there is no such file.
        ids: Digest of the table of text ids; None if there is no table.
    """

    made_of: Mapping[str, object]
    truncated: int
    vectors: FileDigest
    settings: Sequence[Mapping[str, str]]
    ranges: FileDigest | None = None
    ids: FileDigest | None = None

    def write(self, path: Path) -> None:
        """Writes the record next to the file of vectors at a path."""
        write_json(record_path(path), asdict(self))

    @classmethod
    def read(cls, path: Path, todo: str) -> VectorRecord:
        """Reads the record of the file of vectors at a path.

        Args:
            path: File of vectors.
            todo: Advice for a damaged record, for the error message.

        Raises:
            OSError: There is no record.
            ValueError: The record is damaged, or an older version wrote it.
        """
        record = Record.read(record_path(path), todo)
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
            settings=[{name: setting.text(name) for name in setting} for setting in settings],
            **digests,
        )

    def digests(self, path: Path) -> dict[Path, FileDigest]:
        """Returns the recorded digest of the file of vectors at a path, and of its companion files."""
        files = {path: self.vectors, ranges_path(path): self.ranges, ids_path(path): self.ids}
        return {file: digest for file, digest in files.items() if digest is not None}

    def damage(self, path: Path) -> list[str]:
        """Compares the file of vectors at a path, its ranges and its ids with the recorded digests.

        A file up to 1 GiB is read. For a larger file only the size is compared; ``contrastive-text verify`` reads
        it.

        Returns:
            A description of each changed file; empty if the files are unchanged.
        """
        lines = {file: digest.damage(file, whole=False) for file, digest in self.digests(path).items()}
        return [f"{file}: {line}" for file, line in lines.items() if line is not None]


def differences(kept: Mapping[str, object], asked: Mapping[str, object]) -> str:
    """Describes the differences between two origins of vectors; the text is empty if they are equal.

    Example:
        >>> differences({"model": "1f2f", "batch_size": 64}, {"model": "b569", "batch_size": 32})
        'another model, batch_size 64 instead of 32'
        >>> differences({"prompt": "query: "}, {"prompt": "passage: "})
        "prompt 'query: ' instead of 'passage: '"
    """

    def value(values: Mapping[str, object], name: str) -> str:
        return f"{values.get(name)!r}" if name == "prompt" else f"{values.get(name)}"  # quotes show blanks

    all_names = dict.fromkeys([*kept, *asked])
    names = [name for name in all_names if kept.get(name) != asked.get(name)]
    return ", ".join(
        _DIGESTS.get(name) or f"{name} {value(kept, name)} instead of {value(asked, name)}" for name in names
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard of a file of texts: one of several equal parts, in the order of the texts.

    Args:
        number: Number of the shard, from 1.
        of: Number of shards.

    Raises:
        ValueError: ``number`` is below 1 or above ``of``.

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
        """Parses a shard's text, such as ``3/16``.

        Raises:
            ValueError: The text has another form, or the number is out of range.
        """
        return cls(*two_numbers("shard: expected K/N, such as 3/16 for the third of 16 parts", word))

    def rows(self, texts: int) -> range:
        """Returns the indices of the texts in the shard. The sizes of shards differ by at most one text.

        Args:
            texts: Number of texts of all shards.

        Raises:
            ValueError: There are fewer texts than shards.
        """
        if texts < self.of:
            raise InvalidValueError(
                f"shard {self}: expected at most as many parts as texts, got {texts:,} texts; use fewer parts"
            )
        return range(texts * (self.number - 1) // self.of, texts * self.number // self.of)

    def path(self, path: Path) -> Path:
        """Returns the path of the shard's file of vectors, from the path of the whole file."""
        return path.with_name(f"{path.stem}-{self.number:05d}-of-{self.of:05d}{path.suffix}")


def has_files(path: Path) -> bool:
    """Returns True if a file of vectors or any of its shards exists, finished or unfinished."""
    return path.exists() or bool(_find_shards(path))


def _read_records(path: Path, todo: str) -> dict[Path, VectorRecord]:
    """Reads the record of a file of vectors, or of all its shards in order.

    Args:
        path: Whole file. If it exists, shards are ignored.
        todo: Advice for a damaged or unknown file, for error messages.

    Returns:
        File of vectors -> its record.

    Raises:
        FileNotFoundError: Neither the file nor a shard exists.
        ValueError: A record is missing or damaged, a shard is missing, or shards have different models, texts or
            options.
    """
    shards = {} if path.exists() else _shard_files(path, todo)
    files = list(shards) or [path]
    for file in files:
        if not record_path(file).exists():
            raise InvalidValueError(
                f"{file}: expected the record {record_path(file).name} next to it, got no such file; {todo}"
            )
    records = {file: VectorRecord.read(file, todo) for file in files}
    first = _shared_origin(records[files[0]])
    for file, shard in shards.items():
        origin = {**_shared_origin(records[file]), "shard": records[file].made_of.get("shard")}
        if difference := differences(origin, {**first, "shard": str(shard)}):
            raise InvalidValueError(
                f"{file}: expected this part of the texts, with the model and the options of {files[0].name}, "
                f"got {difference}; {todo}"
            )
    return records


def open_vectors(path: Path, todo: str) -> dict[Path, tuple[VectorRecord, Array]]:
    """Opens a file of vectors, or all its shards in order, after comparing them with their records.

    A file up to 1 GiB is read once, which takes a second. For a larger file only the size is compared;
    ``contrastive-text verify`` reads it.

    Args:
        path: Whole file, ``.npy``. If it exists, shards are ignored.
        todo: Advice for a missing, damaged or unknown file, for error messages.

    Returns:
        File of vectors -> its record, and its vectors, (n, D), memory-mapped.

    Raises:
        FileNotFoundError: Neither the file nor a shard exists.
        ValueError: A file was changed or has no record, or shards don't belong together; see ``_read_records``.
    """
    check_ending(path, ".npy")
    files = {}
    for file, record in _read_records(path, todo).items():
        if damage := record.damage(file):
            raise InvalidValueError(
                f"{file}: expected unchanged vectors, got changes ({'; '.join(damage)}); {todo}"
            )
        files[file] = record, map_vectors(file, todo)
    return files


def map_vectors(path: Path, todo: str) -> Array:
    """Returns the memory-mapped array of a ``.npy`` file.

    Raises:
        ValueError: The file has no array, or an array of Python objects: a forged file with a matching digest.
    """
    try:
        vectors: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidValueError(f"{path}: expected an array, got {error}; {todo}") from error
    return vectors


def _shared_origin(record: VectorRecord) -> dict[str, object]:
    """Returns the part of the origin that is equal in all shards of a file."""
    return {name: value for name, value in record.made_of.items() if name not in _SHARD_KEYS}


def _find_shards(path: Path) -> dict[Shard, bool]:
    """Returns each existing shard of a file -> whether it is finished."""
    form = rf"{re.escape(path.stem)}-(\d{{5,}})-of-(\d{{5,}}){re.escape(path.suffix)}({re.escape(UNFINISHED)})?"
    names = (file.name for file in path.parent.iterdir()) if path.parent.is_dir() else ()
    shards: dict[Shard, bool] = {}
    for match in filter(None, (re.fullmatch(form, name, flags=re.ASCII) for name in names)):
        number, of = int(match[1]), int(match[2])
        if 1 <= number <= of:
            shard = Shard(number, of)
            shards[shard] = shards.get(shard, False) or match[3] is None
    return shards


def _shard_files(path: Path, todo: str) -> dict[Path, Shard]:
    """Returns the files of all shards of a file, in order. Raises ValueError if one is missing or unfinished."""
    finished = _find_shards(path)
    numbers = sorted({shard.of for shard in finished})
    if not numbers:
        raise MissingFileError(f"{path}: expected vectors, got nothing there; {todo}")
    if len(numbers) > 1:
        raise InvalidValueError(
            f"{path}: expected shards of one number of parts, got shards of "
            f"{' and of '.join(map(str, numbers))}; delete the outdated shards"
        )
    shards = [Shard(number, numbers[0]) for number in range(1, numbers[0] + 1)]
    if missing := [str(shard) for shard in shards if not finished.get(shard)]:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise InvalidValueError(
            f"{path}: expected all {len(shards)} parts, got {len(shards) - len(missing)}; run contrastive-text "
            f"embed with --shard {', '.join(missing[:_SHOWN])}{more}"
        )
    return {shard.path(path): shard for shard in shards}


class _Part(NamedTuple):
    """Memory-mapped file of vectors, (N, D), with its table of sorted text ids and their rows, (N,) each."""

    vectors: Array
    ids: Ids
    places: Ids

    def found(self, ids: Ids) -> tuple[npt.NDArray[np.bool_], Ids]:
        """Looks up text ids. Returns a mask of the ids with a vector in this file, and the row of each vector."""
        nearest = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return self.ids[nearest] == ids, self.places[nearest]


class TextVectors:
    """Look-up of the vectors of texts in a file of ``contrastive-text embed --distinct``.

    Vectors and table are memory-mapped, so only the vectors that are looked up are read, and the processes of a
    machine share their memory. A look-up is a binary search in each shard; among a hundred million texts it takes
    27 steps.

    Args:
        path: ``.npy`` file with its record and its table of ids next to it. If it doesn't exist, its shards are
            used.

    Raises:
        FileNotFoundError: Neither the file nor a shard exists.
        ValueError: A file has no record or no table, was changed, or has int8 or uint8 vectors; or a shard is
            missing or doesn't belong to the others.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        self._digests, self._parts = list[FileDigest](), list[_Part]()
        for file, (record, vectors) in open_vectors(path, _EMBED).items():
            if record.ids is None:
                raise InvalidValueError(
                    f"{file}: expected the text ids {ids_path(file).name} next to it, got no such file; {_EMBED}"
                )
            if vectors.dtype.kind != "f":
                raise InvalidValueError(
                    f"{file}: expected vectors of floating-point numbers, got {vectors.dtype}; embed them with "
                    "--precision float32"
                )
            self._digests += [record.vectors, record.ids]
            self._parts.append(_Part(vectors, *map_vectors(ids_path(file), _EMBED)))

    def __len__(self) -> int:
        """Number of texts that have a vector."""
        return sum(len(part.ids) for part in self._parts)

    @property
    def features(self) -> int:
        """Number of features of the vectors in the file."""
        return int(self._parts[0].vectors.shape[1])

    @property
    def identity(self) -> str:
        """Fingerprint of the vectors and their texts, 32 hex digits."""
        digests = list(map(asdict, self._digests))
        return blake2b(repr(digests).encode(), digest_size=16).hexdigest()

    def has_vectors(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Returns a mask of the text ids that have a vector, (n,) -> (n,)."""
        mask: npt.NDArray[np.bool_] = np.any([part.found(ids)[0] for part in self._parts], axis=0)
        return mask

    def vectors_of_ids(self, ids: Ids) -> Array:
        """Returns the vector of each text id, (n,) -> (n, D). Every id must have a vector."""
        vectors = np.empty((len(ids), self.features), self._parts[0].vectors.dtype)
        for part in self._parts:
            mask, places = part.found(ids)
            vectors[mask] = part.vectors[places[mask]]
        return vectors

    def vectors_of_texts(self, texts: Sequence[str]) -> Array:
        """Returns the vector of each text, (n, D).

        Raises:
            ValueError: A text has no vector.
        """
        ids = np.fromiter(map(text_id, texts), np.int64, len(texts))
        if not (mask := self.has_vectors(ids)).all():
            raise InvalidValueError(
                f"{self.path}: expected a vector of every text, got no vector of "
                f"{describe_value(texts[int(mask.argmin())])}; embed these texts: {_EMBED}"
            )
        return self.vectors_of_ids(ids)

    def __reduce__(self) -> tuple[type[TextVectors], tuple[Path]]:
        return TextVectors, (self.path,)
