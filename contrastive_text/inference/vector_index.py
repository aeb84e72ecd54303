"""Vectors on disk in use: the index of a corpus with its exact search, and vectors of texts by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.records import shown
from contrastive_text.data.files.readers import TextStream
from contrastive_text.data.prompts import DOCUMENT
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.search import Hit, nearest
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    Array,
    check_suffix,
    check_written,
    differences,
    ids_of,
    is_begun,
    records_of,
)

Ids = npt.NDArray[np.int64]
_ANEW = "delete it to have it made anew, or name another file"
_HOW = "contrastive-text embed TEXTS OUT.npy --model MODEL --distinct"
_PROMPT = "embed takes the model's prompt of documents with --prompt_name document; "


class VectorIndex:
    """Vectors of a corpus with the model that made them. The file is memory-mapped, and read as it is searched.

    The file is a ``.npy`` file of ``contrastive-text embed``, with the record of model and texts next to it.
    Several such files are its parts if ``embed --shard`` wrote them. A corpus that comes as a list of texts needs
    no file: ``SentenceEncoder.search``.

    Args:
        model: Model that encodes the queries.
        parts: Vectors of the corpus in its order, (C, D), float32, with at most as many features as the model.
            Each of several arrays has some of the rows.

    Raises:
        ValueError: Vectors that can't be compared with the model's queries.

    Example:
        >>> index = VectorIndex.build(model, "corpus.txt", "corpus.npy")  # doctest: +SKIP
        >>> index = VectorIndex.load(model, "corpus.txt", "corpus.npy")  # doctest: +SKIP
        >>> index.search("who sings?", top_k=1)  # doctest: +SKIP
        [[Hit(corpus_id=17, score=0.83)]]
    """

    def __init__(self, model: SentenceEncoder, *parts: Array) -> None:
        for vectors in parts:
            width = vectors.shape[1] if vectors.ndim == 2 else 0
            if not 0 < width <= model.features or vectors.dtype != np.float32:
                raise InvalidValueError(
                    f"VectorIndex: expected float32 of 1 to {model.features} features, got {vectors.dtype} of "
                    f"{vectors.shape}; give vectors of this model"
                )
        self.model = model
        self.parts = parts

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def vectors(self) -> Array:
        """All vectors, (C, D): the mapped file, or a copy in memory of several parts."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)

    @classmethod
    def build(
        cls,
        model: SentenceEncoder,
        corpus: str | Path | TextStream,
        path: str | Path,
        encoding: Encoding | None = None,
        show_progress_bar: bool = False,
        restart: bool = False,
    ) -> Self:
        """Encodes a corpus, with the model's prompt of documents, into a ``.npy`` file, or resumes that.

        Raises:
            ValueError: Another suffix, another precision than float32, or an error of ``EmbeddingRun``.
        """
        place = index_path(path)
        if encoding is not None and encoding.precision != "float32":
            raise InvalidValueError(
                f"{place}: expected float32 for an index, got {encoding.precision}; leave it out"
            )
        texts = corpus if isinstance(corpus, TextStream) else TextStream(corpus)
        run = EmbeddingRun(model, texts, place, of_documents(model, encoding or Encoding()), restart=restart)
        run.finish(show_progress_bar)
        return cls.load(model, texts, place)

    @classmethod
    def load(cls, model: SentenceEncoder, corpus: str | Path | TextStream, path: str | Path) -> Self:
        """Maps the file of an index into memory after comparing it with its record.

        A file up to 1 GiB is read whole, which takes a second. Of a larger file the size is compared;
        ``contrastive-text verify`` reads it. If the file doesn't exist, its parts are the index.

        Raises:
            FileNotFoundError: There is neither the file nor a part of it.
            ValueError: A file without a record, or a changed file. An index of another model, another corpus,
                another prompt for documents, or fewer bits. Missing parts, or parts of several divisions.
        """
        place = index_path(path)
        if not is_begun(place):
            raise MissingFileError(f"{place}: expected an index, got nothing there; build it first")
        records = records_of(place, _ANEW)
        texts = corpus if isinstance(corpus, TextStream) else TextStream(corpus)
        summary = texts.summary or texts.scan()
        prompt = model.prompts.of_kind(DOCUMENT)
        asked: dict[str, object] = {
            "model": model.identity,
            "texts": summary.digest,
            "precision": "float32",
            "prompt": prompt or None,
        }
        for file, record in records.items():
            asked["shard"] = None if file == place else record.made_of.get("shard")  # a part alone is no index
            if said := differences({name: record.made_of.get(name) for name in asked}, asked):
                of_prompt = "" if record.made_of.get("prompt") == asked["prompt"] else _PROMPT
                raise InvalidValueError(
                    f"{file}: expected an index of this model and these texts, got {said}; {of_prompt}{_ANEW}"
                )
        check_written(records, _ANEW)
        return cls(model, *map(_mapped, records))

    def search(self, queries: str | Sequence[str], top_k: int = 5, batch_size: int = 64) -> list[list[Hit]]:
        """Finds the most similar texts of the corpus by exact search; see ``SentenceEncoder.search``.

        Args:
            queries: One query or many, encoded by ``encode_query``.
            top_k: Hits per query.
            batch_size: Queries encoded at once.

        Returns:
            Hits of each query, best first; of equal hits the earlier text comes first.
        """
        asked = self.model.encode_query(
            [queries] if isinstance(queries, str) else list(queries),
            batch_size=batch_size,
            convert_to_tensor=True,
            truncate_dim=self.parts[0].shape[1],
        )
        corpus = [as_tensor(part) for part in self.parts]
        return nearest(self.model.similarity_fn_name, torch.as_tensor(asked), corpus, top_k)


