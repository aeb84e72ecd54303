"""Steps of an epoch, and mixtures: the order in which the batches of several data sets arrive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import index
from typing import overload

from contrastive_text.core.checks import above
from contrastive_text.core.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class TaskSize:
    """Number of rows of a data set, and of a batch of it.

    Example:
        >>> TaskSize(rows=10, batch_size=4)
        TaskSize(rows=10, batch_size=4)
    """

    rows: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of each data set in one step, and the objectives that run.

    Args:
        parts: Task -> first and last place (exclusive) among its rows, in the order of the epoch.
        objectives: Names of the objectives that run; None for all whose task is in ``parts``.
    """

    parts: Mapping[str, tuple[int, int]]
    objectives: tuple[str, ...] | None = None

    def later(self, rounds: int) -> Step:
        """Returns the same step some rounds later: of each task the rows that follow.

        Example:
            >>> Step({"a": (0, 2), "b": (4, 7)}).later(2)
            Step(parts={'a': (4, 6), 'b': (10, 13)}, objectives=None)
        """
        parts = {
            task: (start + rounds * (stop - start), stop + rounds * (stop - start))
            for task, (start, stop) in self.parts.items()
        }
        return Step(parts, self.objectives)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The same steps in turn, round after round.

    Args:
        first: The steps of the first round; in each further one they take of each task the rows that follow.
        count: Number of rounds.

    Example:
        >>> len(Rounds((Step({"a": (0, 2)}), Step({"b": (0, 1)})), count=3))
        6
    """

    first: tuple[Step, ...]
    count: int = 1

    def __len__(self) -> int:
        return len(self.first) * self.count


class Steps(Sequence[Step]):
    """The steps of an epoch as a few ``Rounds``: 10 million take the memory of ten, and each is found at once.

    Args:
        rounds: In their order.

    Example:
        >>> steps = Steps([Rounds((Step({"a": (0, 2)}), Step({"b": (0, 1)})), count=1_000_000)])
        >>> len(steps), steps[-1]
        (2000000, Step(parts={'b': (999999, 1000000)}, objectives=None))
        >>> steps.taken("a"), steps.largest("a")
        (2000000, 2)
    """

    def __init__(self, rounds: Iterable[Rounds]) -> None:
        self.rounds = tuple(each for each in rounds if len(each))
        self.ends = tuple(accumulate(map(len, self.rounds)))

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Steps:
        """Returns any steps in this form; those of a list that go on where the last ended are a ``Rounds``.

        Example:
            >>> Steps.of([Step({"a": (0, 2)}), Step({"a": (2, 4)}), Step({"a": (4, 5)})]).rounds[0].count
            2
        """
        if isinstance(steps, Steps):
            return steps
        found: list[Rounds] = []
        for step in steps:
            last = found[-1] if found else Rounds((step,), 0)
            following = last.first[0].later(last.count)
            # Equal mappings may differ in the order of their tasks, which is that of a batch.
            if found and step == following and list(step.parts) == list(following.parts):
                found[-1] = Rounds(last.first, last.count + 1)
            else:
                found.append(Rounds((step,)))
        return cls(found)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, number: int) -> Step: ...

    @overload
    def __getitem__(self, number: slice) -> list[Step]: ...

    def __getitem__(self, number: int | slice) -> Step | list[Step]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        place = range(len(self))[index(number)]  # IndexError beyond the last
        at = bisect_right(self.ends, place)
        rounds = self.rounds[at]
        past, turn = divmod(place - self.ends[at] + len(rounds), len(rounds.first))
        return rounds.first[turn].later(past)

    def __repr__(self) -> str:
        return f"Steps({list(self.rounds)})"

    @property
    def kinds(self) -> list[Step]:
        """A step of every kind in the order of their first: all others differ in their places alone."""
        return [step for rounds in self.rounds for step in rounds.first]

    def taken(self, task: str) -> int:
        """Returns how many places of a task's order an epoch takes."""
        lasts = (step.later(each.count - 1).parts for each in self.rounds for step in each.first)
        return max((parts[task][1] for parts in lasts if task in parts), default=0)

    def largest(self, task: str) -> int:
        """Returns how many rows of a task a step takes at the most."""
        parts = (step.parts[task] for step in self.kinds if task in step.parts)
        return max((stop - start for start, stop in parts), default=0)

    def where(self, kept: Callable[[Step], bool]) -> Steps:
        """Returns the steps of some kinds, in their order."""
        return Steps(Rounds(tuple(filter(kept, each.first)), each.count) for each in self.rounds)


def consecutive_steps(sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
    """Returns steps with a batch of every task until the first task is used up, the others being reduced to it.

    Raises:
        ValueError: No whole batch, where smaller ones are left out.

    Example:
        >>> list(consecutive_steps({"a": TaskSize(rows=5, batch_size=2)}, drop_last=True))
        [Step(parts={'a': (0, 2)}, objectives=None), Step(parts={'a': (2, 4)}, objectives=None)]
    """
    shortest = min(sizes.values(), key=lambda size: size.rows / size.batch_size)
    whole, rest = divmod(shortest.rows, shortest.batch_size)
    first = Step({task: (0, size.batch_size) for task, size in sizes.items()})
    rounds = [Rounds((first,), whole)]
    if rest and not drop_last:
        starts = {task: whole * size.batch_size for task, size in sizes.items()}
        # As many rows of each task as there are of the shortest, in proportion to their batches.
        ends = {
            task: starts[task] + max(1, rest * size.batch_size // shortest.batch_size)
            for task, size in sizes.items()
        }
        last = Step({task: (starts[task], min(ends[task], sizes[task].rows)) for task in sizes})
        rounds.append(Rounds((last,)))
    steps = Steps(rounds)
    if not steps:
        named = next(task for task, size in sizes.items() if size is shortest) if len(sizes) > 1 else ""
        raise InvalidValueError(
            f"batch_size: expected at most the number of rows, {shortest.rows}, got {shortest.batch_size}"
            f"{f' for {named}' if named else ''}; lower batch_size, give more text, or let its "
            "rows come again with repeat"
        )
    return steps


def describe_steps(steps: Steps, sizes: Mapping[str, TaskSize]) -> str:
    """Says how much of each task an epoch takes, for the run's summary.

    Example:
        >>> sizes = {"a": TaskSize(4, 2), "b": TaskSize(9, 2)}
        >>> print(describe_steps(consecutive_steps(sizes, drop_last=True), sizes))
        2 steps: a, b; a, b
        a: 4 of 4 rows an epoch, 2 a step
        b: 4 of 9 rows an epoch, 2 a step, others each time
    """
    shown = [", ".join(step.objectives or step.parts) for step in steps[:4]]
    lines = [f"{len(steps):,} steps: {'; '.join(shown)}{'; ...' if len(steps) > 4 else ''}"]
    for task, size in sizes.items():
        used = steps.taken(task)
        others = ", others each time" if used < size.rows else ""
        taken = f"{used:,} of {size.rows:,} rows" if used <= size.rows else f"{size.rows:,} rows as {used:,}"
        lines.append(f"{task}: {taken} an epoch, {steps.largest(task):,} a step{others}")
    return "\n".join(lines)


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
        for task, weight in (weights or {}).items():
            above(f"AllTasks.weights.{task}", weight, advice="remove the task from tasks")
        self.weights = weights
        self.temperature = above("AllTasks.temperature", temperature, advice="1 is by size")

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
