"""Mixtures: in which order the batches of several data sets arrive, and which objectives see them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.steps import Rounds, Step, Steps, TaskSize, consecutive_steps


class Mixture(ABC):
    """Base class of mixtures: from the sizes of data sets to the steps of an epoch.

    Every epoch has the same steps over rows in another random order: a data set that is not used up gives other
    rows each time. One of your own:

    Example:
        >>> class FirstTaskAlone(Mixture):
        ...     def steps(self, sizes, drop_last):
        ...         return consecutive_steps({task: sizes[task] for task in list(sizes)[:1]}, drop_last)
        >>> list(FirstTaskAlone().steps({"a": TaskSize(5, 2), "b": TaskSize(9, 2)}, drop_last=True))
        [Step(parts={'a': (0, 2)}, objectives=None), Step(parts={'a': (2, 4)}, objectives=None)]
    """

    @abstractmethod
    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Sequence[Step]:
        """Returns the steps of an epoch: a list, or ``Steps``, which take no memory.

        Args:
            sizes: Task -> its size, in the order of the configuration.
            drop_last: Whether last, smaller batches are left out.
        """


class AllTasks(Mixture):
    """A batch of every task in each step; the larger data sets are reduced to the smallest, anew each epoch.

    The CS224N report's "average": one loss of three batches (Chen, "Contrastive Learning for Generalizable
    Sentence Embeddings", section on multi-task training). With weights or a temperature the rows of a step, the
    sum of the tasks' batch sizes, are shared out instead: in proportion to the weights, or to the number of rows
    to the power of 1 / temperature (Devlin et al. 2019 for languages, as T5 (Raffel et al. 2020,
    https://arxiv.org/abs/1910.10683, section 3.5.2) has it for tasks). An epoch ends with the first task that is
    used up.

    Args:
        weights: Task -> its weight.
        temperature: 1 shares out by size, a large one equally.

    Raises:
        ValueError: Weights and a temperature together, one that is not positive, or other tasks than there are.

    Example:
        >>> sizes = {"a": TaskSize(4, 2), "b": TaskSize(100, 2)}
        >>> [dict(step.parts) for step in AllTasks().steps(sizes, drop_last=True)]
        [{'a': (0, 2), 'b': (0, 2)}, {'a': (2, 4), 'b': (2, 4)}]
    """

    def __init__(self, weights: dict[str, float] | None = None, temperature: float | None = None) -> None:
        if weights is not None and temperature is not None:
            raise InvalidValueError("AllTasks: expected weights or a temperature, got both; drop one")
        if temperature is not None and not temperature > 0:
            raise InvalidValueError(
                f"AllTasks.temperature: expected a positive number, got {temperature}; 1 is by size"
            )
        if any(not 0 < weight < math.inf for weight in (weights or {}).values()):
            raise InvalidValueError(
                f"AllTasks.weights: expected positive numbers, got {weights}; leave a task out of tasks"
            )
        self.weights = weights
        self.temperature = temperature

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns a step for every batch of the task that is used up first."""
        return consecutive_steps(self._shared_out(sizes), drop_last)

    def _shared_out(self, sizes: Mapping[str, TaskSize]) -> dict[str, TaskSize]:
        if self.weights is None and self.temperature is None:
            return dict(sizes)
        if self.weights is not None and set(self.weights) != set(sizes):
            raise InvalidValueError(
                f"AllTasks.weights: expected one for each of {', '.join(sizes)}, got {', '.join(self.weights)}"
            )
        weights = self.weights or {
            task: size.rows ** (1 / (self.temperature or 1)) for task, size in sizes.items()
        }
        rows = sum(size.batch_size for size in sizes.values())
        total = sum(weights.values())
        exact = {task: rows * weights[task] / total for task in sizes}
        shares = {task: max(1, int(share)) for task, share in exact.items()}
        # The rows that rounding down leaves go to the largest remainders.
        rest = max(0, rows - sum(shares.values()))
        for task in sorted(sizes, key=lambda task: shares[task] - exact[task])[:rest]:
            shares[task] += 1
        return {task: replace(size, batch_size=shares[task]) for task, size in sizes.items()}


class BatchRoundRobin(Mixture):
    """The tasks take turns batch by batch, in their order: a step for each (CS224N report, "batch round robin").

    Args:
        downsample: Whether all tasks stop with the smallest; otherwise those that have rows left go on.

    Example:
        >>> steps = BatchRoundRobin().steps({"a": TaskSize(4, 2), "b": TaskSize(9, 2)}, drop_last=True)
        >>> [dict(step.parts) for step in steps]
        [{'a': (0, 2)}, {'b': (0, 2)}, {'a': (2, 4)}, {'b': (2, 4)}]
    """

    def __init__(self, downsample: bool = True) -> None:
        self.downsample = downsample

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns the tasks' steps, interleaved."""
        each = _alone(sizes, drop_last, self.downsample)
        # Between two of these edges the same tasks take turns, each with batches of one size.
        edges = sorted({0, *(end for steps in each for end in steps.ends)})
        return Steps(
            Rounds(tuple(steps[start] for steps in each if start < len(steps)), end - start)
            for start, end in pairwise(edges)
        )


class EpochRoundRobin(Mixture):
    """One task after another, each to its end (CS224N report, "epoch round robin").

    Args:
        downsample: Whether the larger tasks are reduced to the smallest; in the report they are whole.

    Example:
        >>> steps = EpochRoundRobin().steps({"a": TaskSize(4, 2), "b": TaskSize(6, 2)}, drop_last=True)
        >>> [dict(step.parts) for step in steps]
        [{'a': (0, 2)}, {'a': (2, 4)}, {'b': (0, 2)}, {'b': (2, 4)}, {'b': (4, 6)}]
    """

    def __init__(self, downsample: bool = False) -> None:
        self.downsample = downsample

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns all steps of the first task, then all of the second, and so on."""
        return Steps(each for steps in _alone(sizes, drop_last, self.downsample) for each in steps.rounds)


class Fusion(Mixture):
    """Each batch several times, once for each group of objectives: supervised, then contrastive.

    "Fusion training" of the CS224N report: for each batch first a step on the classification loss, then a step on
    the contrastive loss of the same texts. Views and their draws are the same in all steps of a batch.

    Args:
        turns: The groups of objectives by name, in the order of their steps.
        mixture: What the batches hold; None for ``AllTasks``.

    Raises:
        ValueError: Fewer than two groups, or an empty one.

    Example:
        >>> fusion = Fusion(turns=[["sentiment"], ["contrastive"]])
        >>> for step in fusion.steps({"sst": TaskSize(2, 2)}, drop_last=True):
        ...     step
        Step(parts={'sst': (0, 2)}, objectives=('sentiment',))
        Step(parts={'sst': (0, 2)}, objectives=('contrastive',))
    """

    def __init__(self, turns: list[list[str]], mixture: Mixture | None = None) -> None:
        if len(turns) < 2 or not all(turns):
            raise InvalidValueError(
                f"Fusion.turns: expected two groups of objectives or more, got {turns}; such as "
                "[[sentiment], [contrastive]]"
            )
        self.turns = turns
        self.mixture = mixture or AllTasks()

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns every step of the mixture once for each group."""
        inner = Steps.of(self.mixture.steps(sizes, drop_last))
        return Steps(
            Rounds(
                tuple(replace(step, objectives=tuple(turn)) for step in each.first for turn in self.turns),
                each.count,
            )
            for each in inner.rounds
        )


def _alone(sizes: Mapping[str, TaskSize], drop_last: bool, downsample: bool) -> list[Steps]:
    """Returns the steps of each task on its own, one a round."""
    if not downsample:
        return [consecutive_steps({task: size}, drop_last) for task, size in sizes.items()]
    together = consecutive_steps(sizes, drop_last)
    return [
        Steps(Rounds((Step({task: each.first[0].parts[task]}),), each.count) for each in together.rounds)
        for task in sizes
    ]
