"""Quantization of vectors to a byte or a bit for each feature."""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, one_of
from contrastive_text.core.similarity import quantized_values

Precision: TypeAlias = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
"""Names of all precisions of quantized vectors, such as ``int8``."""

_FEWEST = 100
"""Number of vectors below which the value ranges of features vary too much (bound of sentence-transformers)."""


def value_ranges(vectors: Tensor | npt.NDArray[np.floating]) -> Tensor:
    """Computes the smallest and the largest value of each feature, for ``int8`` and ``uint8``.

    Compute them once for an index and all its queries, from vectors of similar texts.

    Args:
        vectors: Vectors, (N, D).

    Returns:
        Smallest and largest values, (2, D), float32.

    Raises:
        ValueError: There are fewer than two vectors, or a value is not finite.

    Warns:
        UserWarning: There are fewer than 100 vectors.

    Example:
        >>> value_ranges(torch.arange(200.0).reshape(100, 2))
        tensor([[  0.,   1.],
                [198., 199.]])
    """
    values = _finite(vectors, "value_ranges")
    if values.ndim != 2 or len(values) < 2:
        raise InvalidValueError(
            f"value_ranges: expected a matrix of two vectors or more, got the shape {tuple(values.shape)}; take "
            "the vectors of some 1,000 texts"
        )
    if len(values) < _FEWEST:
        warnings.warn(
            f"value_ranges: ranges from {len(values)} vectors are a matter of luck; take {_FEWEST} or more",
            stacklevel=2,
        )
    return torch.stack([values.amin(dim=0), values.amax(dim=0)]).float()


def quantize(
    vectors: Tensor | npt.NDArray[np.floating],
    precision: Precision,
    ranges: Tensor | npt.NDArray[np.floating] | None = None,
) -> Tensor:
    """Quantizes vectors, with the same values as sentence-transformers' ``quantize_embeddings``.

    ===========  ============  ===============================================================================
    precision    type, width   value of a feature
    ===========  ============  ===============================================================================
    ``float32``  float32, D    unchanged
    ``uint8``    uint8, D      number of its step, 0 to 255, of 256 equal steps between the ends of its range
    ``int8``     int8, D       the value of ``uint8`` minus 128
    ``ubinary``  uint8, D / 8  a bit, 1 above 0; the first feature is the highest bit of its byte, and the last
                               byte is filled with 0
    ``binary``   int8, D / 8   the bytes of ``ubinary`` minus 128
    ===========  ============  ===============================================================================

    Compare bits by Hamming distance, and bytes by the dot product (Shakir, Aarsen and Lee 2024,
    https://huggingface.co/blog/embedding-quantization).

    Differs: without ``ranges``, sentence-transformers computes them from the vectors themselves. Bytes of two
    calls can then not be compared, so here ``ranges`` are required.

    Args:
        vectors: Floating-point vectors, (..., D).
        precision: Name of a precision in the table.
        ranges: Result of ``value_ranges``, (2, D), for ``int8`` and ``uint8``. Values outside are clipped.

    Returns:
        Quantized vectors, (..., D), or (..., ceil(D / 8)) for bits, on the device of ``vectors``.

    Raises:
        TypeError: The vectors are quantized already.
        ValueError: The precision is unknown, a value is not finite, or ``ranges`` are missing or don't fit.

    Example:
        >>> vectors = torch.tensor([[0.3, -0.2, 0.1], [-1.0, 0.5, 0.9]])
        >>> quantize(vectors, "ubinary").tolist()  # 101 and 011, and five zeros
        [[160], [96]]
        >>> quantize(vectors, "int8", ranges=torch.tensor([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])).tolist()
        [[37, -27, 12], [-128, 63, 114]]
    """
    one_of("precision", precision, Precision)
    values = _finite(vectors, "quantize")
    if precision == "float32":
        return values.float()
    if precision in ("int8", "uint8"):
        levels = quantized_values(values, check_ranges(ranges, values.shape[-1], precision).to(values.device))
        return levels.to(torch.uint8) if precision == "uint8" else (levels - 128).to(torch.int8)
    bits = torch.nn.functional.pad(values > 0, (0, -values.shape[-1] % 8))
    powers = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    packed: Tensor = (bits.reshape(*bits.shape[:-1], bits.shape[-1] // 8, 8) * powers).sum(
        dim=-1, dtype=torch.uint8
    )
    return packed if precision == "ubinary" else (packed.to(torch.int16) - 128).to(torch.int8)


def check_ranges(
    ranges: Tensor | npt.NDArray[np.floating] | None, features: int, precision: Precision, where: str = "ranges"
) -> Tensor:
    """Checks the value ranges of features for ``int8`` or ``uint8``. Returns them as a float32 tensor, (2, D).

    Args:
        ranges: Result of ``value_ranges``.
        features: Number of features, D.
        precision: Name of the precision, for the error.
        where: Beginning of error messages.

    Raises:
        ValueError: ``ranges`` is None or has another shape than (2, D), or the ends of a feature aren't finite or
            don't differ.
    """
    if ranges is None:
        raise InvalidValueError(
            f"{where}: expected the range of each feature for {precision}, got ranges=None; give "
            "ranges=value_ranges(vectors) of some 1,000 texts like yours, the same for all that will be compared"
        )
    ends = torch.as_tensor(ranges).float()
    if ends.shape != (2, features):
        raise InvalidValueError(
            f"{where}: expected smallest and largest value of {features} features, (2, {features}), got the "
            f"shape {tuple(ends.shape)}; take them from vectors of this model and truncate_dim"
        )
    low, high = ends
    # The difference of finite ends may overflow to infinity, and its 255th part may underflow to 0.
    is_invalid = ~(ends.isfinite().all(dim=0) & (high - low).isfinite() & ((high - low) / 255 > 0))
    if bool(is_invalid.any()):
        first, count = int(is_invalid.nonzero()[0]), int(is_invalid.sum())
        more = f" and {count - 1:,} more features like it" if count > 1 else ""
        todo = "take them from vectors of some 1,000 different texts"
        if float(low[first]) == float(high[first]):
            todo += ", or, where the model never changes this feature, keep float32"
        raise InvalidValueError(
            f"{where}: expected two finite values, the smaller one first, for each feature, got "
            f"{float(low[first]):g} to {float(high[first]):g} for feature {first}{more}; {todo}"
        )
    return ends


def _finite(vectors: Tensor | npt.NDArray[np.floating], where: str) -> Tensor:
    values = torch.as_tensor(vectors)
    if not values.is_floating_point():
        raise InvalidTypeError(
            f"{where}: expected floating-point vectors, got {values.dtype}; are they quantized already?"
        )
    if not bool(values.isfinite().all()):
        raise InvalidValueError(
            f"{where}: expected finite numbers, got NaN or infinity; encode these texts again"
        )
    return values
