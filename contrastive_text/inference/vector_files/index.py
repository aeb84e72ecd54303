"""An index: the vectors of a corpus on disk, and the exact search among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.data.files.readers import TextStream
from contrastive_text.data.prompts import DOCUMENT
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.search import Hit, nearest
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files.embedding import EmbeddingRun
from contrastive_text.inference.vector_files.formats import Array, check_suffix
from contrastive_text.inference.vector_files.shards import check_written, is_begun, records_of
from contrastive_text.inference.vector_files.unfinished import differences

_ANEW = "delete it to have it made anew, or name another file"
_PROMPT = "embed takes the model's prompt of documents with --prompt_name document; "


class VectorIndex:
    """The vectors of a corpus with the model that made them; a memory-mapped file, read as it is searched.

    Its file is what ``contrastive-text embed`` writes as ``.npy``, with the record beside it that names model and
    texts; or several such files are its parts, as ``embed --shard`` writes them. A corpus that comes as a list of
    texts needs no file: ``SentenceEncoder.search``.

    Args:
        model: Encodes the queries.
        parts: (C, D), float32, of the corpus, in its order; as many features as the model's, or fewer. Of several
            arrays each has some of the rows.

    Raises:
        ValueError: Vectors that no query of the model can be compared with.

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
        """All of them, (C, D): the mapped file; of several parts a copy in memory."""
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
        """Encodes a corpus, with the model's prompt of documents, into a ``.npy`` file, or goes on with it.

        Raises:
            ValueError: As ``EmbeddingRun`` says, another suffix, or another precision than float32.
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
        """Maps the file of an index into memory, once its bytes are known to be those that were written.

        Up to a gigabyte is read for that, which takes a second; of a larger file the size, the first and the last
        block and some between. Where there is no such file, but its parts, these are the index.

        Raises:
            FileNotFoundError: No such file, nor a part of it.
            ValueError: A file without a record, changed since it was written, of another model or another corpus,
                of another prompt than the model has for documents, or of fewer bits. Parts that lack, or of
                several divisions.
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
        """Finds the most similar texts of the corpus, exactly; see ``SentenceEncoder.search``.

        Args:
            queries: One query or many, encoded by ``encode_query``.
            top_k: Hits per query.
            batch_size: Queries encoded at once.

        Returns:
            For each query its hits, best first; of equal ones the earlier text.
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
    """Returns a mapped file as a tensor, which is only read.

    Torch warns of an array that can't be written to. Filters of warnings belong to all threads, so the array is
    passed as one that can.
    """
    return torch.from_numpy(vectors if vectors.flags.writeable else np.asarray(_Unlocked(vectors)))


class _Unlocked:
    """An array's memory without its mark that it can't be written to."""

    def __init__(self, array: Array) -> None:
        self._array = array  # the memory lives as long as its owner
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}


def index_path(path: str | Path) -> Path:
    """Returns the path of an index, or refuses its name, before any text is encoded.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: Another suffix than ``.npy``.
    """
    if Path(path).suffix != ".npy":
        raise InvalidValueError(
            f"{path}: expected a name that ends in .npy for an index, got {Path(path).suffix!r}"
        )
    check_suffix(Path(path))
    return Path(path)
