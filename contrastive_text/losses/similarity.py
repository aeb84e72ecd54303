"""Cosine similarity, in at least float32 whatever the precision of the run."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-8
"""Smallest norm divided by: at a zero vector the gradient is of order 1/EPSILON, finite in float32."""


def at_least_float32(values: Tensor) -> Tensor:
    """Gives half-precision values as float32; float32 and float64 stay as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def cosine_similarity_matrix(rows: Tensor, columns: Tensor) -> Tensor:
    """Gives the cosine of every row with every column, outside autocast.

    Under bfloat16 autocast a matrix product of float32 inputs is rounded to 8 bits: 0.08 per logit at a
    temperature of 0.05. A zero vector has cosine 0 with everything.

    Args:
        rows: (R, D).
        columns: (C, D).

    Returns:
        (R, C), float32, or float64 where the inputs are.

    Example:
        >>> cosine_similarity_matrix(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
        tensor([[0.6000, 0.0000]])
    """
    with torch.autocast(device_type=rows.device.type, enabled=False):
        unit_rows = F.normalize(at_least_float32(rows), dim=-1, eps=EPSILON)
        unit_columns = F.normalize(at_least_float32(columns), dim=-1, eps=EPSILON)
        return unit_rows @ unit_columns.T
