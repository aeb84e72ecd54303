"""What ranks say to each other: a count of torch's collective operations."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_NAMES = {
    "allgather_": "gather",
    "_allgather_base_": "gather",
    "allreduce_": "reduce",
    "reduce_scatter_": "reduce-scatter",
    "_reduce_scatter_base_": "reduce-scatter",
    "broadcast_": "broadcast",
    "barrier": "barrier",
}


class Collectives(TorchDispatchMode):
    """Counts the collectives of a block by their kind, those of backward passes on a CPU too.

    Args:
        counts: How often each was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        """Runs an operation, and counts it where ranks take part."""
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            self.counts[_NAMES.get(name, name)] += 1
        return func(*args, **(kwargs or {}))
