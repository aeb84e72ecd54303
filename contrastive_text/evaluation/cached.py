"""Vectors of texts that many tasks share: every distinct text is encoded once, and kept on disk if asked to."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from contrastive_text.core.errors import DiskError, InvalidTypeError, InvalidValueError
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.storage.disk import remove_abandoned, replacing
from contrastive_text.inference.readings import vectors_of_each
from contrastive_text.inference.sentence_encoder import SentenceEncoder

_T = TypeVar("_T")
_KEY_BYTES = 16
_TRUNCATED, _MODEL = "truncated", "model"


def drawn_texts(texts: Iterable[_T], most: int, seed: int) -> list[_T]:
    """Returns texts, or what stands for them, or where they are more than ``most`` so many, in their order.

    Example:
        >>> drawn_texts(["one", "two", "three", "four"], most=2, seed=0)
        ['three', 'four']
    """
    texts = list(texts)
    if len(texts) <= most:
        return texts
    return [texts[i] for i in sorted(np.random.default_rng(seed).choice(len(texts), size=most, replace=False))]


class CachedEncoder:
    """Encodes texts, none of them twice.

    Vectors are found by the model's identity and the text itself, not by file or task: whatever shares a sentence
    shares its vector, and another model, pooler or length limit never does. A file on disk is named by the digest
    of its bytes; one that was changed is told of, deleted, and its texts are encoded anew.

    Args:
        model: The encoder.
        folder: Where vectors stay for the next run; None for memory alone.
        batch_size: Texts at once.
        show_progress_bar: Whether to draw a bar while texts are encoded.

    Attributes:
        encoded: Number of texts that went through the network so far.
        truncated: How many of these were cut to the model's limit.
        truncated_earlier: How many texts were cut whose vectors earlier runs have left in the folder.

    Raises:
        OSError: The folder can't be made or written to.
        ValueError: A file where the folder should be; the message names it.

    Warns:
        UserWarning: A damaged file.

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
    ) -> None:
        for place in () if folder is None else (Path(folder), *Path(folder).parents):
            if place.is_file():
                raise InvalidValueError(f"{place}: expected a folder for vectors, got a file; name another")
        self.model = model
        self.folder = None if folder is None else Path(folder) / model.identity
        self.batch_size = batch_size
        self.show_progress_bar = show_progress_bar
        self.encoded = 0
        self.truncated = 0
        self.truncated_earlier = 0
        self._beside = [self]
        self._places: dict[bytes, int] = {}
        self._blocks: list[npt.NDArray[np.float32]] = []
        for path in () if self.folder is None else _files(self.folder):
            try:
                keys, vectors, truncated = _read(path, model)
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                if not is_failure(error):
                    raise
                warnings.warn(f"{path}: damaged ({error}); deleted, and its texts are encoded anew", stacklevel=2)
                with suppress(OSError):  # of a folder that is only read
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
    ) -> dict[str, Self]:
        """Returns an encoder for each of several readings of one network, which share its passes.

        What one of them encodes the others know too, but for those that know some of the texts already.

        Args:
            models: By name, as ``inference.readings.readings`` gives them.
            folder: As for each of them.
            batch_size: As for each of them.
            show_progress_bar: As for each of them.
        """
        found = {name: cls(model, folder, batch_size, show_progress_bar) for name, model in models.items()}
        for embed in found.values():
            embed._beside = list(found.values())
        return found

    def __call__(self, texts: Sequence[str], kind: str | None = None) -> Tensor:
        """Returns the vectors of texts in their order, (N, D), float32, on the CPU.

        Args:
            texts: N of them.
            kind: Name of the model's prompt before the texts, such as ``query``; nothing stands before them where
                it has none of that name. None for its default.

        Raises:
            TypeError: Something that is not text.
        """
        prompts = self.model.prompts
        prompt = None if kind is None or prompts.of_kind(kind) == prompts.text() else prompts.of_kind(kind)
        keys = [_key(text, place, prompt) for place, text in enumerate(texts)]
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._places}
        if new:
            self._encode(list(new), list(new.values()), prompt)
        if not self._blocks:
            return torch.as_tensor(self.model.encode([]))
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        return torch.from_numpy(self._blocks[0][[self._places[key] for key in keys]])

    def _encode(self, keys: list[bytes], texts: list[str], prompt: str | None) -> None:
        those = [self, *(embed for embed in self._beside if embed is not self and not embed._knows(keys))]
        vectors, truncated = vectors_of_each(
            [embed.model for embed in those], texts, self.batch_size, self.show_progress_bar, prompt
        )
        for embed, found in zip(those, vectors, strict=True):
            embed._take(keys, found.numpy(), truncated)

    def _knows(self, keys: list[bytes]) -> bool:
        """Whether some of the texts are here."""
        return any(key in self._places for key in keys)

    def _take(self, keys: list[bytes], vectors: npt.NDArray[np.float32], truncated: int) -> None:
        self.encoded += len(keys)
        self.truncated += truncated
        named = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(-1, _KEY_BYTES)
        self._add(named, vectors)
        if self.folder is not None:
            metadata = {_TRUNCATED: str(truncated), _MODEL: self.model.identity}
            content = save({"keys": named, "vectors": np.ascontiguousarray(vectors)}, metadata)
            with replacing(self.folder / f"{_digest(content)}.safetensors") as file:
                file.write(content)

    def _add(self, keys: npt.NDArray[np.uint8], vectors: npt.NDArray[np.float32]) -> None:
        start = sum(map(len, self._blocks))
        for place, key in enumerate(keys):
            self._places.setdefault(key.tobytes(), start + place)
        self._blocks.append(vectors)


def _key(text: str, place: int, prompt: str | None) -> bytes:
    """Returns the digest of a text, and of the prompt before it where that isn't the model's default."""
    if not isinstance(text, str):
        raise InvalidTypeError(f"CachedEncoder: expected texts, got {type(text).__name__} at place {place}")
    apart = b"" if prompt is None else hashlib.blake2b(prompt.encode("utf-8", "surrogatepass")).digest()
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES, key=apart).digest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[: 2 * _KEY_BYTES]


def _files(folder: Path) -> list[Path]:
    """Makes the folder of a model's vectors, and gives the files that earlier runs have left there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"{folder}: expected a folder that can be made, got {error.strerror}; name another for the vectors"
        ) from error
    remove_abandoned(folder)
    return sorted(path for path in folder.glob("*.safetensors") if path.is_file())


def _read(path: Path, model: SentenceEncoder) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], int]:
    """Returns keys, vectors, and how many of the texts were cut."""
    if is_changed(path):
        raise InvalidValueError("changed since it was written")
    with safe_open(path, framework="numpy") as file:
        metadata, keys, vectors = file.metadata(), file.get_tensor("keys"), file.get_tensor("vectors")
    if metadata[_MODEL] != model.identity:
        raise InvalidValueError("of another model")
    return keys, vectors, int(metadata[_TRUNCATED])


def is_kept(path: Path) -> bool:
    """Whether a file's name is one that ``CachedEncoder`` gives."""
    return path.suffix == ".safetensors" and re.fullmatch(f"[0-9a-f]{{{2 * _KEY_BYTES}}}", path.stem) is not None


def is_changed(path: Path) -> bool:
    """Whether the bytes of a file of vectors aren't those that its name is the digest of."""
    with path.open("rb") as file:
        return path.stem != hashlib.file_digest(file, "sha256").hexdigest()[: 2 * _KEY_BYTES]
