"""Vectors in fewer bits: a byte or a bit for each feature. Maths on tensors alone."""

from __future__ import annotations

import warnings
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError

Precision: TypeAlias = Literal["float32", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

_FEW = 100
"""Vectors below which the ends of a feature's range are a matter of luck (sentence-transformers' bound)."""


def value_ranges(vectors: Tensor | npt.NDArray[np.floating]) -> Tensor:
    """Returns the smallest and the largest value of each feature, for ``int8`` and ``uint8``.

    Take vectors of texts like those that will be encoded, once for an index and all its queries.

    Args:
        vectors: (N, D); fewer than 100 give a warning.

    Returns:
        (2, D), float32.

    Raises:
        ValueError: Fewer than two vectors, or a value that is not finite.

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
    if len(values) < _FEW:
        warnings.warn(
            f"value_ranges: ranges from {len(values)} vectors are a matter of luck; take {_FEW} or more",
            stacklevel=2,
        )
    return torch.stack([values.amin(dim=0), values.amax(dim=0)]).float()


def quantize(
    vectors: Tensor | npt.NDArray[np.floating],
    precision: Precision,
    ranges: Tensor | npt.NDArray[np.floating] | None = None,
) -> Tensor:
    """Returns vectors in fewer bits, with the values of sentence-transformers' ``quantize_embeddings``.

    ===========  ============  ===============================================================================
    precision    gives         each feature
    ===========  ============  ===============================================================================
    ``float32``  float32       as it is
    ``uint8``    uint8         which of 256 equal steps between the ends of its range it lies in, 0 to 255
    ``int8``     int8          the same, less 128
    ``ubinary``  uint8, D / 8  a bit, 1 above 0, the first feature the highest of its byte; the last byte is
                               filled with 0
    ``binary``   int8, D / 8   the same bytes, less 128
    ===========  ============  ===============================================================================

    Bits are meant for Hamming distance, bytes for the product of the values (Shakir, Aarsen and Lee 2024,
    https://huggingface.co/blog/embedding-quantization).

    Differs: sentence-transformers takes the ranges from the very vectors where none are given. Two parts of a
    corpus then have bytes of different meaning, so here they must be given.

    Args:
        vectors: (..., D), of floating-point numbers.
        precision: One of the names above.
        ranges: (2, D), from ``value_ranges``, for ``int8`` and ``uint8`` alone. Values beyond them are clipped.

    Returns:
        (..., D), or (..., ceil(D / 8)) for bits, on the vectors' device.

    Raises:
        TypeError: Vectors that are quantized already.
        ValueError: Another name, a value that is not finite, or ranges that lack or don't fit.

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
        low, high = check_ranges(ranges, values.shape[-1], precision).to(values.device)
        levels: Tensor = ((values - low) / ((high - low) / 255)).floor().clamp(0, 255)
        return levels.to(torch.uint8) if precision == "uint8" else (levels - 128).to(torch.int8)
    bits = torch.nn.functional.pad(values > 0, (0, -values.shape[-1] % 8))
    worth = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    packed: Tensor = (bits.reshape(*bits.shape[:-1], bits.shape[-1] // 8, 8) * worth).sum(
        dim=-1, dtype=torch.uint8
    )
    return packed if precision == "ubinary" else (packed.to(torch.int16) - 128).to(torch.int8)


def check_ranges(
    ranges: Tensor | npt.NDArray[np.floating] | None, features: int, precision: Precision, where: str = "ranges"
) -> Tensor:
    """Returns the ranges of ``int8`` or ``uint8`` as a tensor, or says how to get them.

    Raises:
        ValueError: None, another shape than (2, D), or a feature whose ends aren't finite or don't differ.
    """
    if ranges is None:
        raise InvalidValueError(
            f"{where}: expected the range of each feature for {precision}, got none; give "
            "ranges=value_ranges(vectors) of some 1,000 texts like yours, the same for all that will be compared"
        )
    ends = torch.as_tensor(ranges).float()
    if ends.shape != (2, features):
        raise InvalidValueError(
            f"{where}: expected smallest and largest value of {features} features, (2, {features}), got the "
            f"shape {tuple(ends.shape)}; take them from vectors of this model and truncate_dim"
        )
    low, high = ends
    # The difference of two finite ends can be infinite, and a 255th of that of two unequal ones 0.
    odd = ~(ends.isfinite().all(dim=0) & (high - low).isfinite() & ((high - low) / 255 > 0))
    if bool(odd.any()):
        first, count = int(odd.nonzero()[0]), int(odd.sum())
        others = f" and {count - 1:,} more features like it" if count > 1 else ""
        todo = "take them from vectors of some 1,000 different texts"
        if float(low[first]) == float(high[first]):
            todo += ", or, where the model never changes this feature, keep float32"
        raise InvalidValueError(
            f"{where}: expected two finite values, the smaller one first, for each feature, got "
            f"{float(low[first]):g} to {float(high[first]):g} for feature {first}{others}; {todo}"
        )
    return ends


def _finite(vectors: Tensor | npt.NDArray[np.floating], where: str) -> Tensor:
    values = torch.as_tensor(vectors)
    if not values.is_floating_point():
        raise InvalidTypeError(
            f"{where}: expected floating-point vectors, got {values.dtype}; are they quantized already?"
        )
    if not bool(values.isfinite().all()):
        raise InvalidValueError(f"{where}: expected finite numbers, got others; encode these texts again")
    return values
