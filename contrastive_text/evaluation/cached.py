"""Encoder with a cache: encodes each distinct text once for all tasks, and can store the vectors on disk."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from contrastive_text.core.errors import DiskError, InvalidTypeError, InvalidValueError, one_of
from contrastive_text.core.libraries import is_read_error
from contrastive_text.core.similarity import quantized_values
from contrastive_text.core.storage.disk import atomic_file, remove_abandoned
from contrastive_text.data.prompts import Kind
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import encode_with_models
from contrastive_text.inference.sparse import SparseVectors, csr_of, is_sparse, join_rows

_T = TypeVar("_T")
EvaluatedPrecision: TypeAlias = Literal["float32", "binary", "int8"]
"""Precisions in which vectors can be evaluated."""
_KEY_BYTES = 16
"""Size of a text's digest in the cache, in bytes."""
_TRUNCATED, _MODEL = "truncated", "model"
"""Metadata keys of a stored file: number of truncated texts, and identity of the model."""


def sample_texts(texts: Iterable[_T], most: int, seed: int) -> list[_T]:
    """Returns all items in their order, or a random sample of ``most`` items if there are more than ``most``.

    Example:
        >>> sample_texts(["one", "two", "three", "four"], most=2, seed=0)
        ['three', 'four']
    """
    texts = list(texts)
    if len(texts) <= most:
        return texts
    return [texts[i] for i in sorted(np.random.default_rng(seed).choice(len(texts), size=most, replace=False))]


