"""Rank, world size and the gather that keeps the gradient exact."""

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

_ALIGNED = 16
"""Bytes of the widest number."""


def is_distributed() -> bool:
    """Whether a process group of more than one process is up.

    Example:
        >>> is_distributed()
        False
    """
    return _has_group() and dist.get_world_size() > 1


@contextmanager
def leaving_the_group() -> Iterator[None]:
    """Leaves the group of processes that the block has started, as NCCL's is left when a process ends.

    gloo's threads otherwise run until the process is taken apart, which now and then aborts it.
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
    """Returns the number of processes, 1 without a process group.

    Example:
        >>> world_size()
        1
    """
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    """Returns the number of this process, 0 without a process group.

    Example:
        >>> rank()
        0
    """
    return dist.get_rank() if is_distributed() else 0


class _Parts:
    """Where rows of several tensors lie in one buffer of bytes; each rank's part of it is as long.

    Args:
        tensors: What is put there, with any number of rows.
        most: Rows of the rank that has most.
    """

    def __init__(self, tensors: Sequence[Tensor], most: int) -> None:
        self.kinds = [(each.dtype, each.shape[1:]) for each in tensors]
        self.widths = [each.element_size() * math.prod(each.shape[1:]) for each in tensors]
        # Each begins where a number of any type may.
        self.places = [0, *accumulate(-(-most * width // _ALIGNED) * _ALIGNED for width in self.widths)]

    def empty(self, ranks: int, device: torch.device) -> Tensor:
        """Returns a buffer, (ranks, bytes)."""
        return torch.empty(ranks, self.places[-1], dtype=torch.uint8, device=device)

    def rows(self, part: Tensor, number: int, size: int) -> Tensor:
        """Returns so many rows of the tensor of this number, in the memory of a rank's part, (bytes,)."""
        (dtype, shape), place = self.kinds[number], self.places[number]
        return part[place : place + size * self.widths[number]].view(dtype).view(size, *shape)


class _GatherRows(torch.autograd.Function):
    """All-gather of tensors in one; its backward pass sums every rank's gradient of the local rows."""

    @staticmethod
    def forward(
        ctx: Any, sizes: list[int], *tensors: Tensor
    ) -> tuple[Tensor, ...]:  # Any: torch leaves it untyped
        parts = _Parts(tensors, max(sizes))
        (own,), gathered = (parts.empty(ranks, tensors[0].device) for ranks in (1, len(sizes)))
        for number, rows in enumerate(tensors):
            parts.rows(own, number, len(rows)).copy_(rows)
        dist.all_gather_single(gathered.flatten(), own)
        every = tuple(
            torch.cat([parts.rows(part, number, size) for part, size in zip(gathered, sizes, strict=True)])
            for number in range(len(tensors))
        )
        ctx.sizes = sizes
        ctx.set_materialize_grads(False)  # of columns that no row is held against nothing is sent
        ctx.mark_non_differentiable(
            *(rows for rows, needed in zip(every, ctx.needs_input_grad[1:], strict=True) if not needed)
        )
        return every

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, ...]:  # Any: torch leaves it untyped
        sizes, found = ctx.sizes, list(gradients)
        given = {number: each for number, each in enumerate(gradients) if each is not None}
        for dtype in dict.fromkeys(each.dtype for each in given.values()):
            alike = {number: each for number, each in given.items() if each.dtype == dtype}
            parts, device = _Parts(list(alike.values()), max(sizes)), next(iter(alike.values())).device
            (own,), every = parts.empty(1, device), parts.empty(len(sizes), device).zero_()
            for place, gradient in enumerate(alike.values()):
                for part, rows in zip(every, torch.split(gradient, sizes), strict=True):
                    parts.rows(part, place, len(rows)).copy_(rows)
            dist.reduce_scatter_single(own.view(dtype), every.flatten().view(dtype))
            for place, number in enumerate(alike):
                found[number] = parts.rows(own, place, sizes[dist.get_rank()])
        return None, *found