def _mapped(path: Path) -> Array:
    try:
        vectors: Array = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:  # a record that was made for it
        raise InvalidValueError(f"{path}: expected an array, got none ({error}); {_ANEW}") from error
    return vectors


def of_documents(model: SentenceEncoder, encoding: Encoding) -> Encoding:
    """Returns an encoding with the model's prompt and longest text of documents."""
    length = encoding.max_length or model.document_length
    return replace(encoding, prompt=model.prompts.of_kind(DOCUMENT), prompt_name=None, max_length=length)


def as_tensor(vectors: Array) -> Tensor:
    """Returns a mapped file as a tensor, which must not be written to.

    Torch warns of a read-only array. Filters of warnings belong to all threads, so the array is passed as a
    writeable one.
    """
    return torch.from_numpy(vectors if vectors.flags.writeable else np.asarray(_Unlocked(vectors)))


class _Unlocked:
    """Memory of an array without its read-only flag."""

    def __init__(self, array: Array) -> None:
        self._array = array  # the memory lives as long as its owner
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def index_path(path: str | Path) -> Path:
    """Returns the path of an index, after a check of its name before any text is encoded.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: The suffix is not ``.npy``.
    """
    if Path(path).suffix != ".npy":
        raise InvalidValueError(
            f"{path}: expected a name that ends in .npy for an index, got {Path(path).suffix!r}"
        )
    check_suffix(Path(path))
    return Path(path)


class _Part(NamedTuple):
    """Memory-mapped file of vectors with its table of text ids."""

    vectors: Array
    ids: Ids
    places: Ids

    def found(self, ids: Ids) -> tuple[npt.NDArray[np.bool_], Ids]:
        """Returns for each id whether it has a vector here, and the vector's place."""
        nearest = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return self.ids[nearest] == ids, self.places[nearest]


class TextVectors:
    """Vectors of texts by text id, from a file of ``contrastive-text embed --distinct``.

    Vectors and table are memory-mapped: only the vectors that are looked up are read, and processes of a machine
    share their pages. A look-up is a binary search in each part, of 27 steps among a hundred million texts.

    Args:
        path: A ``.npy`` file with its record and its table of ids next to it, or the name of the whole of its
            parts.

    Raises:
        FileNotFoundError: There is neither the file nor a part of it.
        ValueError: A file without record or table, a changed file, or vectors of bytes. Missing parts, or parts
            that don't belong together.
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
        self._parts = []
        for file in records:
            vectors: Array = np.load(file, mmap_mode="r")
            if vectors.dtype.kind != "f":
                raise InvalidValueError(
                    f"{file}: expected vectors of floating-point numbers, got {vectors.dtype}; embed them with "
                    "--precision float32"
                )
            self._parts.append(_Part(vectors, *np.load(ids_of(file), mmap_mode="r")))

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
        digests = [asdict(digest) for digest in self._digests if digest is not None]
        return blake2b(repr(digests).encode(), digest_size=16).hexdigest()

    def knows(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Returns True for each id that has a vector, (n,)."""
        known: npt.NDArray[np.bool_] = np.any([part.found(ids)[0] for part in self._parts], axis=0)
        return known

    def of(self, ids: Ids) -> Array:
        """Returns the vector of each id, (n, D). Every id must have one."""
        vectors = np.empty((len(ids), self.features), self._parts[0].vectors.dtype)
        for part in self._parts:
            known, places = part.found(ids)
            vectors[known] = part.vectors[places[known]]
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
