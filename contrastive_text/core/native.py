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
"""True if this process has computed with several threads."""
_forked_from: int | None = None
"""Id of the parent process, if this process was forked from it after it had computed with several threads."""


def check_not_forked(where: str, has_pool: bool = False) -> None:
    """Raises RunError if this process would wait for threads that a fork didn't copy.

    Otherwise it records whether this process computes with several threads.

    A fork copies the state of thread pools, but not their threads. Torch, onnxruntime and OpenVINO would wait
    forever for threads that don't exist. If torch computes with one thread, in the parent process or in the
    forked process, it waits for no thread.

    Args:
        where: What errors begin with.
        has_pool: Whether a runtime such as onnxruntime, which has its own threads, runs the model.

    Raises:
        RuntimeError: This process would compute with several threads, and was forked from a process that had.
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
"""Machine types of processors on which oneDNN is used.

On an AMD EPYC it is 10 to 30 % faster with AVX-512, no slower with AVX2.
"""

_MAX_VECTOR_ROWS = 4
"""Largest number of rows whose dot products are computed without a matrix product, up to twice as fast."""

_LINE_NUMBERS = 16
"""Number of float32 values in 64 bytes.

Equal rows at different offsets within 64 bytes may be rounded differently.
"""


def has_onednn() -> bool:
    """Returns whether torch has oneDNN on this machine, and the processor is of a kind that was measured."""
    return platform.machine() in _PROCESSORS and bool(mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch's


def has_fast_layers() -> bool:
    """Returns whether oneDNN's layers, which reorder weights, are faster than torch's: true with AVX-512.

    With AVX2 they were 5 % slower. Their GELU alone took half as long as the product before it.
    """
    return has_onednn() and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def dot_products(rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the dot product of every row with every column, without a gradient, (R, D), (C, D) -> (R, C).

    Rounding depends on the processor. The products of equal columns may differ in their last bits, within a block
    and between blocks.

    Example:
        >>> dot_products(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]]))
        tensor([[3., 2.]])
    """
    is_plain = all(matrix.device.type == "cpu" and matrix.dtype == torch.float32 for matrix in (rows, columns))
    is_column_major = columns.stride(0) == 1 and columns.stride(1) >= max(len(columns), 2)
    if is_plain and 0 < len(rows) <= _MAX_VECTOR_ROWS and is_column_major:
        # A vector product for each row uses several threads; one matrix product takes up to twice as long.
        return torch.bmm(rows.unsqueeze(1), columns.T.expand(len(rows), *columns.T.shape)).squeeze(1)
    if is_plain and rows.numel() and columns.numel() and columns.is_contiguous() and has_onednn():
        if len(rows) <= _MAX_VECTOR_ROWS and rows.shape[1] % _LINE_NUMBERS == 0:
            # For a single row or column torch runs a vector product, which is slower and rounds differently.
            both = _two_at_least(columns) @ _two_at_least(rows).T
            return both[: len(columns), : len(rows)].T.contiguous()
        result: Tensor = torch.ops.mkldnn._linear_pointwise(rows, columns, None, "none", [], "none")
        return result
    return rows @ columns.T


def _two_at_least(matrix: Tensor) -> Tensor:
    return matrix.repeat(2, 1) if len(matrix) == 1 else matrix.contiguous()


class SignalStack(ctypes.Structure):
    """The struct ``stack_t`` of Linux: address and size of a thread's signal stack; see sigaltstack(2)."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def signal_stack() -> SignalStack:
    """Returns the signal stack of this thread; on Linux only."""
    stack = SignalStack()
    _call(None, ctypes.byref(stack))
    return stack


@contextmanager
def restored_signal_stack() -> Iterator[None]:
    """Restores the signal stack of this thread after a library has changed it. On other systems it does nothing.

    OpenVINO 2026.4 gives the thread that compiles a network a stack that belongs to the network. When the network
    is deleted, it restores the previous stack. If the first of two networks is deleted first, the second restores
    a stack whose memory is freed. The next signal, such as a Ctrl-C, then ends the process by a segmentation
    fault.

    Example:
        >>> with restored_signal_stack():
        ...     pass  # compile a network
    """
    if sys.platform != "linux":
        yield
        return
    previous = signal_stack()
    try:
        yield
    finally:
        _call(ctypes.byref(previous), None)


def _call(new: object, old: object) -> None:
    status = ctypes.CDLL(None).sigaltstack(new, old)
    assert not status, "called by a handler that runs on the signal stack"
