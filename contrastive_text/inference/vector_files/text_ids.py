"""The vectors of distinct texts, each found by its text's id: the 64 bits that every row of a batch carries."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.random import text_id
from contrastive_text.core.records import shown
from contrastive_text.data.files.streaming import TextStream
from contrastive_text.inference.vector_files.formats import Array, ids_of, record_of
from contrastive_text.inference.vector_files.records import VectorRecord

Ids = npt.NDArray[np.int64]
_HOW = "contrastive-text embed TEXTS OUT.npy --model MODEL --distinct"


def table_of(texts: TextStream) -> Ids:
    """Returns the ids of texts in rising order, and below them which vector is of each, (2, N).

    Texts of one id are one text here, as in a batch, and have the vector of the first.
    """
    ids = np.fromiter(map(text_id, texts), np.int64)
    return np.stack(np.unique(ids, return_index=True)).astype(np.int64)


class TextVectors:
    """The file of vectors that ``contrastive-text embed --distinct`` writes, asked by text id.

    Vectors and table are mapped: what is looked up is read, and processes of a machine share its pages. A look-up
    is a binary search, of 27 steps among a hundred million texts.

    Args:
        path: A ``.npy`` file, with its record and its table of ids beside it.

    Attributes:
        record: Of what they were made, and their digests.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A file without record or table, changed since it was written, or of bytes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path)
        if path.suffix != ".npy":
            raise InvalidValueError(f"{path}: expected a name that ends in .npy, got {path.suffix!r}; {_HOW}")
        if not path.exists():
            raise MissingFileError(f"{path}: expected vectors of texts, got nothing there; {_HOW}")
        for file in (record_of(path), ids_of(path)):
            if not file.exists():
                raise InvalidValueError(f"{path}: expected {file.name} beside it, got none; {_HOW}")
        self.record = VectorRecord.read(path, _HOW)
        damage = self.record.damage(path) if self.record.ids is not None else ["ids that it doesn't know"]
        if damage:
            raise InvalidValueError(
                f"{path}: expected vectors and ids as they were written, got changed ones ({'; '.join(damage)}); "
                "make them anew"
            )
        self._vectors: Array = np.load(path, mmap_mode="r")
        self._ids, self._places = np.load(ids_of(path), mmap_mode="r")
        if self._vectors.dtype.kind != "f":
            raise InvalidValueError(
                f"{path}: expected vectors of floating-point numbers, got {self._vectors.dtype}; embed them with "
                "--precision float32"
            )

    def __len__(self) -> int:
        """Number of texts."""
        return len(self._ids)

    @property
    def features(self) -> int:
        """Features of a vector."""
        return int(self._vectors.shape[1])

    @property
    def identity(self) -> str:
        """32 hex digits that are the same for equal vectors of the same texts."""
        assert self.record.ids is not None
        digests = (self.record.vectors, self.record.ids)
        return blake2b(repr([digest.to_json() for digest in digests]).encode(), digest_size=16).hexdigest()

    def knows(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Returns True for each id that has a vector, (n,)."""
        found: npt.NDArray[np.bool_] = self._ids[self._nearest(ids)] == ids
        return found

    def of(self, ids: Ids) -> Array:
        """Returns the vector of each id, (n, D), which must all be known."""
        return np.asarray(self._vectors[self._places[self._nearest(ids)]])

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

    def _nearest(self, ids: Ids) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)

    def __reduce__(self) -> tuple[type[TextVectors], tuple[Path]]:
        return TextVectors, (self.path,)
