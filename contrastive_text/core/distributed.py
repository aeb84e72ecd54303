"""Ranks of a distributed run: world size, gathering rows with an exact gradient, and reductions over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from contrastive_text.core.errors import InvalidValueError

_ALIGNMENT = 16
"""Alignment of tensors in the buffer of an all-gather, in bytes: the size of the widest number."""


def is_distributed() -> bool:
    """Returns whether a process group of more than one process is initialized.

    Example:
        >>> is_distributed()
        False
    """
    return _has_group() and dist.get_world_size() > 1


@contextmanager
def temporary_process_group() -> Iterator[None]:
    """Destroys a process group that was initialized inside the block.

    Without this, the threads of gloo run until the process is torn down, which sometimes aborts the process.
    """
    before = _has_group()
    try:
        yield
    finally:
        if _has_group() and not before:
            dist.destroy_process_group()


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Returns the number of processes; 1 without a process group.

    Example:
        >>> world_size()
        1
    """
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    """Returns the rank of this process; 0 without a process group.

    Example:
        >>> rank()
        0
    """
    return dist.get_rank() if is_distributed() else 0


class _Parts:
    """Layout of the rows of several tensors in one buffer of bytes. The part of each rank has the same size.

    Args:
        tensors: Tensors whose rows are stored, of any number of rows.
        max_rows: Largest number of rows on any rank.
    """

    def __init__(self, tensors: Sequence[Tensor], max_rows: int) -> None:
        self.types = [(tensor.dtype, tensor.shape[1:]) for tensor in tensors]
        self.row_bytes = [tensor.element_size() * math.prod(tensor.shape[1:]) for tensor in tensors]
        # Each tensor begins at an offset that suits numbers of any type.
        self.offsets = [
            0,
            *accumulate(-(-max_rows * row_bytes // _ALIGNMENT) * _ALIGNMENT for row_bytes in self.row_bytes),
        ]

    def empty(self, ranks: int, device: torch.device) -> Tensor:
        """Returns an uninitialized buffer for the rows of all ranks, (ranks, bytes)."""
        return torch.empty(ranks, self.offsets[-1], dtype=torch.uint8, device=device)

    def rows(self, part: Tensor, index: int, size: int) -> Tensor:
        """Returns the first ``size`` rows of a tensor as a view of the part of a rank, (bytes,)."""
        (dtype, shape), offset = self.types[index], self.offsets[index]
        return part[offset : offset + size * self.row_bytes[index]].view(dtype).view(size, *shape)


class _GatherRows(torch.autograd.Function):
    """Autograd function: all-gather of several tensors at once.

    Backward sums the gradients of all ranks for the local rows.
    """

    @staticmethod
    def forward(
        ctx: Any, sizes: list[int], *tensors: Tensor
    ) -> tuple[Tensor, ...]:  # Any: torch leaves it untyped
        layout = _Parts(tensors, max(sizes))
        (local,), buffer = (layout.empty(ranks, tensors[0].device) for ranks in (1, len(sizes)))
        for index, rows in enumerate(tensors):
            layout.rows(local, index, len(rows)).copy_(rows)
        dist.all_gather_single(buffer.flatten(), local)
        gathered = tuple(
            torch.cat([layout.rows(part, index, size) for part, size in zip(buffer, sizes, strict=True)])
            for index in range(len(tensors))
        )
        ctx.sizes = sizes
        ctx.set_materialize_grads(False)  # columns that no row is compared with send no gradient
        ctx.mark_non_differentiable(
            *(rows for rows, needed in zip(gathered, ctx.needs_input_grad[1:], strict=True) if not needed)
        )
        return gathered

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:  # Any: torch leaves it untyped
        sizes, results = ctx.sizes, list(gradients)
        present = {position: gradient for position, gradient in enumerate(gradients) if gradient is not None}
        for dtype in dict.fromkeys(gradient.dtype for gradient in present.values()):
            group = {position: gradient for position, gradient in present.items() if gradient.dtype == dtype}
            layout, device = _Parts(list(group.values()), max(sizes)), next(iter(group.values())).device
            (local,), gathered = layout.empty(1, device), layout.empty(len(sizes), device).zero_()
            for index, gradient in enumerate(group.values()):
                for part, rows in zip(gathered, torch.split(gradient, sizes), strict=True):
                    layout.rows(part, index, len(rows)).copy_(rows)
            dist.reduce_scatter_single(local.view(dtype), gathered.flatten().view(dtype))
            for index, position in enumerate(group):
                results[position] = layout.rows(local, index, sizes[dist.get_rank()])
        return None, *results


def gather_sizes(size: int, device: torch.device, known: Sequence[int] | None = None) -> list[int]:
    """Returns the number of rows that each rank has. Ranks exchange the numbers if they aren't known.

    Args:
        size: Number of rows of this rank.
        device: Device on which the ranks communicate.
        known: Number of rows of every rank, such as ``Batch.rank_sizes``: given on all ranks or on none. None to
            exchange them.

    Raises:
        ValueError: ``known`` differs from ``size`` at this rank.

    Example:
        >>> gather_sizes(3, torch.device("cpu"))  # in one process
        [3]
    """
    if not is_distributed():
        return [size]
    if known is not None and len(known) == world_size():
        if known[rank()] != size:
            raise InvalidValueError(
                f"Batch.rank_sizes: expected {size} examples of rank {rank()}, which it has, got "
                f"{known[rank()]}; give rank_sizes=None to Batch.replace if it selects other rows"
            )
        return list(known)
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([size], device=device))
    return [int(s) for s in sizes]


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Concatenates the rows of all ranks, (rows, ...). See ``gather_all`` for several tensors at once.

    Example:
        >>> rows = torch.ones(3, 4)
        >>> gather_rows(rows, gather_sizes(len(rows), rows.device)).shape  # in one process
        torch.Size([3, 4])
    """
    return gather_all([rows], sizes)[0]


def gather_all(tensors: Sequence[Tensor], sizes: list[int]) -> list[Tensor]:
    """Concatenates the rows of all ranks, in rank order. Ranks may have different numbers of rows.

    All tensors, of any type, are sent in one gather. Their gradients are summed in one reduce-scatter, from which
    each rank receives only its own rows.

    The gradient is exact. With ``loss = sum(local rows) * W / N`` and the mean over ranks that DDP takes, it
    equals the gradient of a single process on all rows. (A gather that detaches the rows of other ranks gives 1/W
    of it; Chen et al. 2020 and its followers differ here.)

    Args:
        tensors: Rows of this rank, (rows, ...), all on one device.
        sizes: Number of rows of every rank, from ``gather_sizes``.

    Returns:
        Rows of all ranks for each tensor, (sum(sizes), ...). The tensors themselves without a process group.

    Example:
        >>> rows, ids = torch.ones(2, 3), torch.arange(2)
        >>> [each.shape for each in gather_all([rows, ids], sizes=[2])]  # one process
        [torch.Size([2, 3]), torch.Size([2])]
    """
    return list(tensors) if len(sizes) == 1 else list(_GatherRows.apply(sizes, *tensors))  # type: ignore[no-untyped-call]  # torch's


def min_over_ranks(value: int, device: torch.device) -> int:
    """Returns the smallest of the values of all ranks.

    Example:
        >>> min_over_ranks(3, torch.device("cpu"))  # in one process
        3
    """
    return -max_over_ranks([-value], device)[0]


def max_over_ranks(values: list[int], device: torch.device) -> list[int]:
    """Returns the elementwise maximum of the values of all ranks."""
    return [int(value) for value in largest_over_ranks(torch.tensor(values, device=device)).tolist()]


def largest_over_ranks(values: Tensor) -> Tensor:
    """Returns the elementwise maximum of a tensor over all ranks, without a gradient.

    Example:
        >>> largest_over_ranks(torch.tensor([1.0, 2.0]))  # in one process
        tensor([1., 2.])
    """
    largest = values.detach().clone()
    if is_distributed():
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest


def sum_over_ranks(value: Tensor) -> Tensor:
    """Returns the sum of a value over all ranks, without a gradient.

    Example:
        >>> sum_over_ranks(torch.tensor([1.0, 2.0]))  # in one process
        tensor([1., 2.])
    """
    total = value.detach().clone()
    if is_distributed():
        dist.all_reduce(total)
    return total


def means_over_ranks(
    metrics: Mapping[str, Tensor], weights: Mapping[str, Tensor | float] | None = None
) -> dict[str, Tensor]:
    """Returns the weighted mean of each metric over all ranks, in one reduction and without a gradient.

    Args:
        metrics: Name -> scalar, all on one device, with the same names on every rank.
        weights: Name -> weight of this rank, such as its number of rows. Default: 1. A metric of weight 0 may be
            NaN.

    Returns:
        Name -> mean in the precision of the metric, in at least float32; 0 if all weights are 0.
    """
    if not is_distributed() or not metrics:
        return dict(metrics)
    local = {name: metrics[name].detach().reshape(()) for name in sorted(metrics)}  # in one order on all ranks
    dtypes = {name: torch.promote_types(figure.dtype, torch.float32) for name, figure in local.items()}
    dtype = reduce(torch.promote_types, dtypes.values())
    values = torch.stack([figure.to(dtype) for figure in local.values()])
    weight_of = weights or {}
    factors = (weight_of.get(name, 1) for name in local)  # a number of the host is filled in, not copied
    factor = torch.stack(
        [s.to(values).reshape(()) if isinstance(s, Tensor) else values.new_full((), s) for s in factors]
    )
    totals, divisors = sum_over_ranks(torch.stack([torch.where(factor > 0, values * factor, 0), factor]))
    means = torch.where(divisors > 0, totals / divisors, 0)
    mean_of = dict(zip(local, means.unbind(), strict=True))
    return {name: mean_of[name].to(dtypes[name]) for name in metrics}


def full_tensor(value: Tensor) -> Tensor:
    """Returns the full tensor of a DTensor, and any other tensor unchanged. All ranks must call it together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_tensor(value: Tensor) -> Tensor:
    """Returns the shard of this rank of a DTensor, in the same memory, and any other tensor unchanged."""
    return value.to_local() if isinstance(value, DTensor) else value


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Returns the shard of this rank of a full tensor, sharded like another tensor; unchanged if that is not."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.shape != like.shape:
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
