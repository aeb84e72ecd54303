"""Computing environment ("setting"): all that the bits of a result depend on besides inputs and seed."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F

from contrastive_text import __version__

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


def _processor() -> str:
    """Returns the processor's architecture and its name, if the system reports one."""
    name = ""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return " ".join(part for part in (platform.machine(), name or platform.processor()) if part)