def gather_sizes(size: int, device: torch.device, known: Sequence[int] | None = None) -> list[int]:
    """Returns every rank's number of rows; ranks ask one another, and read the answers, where it isn't known.

    Args:
        size: This rank's.
        device: On which ranks talk to each other.
        known: Every rank's, as ``Batch.shares``, on all of them or on none; None to ask.

    Raises:
        ValueError: This rank's is another than is known.

    Example:
        >>> gather_sizes(3, torch.device("cpu"))  # in one process
        [3]
    """
    if not is_distributed():
        return [size]
    if known is not None and len(known) == world_size():
        if known[rank()] != size:
            raise InvalidValueError(
                f"Batch.shares: expected {size} examples of rank {rank()}, which it has, got {known[rank()]}; "
                "give shares=None to Batch.replace where rows are chosen anew"
            )
        return list(known)
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size())]
    dist.all_gather(sizes, torch.tensor([size], device=device))
    return [int(s) for s in sizes]


def gather_rows(rows: Tensor, sizes: list[int]) -> Tensor:
    """Concatenates the rows of all ranks, as ``gather_all`` does those of several tensors, (rows, ...).

    Example:
        >>> rows = torch.ones(3, 4)
        >>> gather_rows(rows, gather_sizes(len(rows), rows.device)).shape  # in one process
        torch.Size([3, 4])
    """
    return gather_all([rows], sizes)[0]


def gather_all(tensors: Sequence[Tensor], sizes: list[int]) -> list[Tensor]:
    """Concatenates the rows of all ranks, in rank order; ranks may hold different numbers.

    All tensors, of whatever types, go over in one gather, and their gradients come back in one sum, of which each
    rank receives its own rows alone.

    The gradient is that of the whole: with ``loss = sum(local rows) * W / N`` and the mean over ranks that
    DDP takes, it equals one process's gradient on all rows (a gather that detaches the other ranks' rows
    gives 1/W of it; Chen et al. 2020 and its followers differ here).

    Args:
        tensors: Of each this rank's rows, (rows, ...), on one device.
        sizes: Every rank's number of rows, from ``gather_sizes``.

    Returns:
        Of each all rows, (sum(sizes), ...). Without a process group the arguments themselves.

    Example:
        >>> rows, ids = torch.ones(2, 3), torch.arange(2)
        >>> [each.shape for each in gather_all([rows, ids], sizes=[2])]  # one process
        [torch.Size([2, 3]), torch.Size([2])]
    """
    return list(tensors) if len(sizes) == 1 else list(_GatherRows.apply(sizes, *tensors))  # type: ignore[no-untyped-call]  # torch's


def least_over_ranks(value: int, device: torch.device) -> int:
    """Returns the smallest of all ranks' values.

    Example:
        >>> least_over_ranks(3, torch.device("cpu"))  # in one process
        3
    """
    return -most_over_ranks([-value], device)[0]


def most_over_ranks(values: list[int], device: torch.device) -> list[int]:
    """Returns the largest of all ranks' values, number by number."""
    if not is_distributed():
        return values
    most = torch.tensor(values, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return [int(each) for each in most.tolist()]


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
    figures: Mapping[str, Tensor], weights: Mapping[str, Tensor | float] | None = None
) -> dict[str, Tensor]:
    """Returns the weighted mean of each figure over all ranks, by one sum of all and without a gradient.

    Args:
        figures: Scalars on one device, of the same names on every rank.
        weights: Name -> this rank's weight, such as the number of its rows; 1 where none is given. A figure of
            weight 0 may be NaN.

    Returns:
        The same in their precision, but in at least float32; 0 where no rank has a weight.
    """
    if not is_distributed() or not figures:
        return dict(figures)
    own = {name: figures[name].detach().reshape(()) for name in sorted(figures)}  # in one order on all ranks
    kinds = {name: torch.promote_types(figure.dtype, torch.float32) for name, figure in own.items()}
    widest = reduce(torch.promote_types, kinds.values())
    each = torch.stack([figure.to(widest) for figure in own.values()])
    given = weights or {}
    shares = (given.get(name, 1) for name in own)  # a number of the host is filled in, not copied
    share = torch.stack(
        [s.to(each).reshape(()) if isinstance(s, Tensor) else each.new_full((), s) for s in shares]
    )
    totals, counts = sum_over_ranks(torch.stack([torch.where(share > 0, each * share, 0), share]))
    means = torch.where(counts > 0, totals / counts, 0)
    found = dict(zip(own, means.unbind(), strict=True))
    return {name: found[name].to(kinds[name]) for name in figures}


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
