"""Use of vectors on disk: the vectors of a corpus, and look-up of the vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.manifests import FileDigest
from contrastive_text.core.storage.records import describe_value
from contrastive_text.data.files.readers import TextStream
from contrastive_text.data.prompts import DOCUMENT
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Array, differences, ids_path, map_vectors, open_vectors

Ids = npt.NDArray[np.int64]
_AGAIN = "write them with contrastive-text embed, with --restart over older vectors, or name another file"
_EMBED = "contrastive-text embed TEXTS OUT.npy --model MODEL --distinct"
_PROMPT = "embed takes the model's prompt of documents with --prompt_name document; "


def read_document_vectors(model: SentenceEncoder, texts: TextStream, path: str | Path) -> list[Array]:
    """Reads the vectors of a corpus that ``embed`` wrote, after comparing them with their record.

    The file, or each of its shards, is memory-mapped; see ``open_vectors``.

    Args:
        model: Model that encoded the corpus, with its prompt of documents.
        texts: The texts of the corpus.
        path: File of vectors, ``.npy``. If it doesn't exist, its shards are read.

    Returns:
        Vectors of the file or of each shard, (n, D), float32, with their rows in the order of the texts.

    Raises:
        FileNotFoundError: Neither the file nor a shard exists.
        ValueError: A file was changed or has no record; its model, texts, prompt or precision differ; or a shard
            is missing or doesn't belong to the others.

    Example:
        >>> parts = read_document_vectors(model, TextStream("corpus.txt"), "corpus.npy")  # doctest: +SKIP
    """
    path = Path(path)
    files = open_vectors(path, _AGAIN)
    summary = texts.summary or texts.scan()
    origin: dict[str, object] = {
        "model": model.identity,
        "texts": summary.digest,
        "precision": "float32",
        "prompt": model.prompts.for_kind(DOCUMENT) or None,
    }
    if model.similarity_fn_name != "cosine":  # which alone ignores lengths
        origin["normalize_embeddings"] = False
    for file, (record, vectors) in files.items():
        origin["shard"] = None if file == path else record.made_of.get("shard")  # a single shard isn't the corpus
        if difference := differences({name: record.made_of.get(name) for name in origin}, origin):
            todo = "" if record.made_of.get("prompt") == origin["prompt"] else _PROMPT
            raise InvalidValueError(
                f"{file}: expected vectors of this model and these texts, got {difference}; {todo}{_AGAIN}"
            )
        width = vectors.shape[1] if vectors.ndim == 2 else 0
        if not 0 < width <= model.features or vectors.dtype != np.float32:
            raise InvalidValueError(
                f"{path}: expected float32 of 1 to {model.features} features, got {vectors.dtype} of "
                f"{vectors.shape}; {_AGAIN}"
            )
    return [vectors for _, vectors in files.values()]


def document_encoding(model: SentenceEncoder, encoding: Encoding) -> Encoding:
    """Returns encoding options with the model's prompt and length limit for documents."""
    length = encoding.max_length or model.document_length
    return replace(encoding, prompt=model.prompts.for_kind(DOCUMENT), prompt_name=None, max_length=length)


def as_tensor(vectors: Array) -> Tensor:
    """Returns a tensor with the memory of an array, without torch's warning on read-only arrays.

    A read-only array is passed to torch as writable, because filters of warnings would change all threads. The
    tensor must not be written to.
    """
    return torch.from_numpy(vectors if vectors.flags.writeable else np.asarray(_WritableArray(vectors)))


class _WritableArray:
    """Exposes the memory of a read-only array to torch without the read-only flag."""

    def __init__(self, array: Array) -> None:
        self._array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


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
