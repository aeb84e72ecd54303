"""Rank, world size and the gather that keeps the gradient exact."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed.tensor import DTensor, distribute_tensor


def is_distributed() -> bool:
    """Whether a process group of more than one process is up."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def world_size() -> int:
    """Returns the number of processes, 1 without a process group."""
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    """Returns the number of this process, 0 without a process group."""
    return dist.get_rank() if is_distributed() else 0


class _GatherRows(torch.autograd.Function):
    """All-gather whose backward pass sums every rank's gradient of the local rows."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, sizes: list[int]) -> Tensor:
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        ctx.sizes = sizes  # type: ignore[attr-defined]  # torch's documented way to keep non-tensors
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # Any: torch leaves ctx untyped
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        start = sum(ctx.sizes[: dist.get_rank()])
        return gradient[start : start + ctx.sizes[dist.get_rank()]], None


def gather_sizes(size: int, device: torch.device) -> list[int]:
    """Returns every rank's number of rows."""
    if not is_distributed():
        return [size]
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([size], device=device))
    return [int(s) for s in sizes]


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Concatenates the rows of all ranks, in rank order; ranks may hold different numbers.

    The gradient is that of the whole: with ``loss = sum(local rows) * W / N`` and the mean over ranks that
    DDP takes, it equals one process's gradient on all rows (a gather that detaches the other ranks' rows
    gives 1/W of it; Chen et al. 2020 and its followers differ here).

    Args:
        rows: This rank's rows, (rows, ...).
        sizes: Every rank's number of rows, from ``gather_sizes``.

    Returns:
        All rows, (sum(sizes), ...). Without a process group the argument itself.
    """
    if len(sizes) == 1:
        return rows
    gathered: Tensor = _GatherRows.apply(rows, sizes)  # type: ignore[no-untyped-call]  # torch's
    return gathered


def least_over_ranks(value: int, device: torch.device) -> int:
    """Returns the smallest of all ranks' values."""
    if not is_distributed():
        return value
    least = torch.tensor(value, device=device)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return int(least)


def most_over_ranks(values: list[int], device: torch.device) -> list[int]:
    """Returns the largest of all ranks' values, number by number."""
    if not is_distributed():
        return values
    most = torch.tensor(values, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return [int(each) for each in most.tolist()]


def sum_over_ranks(value: Tensor) -> Tensor:
    """Returns the sum of a value over all ranks, without a gradient."""
    total = value.detach().clone()
    if is_distributed():
        dist.all_reduce(total)
    return total


def whole(value: Tensor) -> Tensor:
    """Returns all of a tensor of which each rank holds a part; all ranks have to ask. Any other is itself."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def own_part(value: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that is split over ranks, in the same memory; any other is itself."""
    return value.to_local() if isinstance(value, DTensor) else value


def split_as(value: Tensor, like: Tensor) -> Tensor:
    """Returns this rank's part of a tensor that all ranks have whole, split as another one is, or not at all."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