class CachedEncoder:
    """Encoder that encodes each distinct text once and reuses its vector.

    The key of a vector is the model's identity and the text. All tasks with the same sentence share its vector.
    Models that differ in weights, pooler or length limit do not share vectors. The name of a stored file is the
    digest of its bytes. A damaged file is reported and deleted, and its texts are encoded again.

    Args:
        model: The encoder.
        folder: Folder that stores vectors for later runs; None to keep them in memory.
        batch_size: Number of texts per batch.
        show_progress_bar: Whether to show a progress bar while texts are encoded.
        precision: ``binary`` or ``int8`` for the values that bits or bytes of the vectors have. The range of a
            feature for bytes is measured in the first call.

    Attributes:
        encoded: Number of texts that the network has encoded.
        truncated: Number of these texts that were truncated to the model's length limit.
        truncated_earlier: Number of truncated texts among the texts that earlier runs stored in the folder.

    Raises:
        OSError: The folder can't be created or written to.
        ValueError: The folder's path is a file.

    Warns:
        UserWarning: A file is damaged.

    Example:
        >>> embed = CachedEncoder(model)  # doctest: +SKIP
        >>> embed(["a bird", "a dog", "a bird"]).shape, embed.encoded  # doctest: +SKIP
        (torch.Size([3, 384]), 2)
    """

    def __init__(
        self,
        model: SentenceEncoder,
        folder: str | Path | None = None,
        batch_size: int = 64,
        show_progress_bar: bool = False,
        precision: EvaluatedPrecision = "float32",
    ) -> None:
        for place in () if folder is None else (Path(folder), *Path(folder).parents):
            if place.is_file():
                raise InvalidValueError(f"{place}: expected a folder for vectors, got a file; name another")
        self.model = model
        self.folder = None if folder is None else Path(folder) / model.identity
        self.batch_size = batch_size
        self.show_progress_bar = show_progress_bar
        self.precision = one_of("precision", precision, EvaluatedPrecision)
        if precision != "float32":
            model.require_dense("precision")
        self._ranges: Tensor | None = None
        self.encoded = 0
        self.truncated = 0
        self.truncated_earlier = 0
        self._same_network = [self]
        self._rows: dict[bytes, int] = {}
        self._blocks: list[npt.NDArray[np.float32] | SparseVectors] = []
        for path in () if self.folder is None else _files(self.folder):
            try:
                keys, vectors, truncated = _read(path, model)
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                if not is_read_error(error):
                    raise
                warnings.warn(
                    f"{path}: damaged ({error}); deleted, and its texts are encoded again", stacklevel=2
                )
                with suppress(OSError):  # the folder may be read-only
                    path.unlink()
                continue
            self._add(keys, vectors)
            self.truncated_earlier += truncated

    @classmethod
    def each(
        cls,
        models: Mapping[str, SentenceEncoder],
        folder: str | Path | None = None,
        batch_size: int = 64,
        show_progress_bar: bool = False,
        precision: EvaluatedPrecision = "float32",
    ) -> dict[str, Self]:
        """Returns an encoder for each pooler of one network. The encoders share the network's forward passes.

        A forward pass adds vectors to each of these encoders that has no vector of its texts yet.

        Args:
            models: Models by name, as ``inference.several_poolers.models_by_pooler`` returns them.
            folder: See the class.
            batch_size: See the class.
            show_progress_bar: See the class.
            precision: See the class.
        """
        encoders = {
            name: cls(model, folder, batch_size, show_progress_bar, precision) for name, model in models.items()
        }
        for encoder in encoders.values():
            encoder._same_network = list(encoders.values())
        return encoders

    def __call__(self, texts: Sequence[str], prompt_name: str | None = None, kind: Kind | None = None) -> Tensor:
        """Returns the vectors of texts in their order, (N, D), float32, on the CPU.

        Args:
            texts: N texts.
            prompt_name: Name of the model's prompt, such as ``query``. If the model has no such prompt, texts get
                no prompt. None for the model's default prompt.
            kind: Kind of the texts; None for the kind in the prompt's name. See ``Encoding``.

        Raises:
            TypeError: An item is not a text.
            ValueError: The model's vectors are sparse.
        """
        self.model.require_dense("evaluate")
        keys = self._encode_new(texts, prompt_name, kind)
        if not self._blocks:
            return torch.as_tensor(self.model.encode([]))
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return self._quantize(torch.from_numpy(self._blocks[0][[self._rows[key] for key in keys]]))

    def sparse(self, texts: Sequence[str], prompt_name: str | None, kind: Kind | None) -> SparseVectors:
        """Returns the vectors of texts of a model with sparse vectors, (N, V); see ``__call__``."""
        keys = self._encode_new(texts, prompt_name, kind)
        self._blocks = [join_rows(self._blocks, self.model.features)]
        return self._blocks[0][[self._rows[key] for key in keys]]

    def _encode_new(self, texts: Sequence[str], prompt_name: str | None, kind: Kind | None) -> list[bytes]:
        """Encodes the texts that have no vector yet. Returns the key of each text."""
        prompts = self.model.prompts
        prompt = None if prompt_name is None else prompts.for_kind(prompt_name)
        prompt = None if prompt == prompts.text() else prompt
        side = Encoding(prompt_name=prompt_name, kind=kind).resolve_kind(self.model.encoder)
        keys = [_key(text, place, prompt, side) for place, text in enumerate(texts)]
        new_texts = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
        if new_texts:
            self._encode(list(new_texts), list(new_texts.values()), prompt, side)
        return keys

    def _quantize(self, vectors: Tensor) -> Tensor:
        """Returns the values of vectors in the encoder's precision."""
        if self.precision == "float32" or not len(vectors):
            return vectors
        if self.precision == "binary":
            return quantized_values(vectors)
        if self._ranges is None:
            self._ranges = value_ranges(vectors)
        return quantized_values(vectors, self._ranges) - 128

    def _encode(self, keys: list[bytes], texts: list[str], prompt: str | None, kind: Kind | None) -> None:
        """Encodes new texts, and adds their vectors to all encoders that have none of the texts."""
        if self.model.is_sparse:
            rows: SparseVectors = self.model.encode(
                texts, self.batch_size, self.show_progress_bar, prompt=prompt, kind=kind
            )
            self._add_new(keys, rows, self.model.truncated)
            return
        new = [
            encoder
            for encoder in self._same_network
            if encoder is not self and encoder._rows.keys().isdisjoint(keys)
        ]
        encoders = [self, *new]
        models = [encoder.model for encoder in encoders]
        vectors, truncated = encode_with_models(
            models, texts, self.batch_size, self.show_progress_bar, prompt, kind
        )
        for encoder, block in zip(encoders, vectors, strict=True):
            encoder._add_new(keys, block.numpy(), truncated)

    def _add_new(
        self, keys: list[bytes], vectors: npt.NDArray[np.float32] | SparseVectors, truncated: int
    ) -> None:
        """Adds vectors of new texts to the cache in memory and to the folder."""
        self.encoded += len(keys)
        self.truncated += truncated
        digests = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, _KEY_BYTES)
        self._add(digests, vectors)
        if self.folder is not None:
            metadata = {_TRUNCATED: str(truncated), _MODEL: self.model.identity}
            content = save({"keys": digests, **_arrays(vectors)}, metadata)
            with atomic_file(self.folder / f"{_digest(content)}.safetensors") as file:
                file.write(content)

    def _add(self, keys: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32] | SparseVectors) -> None:
        start = sum(block.shape[0] for block in self._blocks)
        for row, key in enumerate(keys):
            self._rows.setdefault(key.tobytes(), start + row)
        self._blocks.append(vectors)


