"""A device without values: whoever reads from it fails, as reading from a GPU would make the host wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contrastive_text.encoders import packing

DEVICE = torch.device("meta")
"""Its tensors have shapes and types alone. Asked for a value, or for a shape that values decide, torch raises."""

_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class ReadBackError(AssertionError):
    """Tensors of host and device met in one operation."""


class NoMixing(TorchDispatchMode):
    """Lets values go to the device by copies alone, and none come back; an index of the host is a hidden copy.

    Args:
        calls: How often each operation ran on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        """Runs an operation, unless it mixes."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if tensor.device.type == "cpu" and tensor.ndim]
        there = [tensor for tensor in tensors if tensor.device == DEVICE]
        back = there and torch.device(kwargs.get("device") or DEVICE).type == "cpu"
        waits = func is torch.ops.aten._to_copy.default and not kwargs.get("non_blocking")
        here = here or [tensor for tensor in tensors if tensor.device.type == "cpu" and waits]
        to_device = there or torch.device(kwargs.get("device") or "cpu") == DEVICE
        if back or (here and to_device and (waits or func not in _COPIES)):
            raise ReadBackError(f"{func}: {[(tuple(each.shape), each.device.type) for each in tensors]}")
        if there:
            self.calls[func._schema.name] += 1
        return func(*args, **kwargs)


class NoHiddenCopies(TorchFunctionMode):
    """Refuses values of Python on the device: torch makes a tensor of the host of them and waits for its copy."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        """Calls a function of torch, unless it copies so."""
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and not isinstance(args[0], Tensor):
            hides = torch.device(kwargs.get("device") or "cpu") == DEVICE
        elif func is Tensor.new_tensor:
            hides = args[0].device == DEVICE
        else:
            index = args[1] if func is Tensor.__getitem__ else None
            lists = [each for each in (index if isinstance(index, tuple) else (index,)) if isinstance(each, list)]
            hides = bool(lists) and args[0].device == DEVICE
        if hides:
            raise ReadBackError(f"{func}: {args[1:]} {kwargs}")
        return func(*args, **kwargs)


@contextmanager
def on_device(kernel: str) -> Iterator[Counter[str]]:
    """Has what is computed in the block read nothing back, and take the branches of a GPU.

    Args:
        kernel: Which takes the attention of packed rows, ``flash`` or ``efficient``.

    Yields:
        How often each operation ran on the device.
    """
    with (
        mock.patch.object(packing, "_kernel", lambda *_: kernel),
        mock.patch.object(torch, "is_autocast_enabled", lambda *_: False),  # refuses to be asked of this device
        NoHiddenCopies(),
        NoMixing() as seen,
    ):
        yield seen.calls


@contextmanager
def one_of(ranks: int) -> Iterator[None]:
    """Makes this process the last of some ranks, of which the others say nothing."""
    if ranks == 1:
        yield
        return
    answers = {"is_initialized": True, "get_world_size": ranks, "get_rank": ranks - 1}
    silent = ("all_gather_single", "reduce_scatter_single", "all_gather", "all_reduce")
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(dist, name, lambda *_, answer=answer: answer))
        for name in silent:
            stack.enter_context(mock.patch.object(dist, name, lambda *_, **__: None))
        yield
