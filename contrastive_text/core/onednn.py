"""Products faster than those that torch takes, where we could measure: by oneDNN, or the other way round."""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch.backends import mkldnn

_PROCESSORS = ("x86_64", "AMD64")
"""Where it was measured: on an AMD EPYC with AVX-512, a tenth to a third faster; with AVX2 no slower."""

_FEW = 4
"""Rows up to which a product by vectors, or by columns times rows, is faster, up to twice, with 384 features."""

_LINE = 16
"""Numbers in 64 bytes. Equal rows that begin at different places within so many are often rounded differently."""


def has_onednn() -> bool:
    """Whether torch has oneDNN here, on a processor of the kind where it was measured."""
    return platform.machine() in _PROCESSORS and bool(mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch's


def has_fast_layers() -> bool:
    """Whether oneDNN's layers, of weights in its own order, are faster than torch's: with AVX-512's instructions.

    With AVX2's they were 5 % slower, and their GELU took as long as half of the product before it.
    """
    return has_onednn() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def products(rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the dot product of every row with every column, without a gradient, (R, D), (C, D) -> (R, C).

    How they are rounded is the processor's affair: products of equal columns may differ in their last bits,
    within a block or from one block to another.

    Example:
        >>> products(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([[3., 2.]])
    """
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (rows, columns))
    if plain and 0 < len(rows) <= _FEW and _by_feature(columns):
        # A product with a vector for each row, on several threads: one with a matrix takes up to twice the time.
        return torch.bmm(rows.unsqueeze(1), columns.T.expand(len(rows), *columns.T.shape)).squeeze(1)
    if plain and rows.numel() and columns.numel() and columns.is_contiguous() and has_onednn():
        if len(rows) <= _FEW and rows.shape[1] % _LINE == 0:
            # Of one row, or one column, torch takes a product with a vector: slower, and rounded otherwise.
            twice = _two_at_least(columns) @ _two_at_least(rows).T
            return twice[: len(columns), : len(rows)].T.contiguous()
        found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, columns, None, "none", [], "none")
        return found
    return rows @ columns.T


def _by_feature(columns: Tensor) -> bool:
    """Whether one feature of all columns lies together in memory."""
    return columns.stride(0) == 1 and columns.stride(1) >= max(len(columns), 2)


def _two_at_least(rows: Tensor) -> Tensor:
    return rows.repeat(2, 1) if len(rows) == 1 else rows.contiguous()
