"""How texts become vectors: the options of one call, which travel together from where they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.prompts import Prompts
from contrastive_text.inference.device_pool import check_devices
from contrastive_text.inference.quantization import Precision, check_precision, check_ranges

Vectors: TypeAlias = Tensor | npt.NDArray[Any]  # Any: of numbers; float32, or a byte where precision asks for it

Device: TypeAlias = str | torch.device | list[str] | tuple[str, ...]
"""Where to encode: one device, or the names of several."""

BLOCK_SIZE = 16_384
"""Texts of a block: 256 batches of 64, so that sorting by length within it leaves next to no padding, and 25 MB
of vectors with 384 features."""


@dataclass(frozen=True, slots=True, eq=False)  # an array is neither equal to another nor not
class Encoding:
    """How texts become vectors; ``SentenceEncoder.encode`` has the same options and says more of each.

    Args:
        block_size: Texts that are read and encoded, and where they are kept saved, together.
        batch_size: Texts at once.
        normalize_embeddings: Whether to give vectors of unit length.
        prompt: Put before every text; None for that of ``prompt_name``.
        prompt_name: Which of the model's prompts; None for its default.
        truncate_dim: Features to keep, the first ones; None for the model's own number, or all.
        precision: ``float32``, or a byte or a bit for each feature.
        ranges: Smallest and largest value of each feature, (2, D), for ``int8`` and ``uint8``.
        device: Where to encode, or a list; None for where the model is.
        max_length: Longest text in tokens with special ones; None for the model's.

    Raises:
        ValueError: A size below 1, a name that is no precision or no device, an empty list of devices, or both a
            prompt and the name of one.

    Example:
        >>> Encoding(batch_size=0)
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: encode.batch_size: expected 1 or more, got 0
    """

    block_size: int = BLOCK_SIZE
    batch_size: int = 64
    normalize_embeddings: bool = False
    prompt: str | None = None
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"
    ranges: Vectors | None = None
    device: Device | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        for name, size in (("batch_size", self.batch_size), ("block_size", self.block_size)):
            if size < 1:
                raise InvalidValueError(f"encode.{name}: expected 1 or more, got {size}")
        if self.prompt is not None and self.prompt_name is not None:
            raise InvalidValueError(
                f"encode.prompt: expected none beside prompt_name, got {self.prompt!r} and {self.prompt_name!r}; "
                "give one of them"
            )
        check_precision(self.precision, where="encode.precision")
        if self.devices is not None:
            check_devices(self.devices)

    def prompt_in(self, prompts: Prompts) -> str:
        """Returns what stands before every text, by a model's prompts."""
        return prompts.text(self.prompt_name) if self.prompt is None else self.prompt

    def settled(self, prompts: Prompts, features: Callable[[], int], kept: int | None) -> Encoding:
        """Returns it with what a model has in place of names and of None.

        Args:
            prompts: The model's.
            features: Gives the features of its vectors.
            kept: How many are kept; None for all.

        Raises:
            ValueError: A byte without ranges, ranges of another number of features, or no such prompt.
        """
        ranges = self.ranges
        if self.is_byte:
            ranges = check_ranges(ranges, kept or features(), self.precision, where="encode.ranges")
        return replace(self, prompt=self.prompt_in(prompts), prompt_name=None, truncate_dim=kept, ranges=ranges)

    @property
    def devices(self) -> Sequence[str] | None:
        """The devices that each get a process; None where there is one device, which needs none."""
        return self.device if isinstance(self.device, list | tuple) else None

    def shared(self, texts: int | None) -> Encoding:
        """Returns it with blocks of so few texts that of a number of them each of several devices has some."""
        if texts is None or self.devices is None:
            return self
        return replace(self, block_size=min(self.block_size, max(-(-texts // (4 * len(self.devices))), 1)))

    @property
    def is_byte(self) -> bool:
        """Whether a feature becomes a byte, which takes ranges."""
        return self.precision in ("int8", "uint8")
