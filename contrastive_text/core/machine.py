"""Machine of a process: limits of native libraries, and the setting that the bits of a result depend on.

The setting is the processor, the GPU, the number of threads and the versions of libraries.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends import mkldnn

from contrastive_text import __version__
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

_MIN_COPY_ROWS = 512
"""Number of rows from which columns stored by feature are copied, as oneDNN is slower with such columns."""

_LINE_NUMBERS = 16
"""Number of float32 values in 64 bytes.

Equal rows at different offsets within 64 bytes may be rounded differently.
"""


def has_onednn() -> bool:
    """Returns whether torch has oneDNN on this machine, and the processor is of a kind that was measured."""
    return platform.machine() in _PROCESSORS and bool(mkldnn.is_available())  # type: ignore[no-untyped-call]  # torch's


def has_fast_layers() -> bool:
    """Returns whether oneDNN's layers, which reorder weights at each call, are faster than torch's.

    They are with AVX-512 on processors of AMD, where MKL, which computes torch's layers, doesn't use AVX-512. A
    training step takes 1.3 times as long with AVX2 alone (AMD EPYC, Zen 3), and on an Intel Xeon with AVX-512.
    """
    return has_onednn() and _has_avx512() and "Intel" not in _processor()


def has_fast_packed_layers() -> bool:
    """Returns whether oneDNN's layers are faster than torch's if their weights were reordered beforehand.

    They are with AVX-512 and with AVX2: 1.07 times as fast for short texts and 1.19 times for long ones with AVX2
    alone (AMD EPYC, Zen 3), 0.98 and 1.13 times on an Intel Xeon with AVX-512.
    """
    return has_onednn() and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def has_amx() -> bool:
    """Returns whether torch's attention in bfloat16 uses AMX, the matrix instructions of newer Intel Xeons."""
    return _has_avx512() and bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


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
    if is_plain and is_column_major and len(rows) >= _MIN_COPY_ROWS and has_fast_layers():
        columns = columns.contiguous()
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


SETTING = "setting"
"""Key of a checkpoint under which the setting of its run is stored."""
_LIBRARIES = ("torch", "pytorch-lightning", "transformers", "tokenizers", "numpy")
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Environment variables that restrict the processor instructions that torch's kernels use."""


def current_setting(device: torch.device | str = "cpu") -> dict[str, str]:
    """Returns the setting of this process: processor, GPU, number of threads and versions.

    With equal settings, equal inputs and seeds give equal bits. With different settings sums are added in another
    order, and the last bits may differ.

    Args:
        device: Device that computes. The name of the GPU is included only if it is one.

    Example:
        >>> current_setting()["threads"] == str(torch.get_num_threads())
        True
    """
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if name in os.environ]
    setting = {"processor": " ".join([_processor(), torch.backends.cpu.get_cpu_capability(), *limits])}
    if torch.device(device).type == "cuda":
        setting["GPU"] = torch.cuda.get_device_name(device)
    setting["threads"] = str(torch.get_num_threads())
    return {**setting, "contrastive-text": __version__, **{name: version(name) for name in _LIBRARIES}}


@lru_cache
def is_faster_in_bfloat16(device: torch.device | str = "cpu") -> bool:
    """Returns whether bfloat16 matrix products are at least a fifth faster than float32 ones. Times a CPU once.

    The instruction sets of a CPU don't decide it: with AVX-512 an AMD EPYC takes less than half the time, an
    Intel Xeon without AMX 1.8 times as long. A processor that doesn't report such instructions, such as ARM,
    isn't timed.

    Example:
        >>> is_faster_in_bfloat16("meta")
        False
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    instructions = torch.cpu.get_capabilities() if kind == "cpu" else {}
    if not (instructions.get("avx512_bf16") or instructions.get("amx_bf16")):
        return False
    full, half = (_seconds_of_product(dtype) for dtype in (torch.float32, torch.bfloat16))
    return full > 1.2 * half


def _seconds_of_product(dtype: torch.dtype) -> float:
    """Returns how long a product of 512 x 512 matrices takes in seconds, the minimum of ten runs."""
    matrix = torch.ones(512, 512, dtype=dtype)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        F.linear(matrix, matrix)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread in the calling thread, for work that is too small for several threads.

    If torch uses OpenMP, other threads keep their number. ``torch.set_num_threads`` would also change it for
    every thread that computes for the first time.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    threads, set_threads = torch.get_num_threads(), _thread_setter()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(threads)


@lru_cache
def _thread_setter() -> Callable[[int], object]:
    """Returns the function that sets torch's number of threads: OpenMP's, or torch's own without OpenMP."""
    folder = Path(torch.__file__).parent / "lib"
    try:  # a library also resolves functions of the libraries that it is linked to
        library = next(folder.glob("libtorch_cpu.*"))
        return cast("Callable[[int], object]", ctypes.CDLL(str(library)).omp_set_num_threads)
    except (StopIteration, OSError, AttributeError):
        return torch.set_num_threads


def describe_setting_change(recorded: object, current: Mapping[str, str]) -> str:
    """Describes how a recorded setting differs from the current one; empty if they are equal.

    Args:
        recorded: The recorded setting. Any other object, such as the record of an older version, gives an
            empty text.
        current: The setting from ``current_setting``.

    Example:
        >>> describe_setting_change({"threads": "2", "torch": "2.13.0"}, {"threads": "1", "torch": "2.13.0"})
        'threads 2 then, 1 now'
    """
    if not isinstance(recorded, Mapping):
        return ""
    names = [name for name in dict.fromkeys([*current, *recorded]) if recorded.get(name) != current.get(name)]
    differences = [
        f"{_shown(name)} {_shown(recorded.get(name))} then, {_shown(current.get(name))} now" for name in names
    ]
    return "; ".join(differences)


def _shown(value: object) -> str:
    """Returns a recorded value as text that is safe to print: the record may come from someone else."""
    text = "none" if value is None else str(value)
    return text if text.isprintable() else ascii(text)


@lru_cache
def _processor() -> str:
    """Returns the processor's architecture and its name, if the system reports one."""
    name = ""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return " ".join(part for part in (platform.machine(), name or platform.processor()) if part)