_CSR = ("data", "indices", "indptr", "shape")
"""Names of the arrays of sparse vectors in a stored file."""


def _arrays(vectors: npt.NDArray[np.float32] | SparseVectors) -> dict[str, npt.NDArray[Any]]:  # Any: of any type
    """Returns the arrays that store dense or sparse vectors, by name."""
    if is_sparse(vectors):
        parts = (vectors.data, vectors.indices, vectors.indptr, np.array(vectors.shape))
        return dict(zip(_CSR, parts, strict=True))
    return {"vectors": np.ascontiguousarray(vectors)}


def _key(text: str, place: int, prompt: str | None, kind: Kind | None) -> bytes:
    """Returns the digest of a text, its prompt (None for the model's default prompt) and its kind, or None."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"CachedEncoder: expected texts, got {type(text).__name__} at place {place}")
    salt = b"" if prompt is None else hashlib.blake2b(prompt.encode("utf-8", "surrogatepass")).digest()
    salt = salt if kind is None else hashlib.blake2b(salt, key=kind.encode()).digest()
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES, key=salt).digest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[: 2 * _KEY_BYTES]


def _files(folder: Path) -> list[Path]:
    """Creates the folder of a model's cached vectors. Returns the files that earlier runs stored there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"{folder}: expected a folder that can be created, got {error.strerror}; name another for the vectors"
        ) from error
    remove_abandoned(folder)
    return sorted(path for path in folder.glob("*.safetensors") if path.is_file())


def _read(
    path: Path, model: SentenceEncoder
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32] | SparseVectors, int]:
    """Reads a stored file of vectors. Returns its keys, its vectors and its number of truncated texts."""
    if is_changed(path):
        raise InvalidValueError("changed since it was written")
    with safe_open(path, framework="numpy") as file:
        metadata, keys = file.metadata(), file.get_tensor("keys")
        if model.is_sparse:
            *arrays, shape = map(file.get_tensor, _CSR)
            vectors: SparseVectors = csr_of(arrays, tuple(shape.tolist()))
        else:
            vectors = file.get_tensor("vectors")
    if metadata[_MODEL] != model.identity:
        raise InvalidValueError("of another model")
    return keys, vectors, int(metadata[_TRUNCATED])


def is_cache_file(path: Path) -> bool:
    """Returns whether a file name has the form of the files that ``CachedEncoder`` stores."""
    return path.suffix == ".safetensors" and re.fullmatch(f"[0-9a-f]{{{2 * _KEY_BYTES}}}", path.stem) is not None


def is_changed(path: Path) -> bool:
    """Returns whether the bytes of a stored file differ from the digest in its name."""
    with path.open("rb") as file:
        return path.stem != hashlib.file_digest(file, "sha256").hexdigest()[: 2 * _KEY_BYTES]
