"""The setting of a computation: what its bits depend on beside its inputs and its seed."""

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
"""Where a checkpoint keeps the setting of its run."""
_LIBRARIES = ("torch", "pytorch-lightning", "transformers", "tokenizers", "numpy")
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables that keep the kernels under torch from instructions that the processor has."""


def current_setting(device: torch.device | str = "cpu") -> dict[str, str]:
    """Returns the setting of this process: processor, GPU, number of threads and versions.

    Under an equal setting equal inputs and seeds give equal bits. Under another one sums are taken in another
    order, and the last bits may differ.

    Args:
        device: Where it computes; the name of a GPU is asked for on a GPU only.

    Example:
        >>> current_setting()["threads"] == str(torch.get_num_threads())
        True
    """
    limits = [f"{name}={os.environ[name]}" for name in _LIMITS if name in os.environ]
    found = {"processor": " ".join([_processor(), torch.backends.cpu.get_cpu_capability(), *limits])}
    if torch.device(device).type == "cuda":
        found["GPU"] = torch.cuda.get_device_name(device)
    found["threads"] = str(torch.get_num_threads())
    return {**found, "contrastive-text": __version__, **{name: version(name) for name in _LIBRARIES}}


@lru_cache
def is_faster_in_bfloat16(device: torch.device | str = "cpu") -> bool:
    """Whether products in bfloat16 are faster than in float32, by a fifth at least; a CPU is tried once.

    Instructions for it say little: with AVX-512's an AMD EPYC takes less than half the time, an Intel Xeon
    without AMX 1.8 times as long. What tells of no instructions, as ARM, is not tried.

    Example:
        >>> is_faster_in_bfloat16("meta")
        False
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    has = torch.cpu.get_capabilities() if kind == "cpu" else {}
    if not (has.get("avx512_bf16") or has.get("amx_bf16")):
        return False
    full, half = (_seconds_of_product(dtype) for dtype in (torch.float32, torch.bfloat16))
    return full > 1.2 * half


def _seconds_of_product(dtype: torch.dtype) -> float:
    """Returns how long a product of 512 x 512 matrices takes, the shortest of ten."""
    matrix = torch.ones(512, 512, dtype=dtype)
    seconds = []
    for _ in range(10):
        begun = time.perf_counter()
        F.linear(matrix, matrix)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keeps torch to one thread in the calling thread, where a second one costs more time than it saves.

    If torch computes by OpenMP, other threads keep their number. ``torch.set_num_threads`` would also set it for
    each thread that computes for the first time.

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
    """Returns what sets the number of torch's threads: OpenMP's function, or torch's where there is none."""
    folder = Path(torch.__file__).parent / "lib"
    try:  # a library finds the functions of those that it is linked to
        library = next(folder.glob("libtorch_cpu.*"))
        return cast("Callable[[int], object]", ctypes.CDLL(str(library)).omp_set_num_threads)
    except (StopIteration, OSError, AttributeError):
        return torch.set_num_threads


def other_setting(kept: object, current: Mapping[str, str]) -> str:
    """Says how the setting that a record keeps differs from the current one; nothing where it doesn't.

    Args:
        kept: What a record keeps as its setting; anything that isn't one, as from an older version, says nothing.
        current: As ``current_setting`` gives it.

    Example:
        >>> other_setting({"threads": "2", "torch": "2.13.0"}, {"threads": "1", "torch": "2.13.0"})
        'threads 2 then, 1 now'
    """
    if not isinstance(kept, Mapping):
        return ""
    names = [name for name in dict.fromkeys([*current, *kept]) if kept.get(name) != current.get(name)]
    each = [f"{_shown(name)} {_shown(kept.get(name))} then, {_shown(current.get(name))} now" for name in names]
    return "; ".join(each)


def _shown(value: object) -> str:
    """Returns a value of a record that another may have written, without what a terminal would obey."""
    text = "none" if value is None else str(value)
    return text if text.isprintable() else ascii(text)


def _processor() -> str:
    """Returns the architecture, with the processor's name where the system tells it."""
    named = ""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
        named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return " ".join(part for part in (platform.machine(), named or platform.processor()) if part)
