"""Similarity of vectors, in at least float32 whatever the precision of the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Similarity = Literal["cosine", "dot"]

EPSILON = 1e-8
"""Smallest norm divided by: at a zero vector the gradient is of order 1/EPSILON, finite in float32."""


class _Widened(torch.autograd.Function):
    """Float16 as float32, with a gradient that is finite where vectors are too short to have a direction."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # Any: torch leaves ctx untyped
        ctx.save_for_backward(values.abs().amax(dim=-1, keepdim=True) < torch.finfo(values.dtype).tiny)
        ctx.dtype = values.dtype
        return values.float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (short,) = ctx.saved_tensors
        narrow: Tensor = gradient.to(ctx.dtype)
        return narrow.masked_fill(short & narrow.isinf(), 0.0)


def at_least_float32(values: Tensor) -> Tensor:
    """Returns half-precision values as float32; float32 and float64 stay as they are.

    The gradient of a vector of zeros, of order 1/EPSILON where it is normalised, is infinite in float16. For such
    vectors, and those of nothing but subnormal numbers, infinity is 0 here; for others it stays, which is how
    ``16-mixed`` learns that its factor of the loss is too large.

    Args:
        values: (..., D).

    Example:
        >>> at_least_float32(torch.zeros(1, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    if values.dtype == torch.float16 and values.requires_grad and values.numel():
        widened: Tensor = _Widened.apply(values)  # type: ignore[no-untyped-call]  # torch's
        return widened
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Returns a context outside autocast; where none is on, one that costs nothing."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device_type=device.type, enabled=False)
    return nullcontext()


@contextmanager
def new_in_full_precision() -> Iterator[None]:
    """Makes new tensors float32 where they would be half precision, as in a step under Lightning's ``bf16-true``.

    Numbers of rows and logged figures keep 8 bits otherwise: 301 rows are 300.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.promote_types(default, torch.float32))
    try:
        yield
    finally:
        torch.set_default_dtype(default)


class _UnitVectors(torch.autograd.Function):
    """``torch.nn.functional.normalize`` that keeps one copy of the vectors for its gradient, not two."""

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
    """Returns vectors of length 1, in at least float32; a zero vector stays one.

    Args:
        vectors: (N, D).

    Returns:
        (N, D). The gradient can't be differentiated once more.

    Example:
        >>> unit_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    unit: Tensor = _UnitVectors.apply(at_least_float32(vectors))  # type: ignore[no-untyped-call]  # torch's
    return unit


def comparable(vectors: Tensor, similarity: Similarity) -> Tensor:
    """Returns vectors whose dot products are the similarities, (N, D), in at least float32."""
    return unit_vectors(vectors) if similarity == "cosine" else at_least_float32(vectors)


def cosine_similarity_matrix(rows: Tensor, columns: Tensor, temperature: Tensor | float = 1.0) -> Tensor:
    """Returns the cosine of every row with every column over the temperature, outside autocast.

    Under bfloat16 autocast a matrix product of float32 inputs is rounded to 8 bits: 0.08 per logit at a
    temperature of 0.05. A zero vector has cosine 0 with everything.

    Args:
        rows: (R, D).
        columns: (C, D); the same object as the rows is normalised once.
        temperature: Divisor of the cosine, of one element if a tensor.

    Returns:
        (R, C), float32, or float64 where the inputs are.

    Example:
        >>> cosine_similarity_matrix(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
        tensor([[0.6000, 0.0000]])
    """
    return similarity_matrix(rows, columns, temperature, similarity="cosine")


def similarity_matrix(
    rows: Tensor, columns: Tensor, temperature: Tensor | float, similarity: Similarity
) -> Tensor:
    """Returns the similarity of every row with every column over the temperature, outside autocast.

    Args:
        rows: (R, D).
        columns: (C, D); the same object as the rows is prepared once.
        temperature: Divisor of the similarity, of one element if a tensor.
        similarity: Of directions (``cosine``), or of the vectors as they are (``dot``).

    Returns:
        (R, C), float32, or float64 where the inputs are.

    Example:
        >>> similarity_matrix(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0]]), 0.5, similarity="dot")
        tensor([[12.]])
    """
    with full_precision(rows.device):
        own = comparable(rows, similarity)
        others = own if columns is rows else comparable(columns, similarity)
        if rows.shape[-1] < len(columns):
            return (own / temperature) @ others.T
        return (own @ others.T) / temperature
