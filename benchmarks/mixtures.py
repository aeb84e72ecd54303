"""A mixture of the benchmarks' own: a budget in batches, the same for every order in which tasks arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contrastive_text.data.mixture import AllTasks, Mixture, Step, TaskSize


class Limited(Mixture):
    """At most so many batches of each task in an epoch, in the order of another mixture.

    Under one seed every mixture takes the same rows of a task in its first epoch.

    Args:
        batches: The most batches of a task.
        mixture: Their order; None for ``AllTasks``.
        tasks: The tasks that arrive at all; None for all.

    Example:
        >>> sizes = {"a": TaskSize(4, 2), "b": TaskSize(100, 2)}
        >>> list(Limited(batches=1, tasks=["b"]).steps(sizes, drop_last=True))
        [Step(parts={'b': (0, 2)}, objectives=None)]
    """

    def __init__(self, batches: int, mixture: Mixture | None = None, tasks: list[str] | None = None) -> None:
        self.batches = batches
        self.mixture = mixture or AllTasks()
        self.tasks = tasks

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Sequence[Step]:
        """Returns the steps of the other mixture over the first rows of each task."""
        limited = {
            task: replace(size, rows=min(size.rows, self.batches * size.batch_size))
            for task, size in sizes.items()
            if self.tasks is None or task in self.tasks
        }
        return self.mixture.steps(limited, drop_last)
