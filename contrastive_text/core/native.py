"""Limits of native libraries in a process: forked children, kernels of oneDNN, and stacks of signal handlers."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.backends import mkldnn

from contrastive_text.core.errors import RunError

_has_threads = False
_forked_from: int | None = None
"""Number of the process that had used a model by several threads when this one was forked from it."""


def check_not_forked(where: str, has_pool: bool = False) -> None:
    """Checks that this process has the threads it computes with, and records that it computes by several.

    A fork copies the state of thread pools, but not their threads. Torch, onnxruntime and OpenVINO would wait
    forever for threads that don't exist. Where torch computes by one thread, in the process that was forked or
    in its child, it waits for none.

    Args:
        where: What errors begin with.
        has_pool: Whether the model is run by a runtime, which has threads of its own.

    Raises:
        RuntimeError: This process would compute by several threads, and was forked from one that had.
    """
    global _has_threads
    needs_threads = has_pool or torch.get_num_threads() > 1
    if needs_threads and _forked_from is not None:
        raise RunError(
            f"{where}: expected a process that is started by spawn, got process {os.getpid()}, forked from "
            f"process {_forked_from} after it had used a model; use multiprocessing.get_context('spawn'), "
            "load the first model after the fork, or, with the backend torch, call torch.set_num_threads(1) in "
            "the new process"
        )
    _has_threads = _has_threads or needs_threads


def _record_fork() -> None:
    global _forked_from
    if _has_threads:
        _forked_from = os.getppid()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_record_fork)


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
    by_feature = columns.stride(0) == 1 and columns.stride(1) >= max(len(columns), 2)
    if plain and 0 < len(rows) <= _FEW and by_feature:
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


def _two_at_least(rows: Tensor) -> Tensor:
    return rows.repeat(2, 1) if len(rows) == 1 else rows.contiguous()


class SignalStack(ctypes.Structure):
    """What Linux calls ``stack_t``: where this thread's handlers run, of how many bytes; see sigaltstack(2)."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def signal_stack() -> SignalStack:
    """Returns this thread's; Linux alone."""
    stack = SignalStack()
    _call(None, ctypes.byref(stack))
    return stack


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Gives this thread its signal stack back, whatever a library has put there; on other systems does nothing.

    OpenVINO 2026.4 gives the thread that compiles a network a stack of the network's own, and when the network
    goes the stack from before it. Of two networks of which the first goes first, the second leaves the thread
    with memory that is no more, where the next signal, a Ctrl-C, ends the process by a segmentation fault.

    Example:
        >>> with kept_signal_stack():
        ...     pass  # compile a network
    """
    if sys.platform != "linux":
        yield
        return
    before = signal_stack()
    try:
        yield
    finally:
        _call(ctypes.byref(before), None)


def _call(new: object, old: object) -> None:
    refused = ctypes.CDLL(None).sigaltstack(new, old)
    assert not refused, "called by a handler that runs in it"
