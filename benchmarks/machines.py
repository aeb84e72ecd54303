"""Description of a machine: processor, versions, memory in use, speed of matrix products."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

STEADY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Makes glibc give freed memory back at once, so that a peak is what was in use; costs time."""
PACKAGES = ("torch", "transformers", "pytorch-lightning", "sentence-transformers", "accelerate")


def synchronize(device: str) -> None:
    """Waits for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def reset_peak(device: str) -> None:
    """Forgets the highest memory so far."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif (refs := Path("/proc/self/clear_refs")).exists():
        refs.write_text("5")  # Linux: sets VmHWM to what is resident now


def memory(device: str) -> int:
    """Returns the memory in use, in bytes: of this process, or what tensors hold on a GPU."""
    return torch.cuda.memory_allocated() if device == "cuda" else _status("VmRSS")


def peak(device: str) -> int:
    """Returns the highest memory since ``reset_peak``, in bytes; without Linux's ``/proc`` since the start."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _status(field: str) -> int:
    path = Path("/proc/self/status")
    if not path.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return read_status(path.read_text(), field)


def read_status(status: str, field: str) -> int:
    """Returns a figure of ``/proc/PID/status`` in bytes.

    Example:
        >>> read_status("VmHWM:     20 kB\\nVmRSS:     12 kB\\n", "VmRSS")
        12288
    """
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def read_cpuinfo() -> str:
    """Returns ``/proc/cpuinfo``, or nothing where there is no such file."""
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def processor_of(cpuinfo: str) -> str:
    """Returns the name of the processor with its family and model, from ``/proc/cpuinfo``.

    Generations of one name differ in speed.

    Example:
        >>> processor_of("cpu family : 25\\nmodel : 17\\nmodel name : AMD EPYC\\n")
        'AMD EPYC (family 25, model 17)'
    """
    fields = dict(re.findall(r"^([\w ]+?)\s*:\s*(.+?)$", cpuinfo, flags=re.MULTILINE))
    name = fields.get("model name") or platform.processor() or platform.machine()
    keys = [key for key in ("cpu family", "model") if key in fields]
    kind = ", ".join(f"{key.removeprefix('cpu ')} {fields[key]}" for key in keys)
    return f"{name} ({kind})" if kind else name


def bf16_of(cpuinfo: str) -> str:
    """Returns which instructions for bfloat16 products a processor has, from ``/proc/cpuinfo``.

    Example:
        >>> bf16_of("flags : fpu avx512_bf16 sse"), bf16_of("flags : fpu sse")
        ('avx512_bf16', 'none')
    """
    flags = {
        flag for line in cpuinfo.splitlines() if line.startswith(("flags", "Features")) for flag in line.split()
    }
    return ", ".join(flag for flag in ("avx512_bf16", "amx_bf16", "bf16") if flag in flags) or "none"


def machine(threads: int, device: str) -> str:
    """Returns what the seconds depend on: processor, bfloat16, threads, versions."""
    if device == "cuda":
        name = torch.cuda.get_device_name()
        where = f"{name}, bfloat16 {'yes' if torch.cuda.is_bf16_supported() else 'no'}"
    else:
        info = read_cpuinfo()
        where = f"{processor_of(info)}, {os.cpu_count()} cores, bfloat16 instructions: {bf16_of(info)}"
        where += f"; {threads} thread{'s' if threads > 1 else ''}"
    found = [f"{name} {version}" for name in PACKAGES if (version := _version(name)) is not None]
    return f"{where}; {', '.join(found)}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def matmul_speed(dtype: torch.dtype, device: str, seconds: float = 0.3, rows: int | None = None) -> float:
    """Measures the product of two square matrices (of 2,048 rows, on a GPU 8,192, unless given), in FLOP/s."""
    rows = rows or (8192 if device == "cuda" else 2048)
    a, b = (torch.randn(rows, rows, device=device).to(dtype) for _ in range(2))
    return 2 * rows**3 / median_seconds(partial(torch.mm, a, b), device, seconds)


def median_seconds(work: Callable[[], object], device: str, seconds: float = 0.05) -> float:
    """Returns the median time of a call, of three calls at least, after one that doesn't count."""
    work()
    synchronize(device)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begun = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def needs(*packages: str) -> None:
    """Refuses to run without the peers.

    Raises:
        SystemExit: One isn't installed.
    """
    missing = [name for name in packages if _version(name) is None]
    if missing:
        raise SystemExit(
            f"expected the peers to be installed, {', '.join(missing)} missing: install .[benchmarks]"
        )
