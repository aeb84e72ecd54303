"""The vectors of distinct texts, each found by its text's id: the 64 bits that every row of a batch carries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.records import shown
from contrastive_text.inference.vector_files.formats import Array, ids_of
from contrastive_text.inference.vector_files.shards import check_written, is_begun, records_of

Ids = npt.NDArray[np.int64]
_HOW = "contrastive-text embed TEXTS OUT.npy --model MODEL --distinct"


def table_of(texts: Iterable[str]) -> Ids:
    """Returns the ids of texts in rising order, and below them which vector is of each, (2, N).

    Texts of one id are one text here, as in a batch, and have the vector of the first.
    """
    ids = np.fromiter(map(text_id, texts), np.int64)
    return np.stack(np.unique(ids, return_index=True)).astype(np.int64)


class _Part(NamedTuple):
    """A file of vectors and its table, mapped."""

    vectors: Array
    ids: Ids
    places: Ids

    @classmethod
    def mapped(cls, path: Path) -> _Part:
        vectors: Array = np.load(path, mmap_mode="r")
        if vectors.dtype.kind != "f":
            raise InvalidValueError(
                f"{path}: expected vectors of floating-point numbers, got {vectors.dtype}; embed them with "
                "--precision float32"
            )
        return cls(vectors, *np.load(ids_of(path), mmap_mode="r"))

    def knows(self, ids: Ids) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.ids[self._nearest(ids)] == ids
        return found

    def of(self, ids: Ids) -> Array:
        return np.asarray(self.vectors[self.places[self._nearest(ids)]])

    def _nearest(self, ids: Ids) -> npt.NDArray[np.intp]:
        return np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)


class TextVectors:
    """The file of vectors that ``contrastive-text embed --distinct`` writes, asked by text id.

    Vectors and table are mapped: what is looked up is read, and processes of a machine share its pages. A look-up
    is a binary search, of 27 steps among a hundred million texts; of a file in parts one in each of them.

    Args:
        path: A ``.npy`` file, with its record and its table of ids beside it; or the name of one in parts, as
            ``--shard`` writes them.

    Raises:
        FileNotFoundError: No such file, nor a part of it.
        ValueError: A file without record or table, changed since it was written, or of bytes. Parts that lack, or
            don't belong together.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        if path.suffix != ".npy":
            raise InvalidValueError(f"{path}: expected a name that ends in .npy, got {path.suffix!r}; {_HOW}")
        if not is_begun(path):
            raise MissingFileError(f"{path}: expected vectors of texts, got nothing there; {_HOW}")
        records = records_of(path, _HOW)
        for file, record in records.items():
            if record.ids is None or not ids_of(file).exists():
                raise InvalidValueError(f"{file}: expected {ids_of(file).name} beside it, got none; {_HOW}")
        check_written(records, "make them anew")
        self._digests = [digest for record in records.values() for digest in (record.vectors, record.ids)]
        self._parts = [_Part.mapped(file) for file in records]

    def __len__(self) -> int:
        """Number of texts."""
        return sum(len(part.ids) for part in self._parts)

    @property
    def features(self) -> int:
        """Features of a vector."""
        return int(self._parts[0].vectors.shape[1])

    @property
    def identity(self) -> str:
        """32 hex digits that are the same for equal vectors of the same texts."""
        digests = [digest.to_json() for digest in self._digests if digest is not None]
        return blake2b(repr(digests).encode(), digest_size=16).hexdigest()

    def knows(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Returns True for each id that has a vector, (n,)."""
        found: npt.NDArray[np.bool_] = np.any([part.knows(ids) for part in self._parts], axis=0)
        return found

    def of(self, ids: Ids) -> Array:
        """Returns the vector of each id, (n, D), which must all be known."""
        vectors = np.empty((len(ids), self.features), self._parts[0].vectors.dtype)
        for part in self._parts:
            known = part.knows(ids)
            vectors[known] = part.of(ids[known])
        return vectors

    def of_texts(self, texts: Sequence[str]) -> Array:
        """Returns the vector of each text, (n, D).

        Raises:
            ValueError: A text without one.
        """
        ids = np.fromiter(map(text_id, texts), np.int64, len(texts))
        if not (known := self.knows(ids)).all():
            raise InvalidValueError(
                f"{self.path}: expected a vector of every text, got none of {shown(texts[int(known.argmin())])}; "
                f"embed these texts: {_HOW}"
            )
        return self.of(ids)

    def __reduce__(self) -> tuple[type[TextVectors], tuple[Path]]:
        return TextVectors, (self.path,)
