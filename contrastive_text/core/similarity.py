"""Similarity matrices of vectors, computed in at least float32 in any precision of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Similarity = Literal["cosine", "dot"]

EPSILON = 1e-8
"""Smallest norm that vectors are divided by. The gradient at a zero vector is 1/EPSILON, finite in float32."""


class _WidenFloat16(torch.autograd.Function):
    """Converts float16 to float32, with a finite gradient for vectors that are too short to have a direction."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # Any: torch leaves ctx untyped
        ctx.save_for_backward(values.abs().amax(dim=-1, keepdim=True) < torch.finfo(values.dtype).tiny)
        ctx.dtype = values.dtype
        return values.float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (is_tiny,) = ctx.saved_tensors
        narrow: Tensor = gradient.to(ctx.dtype)
        return narrow.masked_fill(is_tiny & narrow.isinf(), 0.0)


def at_least_float32(values: Tensor) -> Tensor:
    """Converts half-precision values to float32; float32 and float64 are returned unchanged.

    A zero vector that is normalized has a gradient of order 1/EPSILON, which is infinite in float16. For zero
    vectors and vectors of subnormal numbers, an infinite gradient is replaced by 0. For other vectors it stays
    infinite: ``16-mixed`` detects by it that its loss scale is too large.

    Args:
        values: (..., D).

    Example:
        >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    if values.dtype == torch.float16 and values.requires_grad and values.numel():
        widened: Tensor = _WidenFloat16.apply(values)  # type: ignore[no-untyped-call]  # torch's
        return widened
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def quantized_values(vectors: Tensor, ends: Tensor | None = None) -> Tensor:
    """Returns the values of quantized features as floating-point numbers.

    Args:
        vectors: (N, D).
        ends: Smallest and largest value of each feature, (2, D), for one byte a feature; None for one bit.

    Returns:
        -1 or 1 for a bit; the number of the step, 0 to 255, for a byte, (N, D).

    Example:
        >>> quantized_values(torch.tensor([[0.3, -0.2]]))
        tensor([[ 1., -1.]])
        >>> quantized_values(torch.tensor([[0.3, -0.25]]), ends=torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
        tensor([[165.,  95.]])
    """
    if ends is None:
        return torch.where(vectors > 0, 1.0, -1.0).to(vectors)
    low, high = ends
    steps: Tensor = ((vectors - low) / ((high - low) / 255)).floor().clamp(0, 255)
    return steps


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Returns a context that disables autocast; without autocast it costs nothing."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device_type=device.type, enabled=False)
    return nullcontext()


@contextmanager
def new_in_full_precision() -> Iterator[None]:
    """Creates new tensors in float32 if the default is half precision, as in a step under ``bf16-true``.

    Otherwise numbers of rows and logged metrics have 8 bits: 301 rows become 300.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.promote_types(default, torch.float32))
    try:
        yield
    finally:
        torch.set_default_dtype(default)


class _UnitVectors(torch.autograd.Function):
    """``torch.nn.functional.normalize`` that saves one copy of the vectors for its gradient, not two."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:  # Any: torch leaves ctx untyped
        norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
        inverse = norm.clamp(min=EPSILON).reciprocal_()
        unit: Tensor = vectors * inverse
        ctx.save_for_backward(unit, inverse, norm >= EPSILON)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, inverse, is_divided = ctx.saved_tensors
        with full_precision(unit.device):
            along = torch.linalg.vecdot(unit, gradient).unsqueeze(-1).mul_(is_divided)
            return torch.addcmul(gradient, unit, along, value=-1).mul_(inverse)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Returns vectors scaled to length 1, in at least float32; a zero vector stays zero.

    Args:
        vectors: (N, D).

    Returns:
        (N, D). The gradient can't be differentiated again.

    Example:
        >>> unit_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    unit: Tensor = _UnitVectors.apply(at_least_float32(vectors))  # type: ignore[no-untyped-call]  # torch's
    return unit


def prepare_vectors(vectors: Tensor, similarity: Similarity) -> Tensor:
    """Returns vectors whose dot products are the chosen similarity, (N, D), in at least float32."""
    return unit_vectors(vectors) if similarity == "cosine" else at_least_float32(vectors)


def cosine_similarity_matrix(rows: Tensor, columns: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Returns the cosine of every row with every column divided by the temperature, outside autocast.

    Under bfloat16 autocast a matrix product of float32 inputs is rounded to 8 bits: an error of 0.08 in a logit
    at a temperature of 0.05. A zero vector has cosine 0 with every vector.

    Args:
        rows: (R, D).
        columns: (C, D). If it is the same object as the rows, it is normalized only once.
        temperature: Divisor of the cosine, of one element if a tensor.

    Returns:
        (R, C), float32, or float64 for float64 inputs.

    Example:
        >>> cosine_similarity_matrix(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
        tensor([[0.6000, 0.0000]])
    """
    return similarity_matrix(rows, columns, temperature, similarity="cosine")


def similarity_matrix(
    rows: Tensor, columns: Tensor, temperature: Tensor | float, similarity: Similarity
) -> Tensor:
    """Returns the similarity of every row with every column divided by the temperature, outside autocast.

    Args:
        rows: (R, D).
        columns: (C, D). If it is the same object as the rows, it is prepared only once.
        temperature: Divisor of the similarity, of one element if a tensor.
        similarity: ``cosine``, or ``dot`` for the dot product without normalization.

    Returns:
        (R, C), float32, or float64 for float64 inputs.

    Example:
        >>> similarity_matrix(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0]]), 0.5, similarity="dot")
        tensor([[12.]])
    """
    with full_precision(rows.device):
        row_vectors = prepare_vectors(rows, similarity)
        column_vectors = row_vectors if columns is rows else prepare_vectors(columns, similarity)
        if rows.shape[-1] < len(columns):
            return (row_vectors / temperature) @ column_vectors.T
        return (row_vectors @ column_vectors.T) / temperature


def best_columns(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k highest scores of each row and their columns, the lower column first if scores are equal.

    Example:
        >>> best_columns(torch.tensor([[1.0, 3.0, 3.0]]), k=2)
        (tensor([[3., 3.]]), tensor([[1, 2]]))
    """
    best = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    places = best.indices[:, :k].sort(dim=1).values
    # If the next score equals the k-th score, torch's topk chose arbitrarily among the equal scores.
    least = best.values[:, k - 1 : k]
    has_tie = (least == best.values[:, k:]).any(dim=1)
    if has_tie.any():
        rows, least = scores[has_tie], least[has_tie]
        above, equal = rows > least, rows == least
        first = equal.cumsum(dim=1) <= k - above.sum(dim=1, keepdim=True)
        places[has_tie] = (above | equal & first).nonzero()[:, 1].view(-1, k)
    values, order = scores.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
