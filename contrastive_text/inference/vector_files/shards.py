"""A file of vectors in parts, which several machines write and one reader takes for one file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.inference.vector_files.formats import UNFINISHED, record_of
from contrastive_text.inference.vector_files.records import VectorRecord
from contrastive_text.inference.vector_files.unfinished import differences

_OWN = ("shard", "count", "block_size", "batch_size", "device")
"""What parts of one file may differ in: their rows, and what changes the rounding alone."""
_SHOWN = 5
"""Missing parts that an error names."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several equal parts of a file's texts, in their order.

    Args:
        number: Which one, from 1.
        of: How many there are.

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
        """Reads what ``str`` gives.

        Raises:
            ValueError: Another form, or a number out of range.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", word, flags=re.ASCII)
        if found is None:
            raise InvalidValueError(
                f"shard: expected K/N, such as 3/16 for the third of 16 parts, got {word!r}; give two numbers"
            )
        return cls(int(found[1]), int(found[2]))

    def rows(self, texts: int) -> range:
        """Returns the places of its texts; parts differ by one text at most.

        Raises:
            ValueError: Fewer texts than parts.
        """
        if texts < self.of:
            raise InvalidValueError(
                f"shard {self}: expected no more parts than there are texts, got {texts:,} texts; make fewer"
            )
        return range(texts * (self.number - 1) // self.of, texts * self.number // self.of)

    def path(self, path: Path) -> Path:
        """Returns the name of its file, where the whole has this one."""
        return path.with_name(f"{path.stem}-{self.number:05d}-of-{self.of:05d}{path.suffix}")


def is_begun(path: Path) -> bool:
    """Whether there is a file of vectors of a name, or any part of it, finished or not."""
    return path.exists() or bool(_parts(path))


def records_of(path: Path, todo: str) -> dict[Path, VectorRecord]:
    """Returns the files of a name, the one or all of its parts in order, each with its record.

    Args:
        path: The name of the whole, which is read where it is there.
        todo: What to do about what is no file of ours, for errors.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A file without record, one that was changed since it was written, parts that lack, or parts of
            several models, texts or options.
    """
    shards = {} if path.exists() else _whole(path, todo)
    files = list(shards) or [path]
    for file in files:
        if not record_of(file).exists():
            raise InvalidValueError(
                f"{file}: expected {record_of(file).name} beside it, which says of what it was made, got none; "
                f"{todo}"
            )
    records = {file: VectorRecord.read(file, todo) for file in files}
    first = _shared(records[files[0]])
    for file, shard in shards.items():
        made_of = {**_shared(records[file]), "shard": records[file].made_of.get("shard")}
        if said := differences(made_of, {**first, "shard": str(shard)}):
            raise InvalidValueError(
                f"{file}: expected this part of the texts, with the model and the options of {files[0].name}, "
                f"got {said}; {todo}"
            )
    return records


def check_written(records: dict[Path, VectorRecord], todo: str) -> None:
    """Checks that files of vectors, and what lies beside them, are what was written; see ``VectorRecord.damage``.

    Raises:
        ValueError: They were changed.
    """
    for file, record in records.items():
        if damage := record.damage(file):
            raise InvalidValueError(
                f"{file}: expected the vectors as they were written, got changed ones ({'; '.join(damage)}); "
                f"{todo}"
            )


def _shared(record: VectorRecord) -> dict[str, object]:
    return {name: value for name, value in record.made_of.items() if name not in _OWN}


def _parts(path: Path) -> dict[Shard, bool]:
    """Returns the parts of a name that are begun, and whether each is finished."""
    form = rf"{re.escape(path.stem)}-(\d{{5,}})-of-(\d{{5,}}){re.escape(path.suffix)}({re.escape(UNFINISHED)})?"
    names = (each.name for each in path.parent.iterdir()) if path.parent.is_dir() else ()
    found: dict[Shard, bool] = {}
    for match in filter(None, (re.fullmatch(form, name, flags=re.ASCII) for name in names)):
        number, of = int(match[1]), int(match[2])
        if 1 <= number <= of:
            shard = Shard(number, of)
            found[shard] = found.get(shard, False) or match[3] is None
    return found


def _whole(path: Path, todo: str) -> dict[Path, Shard]:
    """Returns the files of all parts of a name, in order."""
    found = _parts(path)
    numbers = sorted({shard.of for shard in found})
    if not numbers:
        raise MissingFileError(f"{path}: expected vectors, got nothing there; {todo}")
    if len(numbers) > 1:
        raise InvalidValueError(
            f"{path}: expected the parts of one division, got some of {' and of '.join(map(str, numbers))}; "
            "delete those that are out of date"
        )
    shards = [Shard(number, numbers[0]) for number in range(1, numbers[0] + 1)]
    if lacking := [str(shard) for shard in shards if not found.get(shard)]:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise InvalidValueError(
            f"{path}: expected all {len(shards)} parts, got {len(shards) - len(lacking)}; run contrastive-text "
            f"embed with --shard {', '.join(lacking[:_SHOWN])}{more}"
        )
    return {shard.path(path): shard for shard in shards}
