"""Profiles this library operation by operation, for the benchmarks that time it next to a peer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from machines import synchronize
from runs import markdown
from torch.profiler import ProfilerActivity, profile

Shares = list[tuple[str, float]]
"""Operations with their share of the time, most first."""


class Profile:
    """Notes what torch does within ``watched``, which may be left and entered again.

    Args:
        device: Whose time counts, ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._seconds = 0.0
        self._operations: dict[str, float] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notes the operations until it ends."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device == "cuda" else [])]
        begun = time.perf_counter()
        with profile(activities=activities) as made:
            yield
            synchronize(self.device)
            self._seconds += time.perf_counter() - begun
        for each in made.key_averages():
            own: Any = each  # Any: torch declares neither
            spent = own.self_device_time_total if self.device == "cuda" else own.self_cpu_time_total
            self._operations[own.key] = self._operations.get(own.key, 0.0) + spent / 1e6

    def shares(self, top: int = 10) -> Shares:
        """Returns the operations that take most of the time, then the rest's share.

        Outside of operations is what none of torch's accounts for: the tokenizer, Python, torch's own calls.

        Example:
            >>> import torch
            >>> noted = Profile("cpu")
            >>> with noted.watched():
            ...     _ = torch.ones(200, 200) @ torch.ones(200, 200)
            >>> names, shares = zip(*noted.shares(top=1))
            >>> names[1:], abs(sum(shares) - 1) < 1e-9
            (('other operations', 'outside of operations'), True)
        """
        times = {name: spent / self._seconds for name, spent in self._operations.items()}
        first = sorted(times.items(), key=lambda item: -item[1])[:top]
        other = sum(times.values()) - sum(share for _, share in first)
        return [*first, ("other operations", other), ("outside of operations", 1 - sum(times.values()))]


def section(profiles: Mapping[str, Sequence[tuple[str, float]]], of: str) -> list[str]:
    """Returns a table for each profile under one heading.

    Args:
        profiles: What was watched -> its shares.
        of: What the shares are of, such as ``"a pass over the sample"``.

    Example:
        >>> print("\\n".join(section({"ours": [("aten::mm", 0.8), ("other operations", 0.2)]}, "a step")[5:]))
        ours:
        <BLANKLINE>
        | operation | share |
        | --- | --- |
        | aten::mm | 80.0% |
        | other operations | 20.0% |
    """
    lines = [
        "",
        "## Where our time goes",
        "",
        f"Shares of the time of {of} under torch's profiler, which slows it.",
    ]
    for name, shares in profiles.items():
        cells = [[operation, f"{share:.1%}"] for operation, share in shares]
        lines += ["", f"{name}:", "", *markdown(["operation", "share"], cells)]
    return lines
