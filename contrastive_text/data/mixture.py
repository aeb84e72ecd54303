"""Mixtures: they decide which data sets each training step takes its batches from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise
from operator import index
from typing import overload

from contrastive_text.core.errors import InvalidValueError, above


@dataclass(frozen=True, slots=True)
class TaskSize:
    """Number of rows of a data set, and number of its rows in a batch.

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
        parts: Task -> first and last index (exclusive) of its rows, in the order of the epoch.
        objectives: Names of the objectives that run; None for all objectives of the tasks in ``parts``.
    """

    parts: Mapping[str, tuple[int, int]]
    objectives: tuple[str, ...] | None = None

    def shift(self, rounds: int) -> Step:
        """Returns the same training step with each task's range of rows moved on by a number of rounds.

        Example:
            >>> Step({"a": (0, 2), "b": (4, 7)}).shift(2)
            Step(parts={'a': (4, 6), 'b': (10, 13)}, objectives=None)
        """
        parts = {
            task: (start + rounds * (stop - start), stop + rounds * (stop - start))
            for task, (start, stop) in self.parts.items()
        }
        return Step(parts, self.objectives)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Group of an epoch's steps that is repeated, each time with the next rows of each task.

    Args:
        first: Steps of the first round. Each further round takes the rows of each task that follow.
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
    """Sequence of the steps of an epoch, stored as a few ``Rounds``. 10 million steps take as much memory as ten.

    Args:
        rounds: Groups of steps, in order.

    Example:
        >>> steps = Steps([Rounds((Step({"a": (0, 2)}), Step({"b": (0, 1)})), count=1_000_000)])
        >>> len(steps), steps[-1]
        (2000000, Step(parts={'b': (999999, 1000000)}, objectives=None))
        >>> steps.rows_taken("a"), steps.largest_step("a")
        (2000000, 2)
    """

    def __init__(self, rounds: Iterable[Rounds]) -> None:
        self.rounds = tuple(group for group in rounds if len(group))
        self.ends = tuple(accumulate(map(len, self.rounds)))

    @classmethod
    def of(cls, steps: Sequence[Step]) -> Steps:
        """Converts a list of steps to ``Steps``. Equal steps with consecutive rows become one ``Rounds``.

        Example:
            >>> Steps.of([Step({"a": (0, 2)}), Step({"a": (2, 4)}), Step({"a": (4, 5)})]).rounds[0].count
            2
        """
        if isinstance(steps, Steps):
            return steps
        groups: list[Rounds] = []
        for step in steps:
            group = groups[-1] if groups else Rounds((step,), 0)
            next_step = group.first[0].shift(group.count)
            # Equal mappings may differ in the order of their tasks, which is the order of tasks in a batch.
            if groups and step == next_step and list(step.parts) == list(next_step.parts):
                groups[-1] = Rounds(group.first, group.count + 1)
            else:
                groups.append(Rounds((step,)))
        return cls(groups)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, number: int) -> Step: ...

    @overload
    def __getitem__(self, number: slice) -> list[Step]: ...

    def __getitem__(self, number: int | slice) -> Step | list[Step]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        return self._step(range(len(self))[index(number)])  # IndexError beyond the last

    def _step(self, number: int) -> Step:
        """Returns a step by its number, from 0."""
        group_number = bisect_right(self.ends, number)
        rounds = self.rounds[group_number]
        round_number, turn = divmod(number - self.ends[group_number] + len(rounds), len(rounds.first))
        return rounds.first[turn].shift(round_number)

    def __repr__(self) -> str:
        return f"Steps({list(self.rounds)})"

    @property
    def kinds(self) -> list[Step]:
        """The distinct steps, in the order of the first of each: all other steps differ only in their rows."""
        return [step for rounds in self.rounds for step in rounds.first]

    def rows_taken(self, task: str) -> int:
        """Returns the number of rows of a task that an epoch takes, with repetition."""
        last_parts = (step.shift(rounds.count - 1).parts for rounds in self.rounds for step in rounds.first)
        return max((parts[task][1] for parts in last_parts if task in parts), default=0)

    def step_count(self, task: str) -> int:
        """Returns the number of steps that train a task."""
        return sum(rounds.count for rounds in self.rounds for step in rounds.first if task in step.parts)

    def largest_step(self, task: str) -> int:
        """Returns the largest number of rows of a task in a step."""
        parts = (step.parts[task] for step in self.kinds if task in step.parts)
        return max((stop - start for start, stop in parts), default=0)

    def filter(self, kept: Callable[[Step], bool]) -> Steps:
        """Returns the steps that a function selects, in their order."""
        return Steps(Rounds(tuple(filter(kept, rounds.first)), rounds.count) for rounds in self.rounds)

    def with_turns(self, turns: Sequence[tuple[str, ...]]) -> Steps:
        """Returns every step once for each group of objectives (``Fusion``)."""
        return Steps(
            Rounds(tuple(replace(step, objectives=turn) for step in rounds.first for turn in turns), rounds.count)
            for rounds in self.rounds
        )


class InterleavedSteps(Steps):
    """Steps of several sequences, evenly interleaved. Each step is computed from its number, without a list.

    Step j of a sequence of c steps is at position (j + 1/2) / c, and the steps are sorted by position (Webster's
    method of apportionment). Let p be a sequence's share of all steps, and n the number of sequences. After any
    number of steps, the sequence has p times the number, up to 1/2 + p (n - 2) / 2 steps more or less.

    Args:
        sequences: Steps of each task. At equal positions the earlier sequence comes first.
        width: Number of consecutive steps of a sequence that stay together.

    Example:
        >>> a, b = (Steps([Rounds((Step({task: (0, 2)}),), count)]) for task, count in {"a": 1, "b": 4}.items())
        >>> [dict(step.parts) for step in InterleavedSteps([a, b])]
        [{'b': (0, 2)}, {'b': (2, 4)}, {'a': (0, 2)}, {'b': (4, 6)}, {'b': (6, 8)}]
    """

    def __init__(self, sequences: Sequence[Steps], width: int = 1) -> None:
        super().__init__(rounds for steps in sequences for rounds in steps.rounds)
        self.sequences = [steps for steps in sequences if len(steps)]
        self.width = width

    def _step(self, number: int) -> Step:
        number, turn = divmod(number, self.width)
        counts = [len(steps) // self.width for steps in self.sequences]
        total = sum(counts)
        # Only the last steps before ``number`` are sorted. The steps before these are counted by position.
        start = max(number - len(counts), 0)
        before = [max(0, -((total - 2 * count * start) // (2 * total))) for count in counts]
        positions = [(Fraction(2 * j + 1, 2 * counts[i]), i, j) for i, j in enumerate(before)]
        heapify(positions)
        for _ in range(number - sum(before)):
            position, i, j = positions[0]
            heapreplace(positions, (position + Fraction(1, counts[i]), i, j + 1))
        _, i, j = positions[0]
        return self.sequences[i][j * self.width + turn]

    def __repr__(self) -> str:
        return f"InterleavedSteps({self.sequences}, width={self.width})"

    def filter(self, kept: Callable[[Step], bool]) -> Steps:
        """Returns the steps that a function selects, in their order; a list if some are not selected."""
        return self if all(map(kept, self.kinds)) else Steps.of([step for step in self if kept(step)])

    def with_turns(self, turns: Sequence[tuple[str, ...]]) -> Steps:
        """Returns every step once for each group of objectives (``Fusion``)."""
        sequences = [steps.with_turns(turns) for steps in self.sequences]
        return InterleavedSteps(sequences, self.width * len(turns))


def consecutive_steps(sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
    """Returns steps with a batch of every task, until the first task has no more rows.

    Raises:
        ValueError: No task has a whole batch, and smaller batches are dropped.

    Example:
        >>> list(consecutive_steps({"a": TaskSize(rows=5, batch_size=2)}, drop_last=True))
        [Step(parts={'a': (0, 2)}, objectives=None), Step(parts={'a': (2, 4)}, objectives=None)]
    """
    shortest = min(sizes.values(), key=lambda size: size.rows / size.batch_size)
    whole, remainder = divmod(shortest.rows, shortest.batch_size)
    first = Step({task: (0, size.batch_size) for task, size in sizes.items()})
    rounds = [Rounds((first,), whole)]
    if remainder and not drop_last:
        starts = {task: whole * size.batch_size for task, size in sizes.items()}
        # The last batch of every task has the same fraction of its batch size.
        ends = {
            task: starts[task] + max(1, remainder * size.batch_size // shortest.batch_size)
            for task, size in sizes.items()
        }
        last = Step({task: (starts[task], min(ends[task], sizes[task].rows)) for task in sizes})
        rounds.append(Rounds((last,)))
    steps = Steps(rounds)
    if not steps:
        name = next(task for task, size in sizes.items() if size is shortest)
        raise InvalidValueError(
            f"batch_size: expected at most the number of rows, {shortest.rows}, got {shortest.batch_size}"
            f"{f' for {name}' if name != 'train' else ''}; lower batch_size, give more text, or repeat the rows "
            "with repeat"
        )
    return steps


def describe_steps(steps: Steps, sizes: Mapping[str, TaskSize]) -> str:
    """Describes how many rows of each task an epoch takes, for the run's summary.

    Example:
        >>> sizes = {"a": TaskSize(4, 2), "b": TaskSize(9, 2)}
        >>> print(describe_steps(consecutive_steps(sizes, drop_last=True), sizes))
        2 steps: a, b; a, b
        a: 4 of 4 rows an epoch, 2 a step
        b: 4 of 9 rows an epoch, 2 a step, others each time
        >>> print(describe_steps(Proportional().steps(sizes, drop_last=True), sizes))
        6 steps: b; a; b; b; ...
        a: 2 steps, 4 of 4 rows an epoch, 2 a step
        b: 4 steps, 8 of 9 rows an epoch, 2 a step, others each time
    """
    first_steps = [", ".join(step.objectives or step.parts) for step in steps[:4]]
    lines = [f"{len(steps):,} steps: {'; '.join(first_steps)}{'; ...' if len(steps) > 4 else ''}"]
    for task, size in sizes.items():
        count = steps.rows_taken(task)
        suffix = ", others each time" if count < size.rows else ""
        amount = f"{count:,} of {size.rows:,} rows" if count <= size.rows else f"{size.rows:,} rows as {count:,}"
        step_count = steps.step_count(task)
        share = f"{step_count:,} step{'s' * (step_count > 1)}, " if step_count < len(steps) else ""
        lines.append(f"{task}: {share}{amount} an epoch, {steps.largest_step(task):,} a step{suffix}")
    return "\n".join(lines)


class Mixture(ABC):
    """Base class of mixtures, which decide which tasks a step trains, from the sizes of the data sets.

    Every epoch has the same steps with the rows in another random order. A task whose rows aren't all taken has
    other rows in each epoch. A custom mixture:

    Example:
        >>> class FirstTaskAlone(Mixture):
        ...     def steps(self, sizes, drop_last):
        ...         return consecutive_steps({task: sizes[task] for task in list(sizes)[:1]}, drop_last)
        >>> list(FirstTaskAlone().steps({"a": TaskSize(5, 2), "b": TaskSize(9, 2)}, drop_last=True))
        [Step(parts={'a': (0, 2)}, objectives=None), Step(parts={'a': (2, 4)}, objectives=None)]
    """

    @abstractmethod
    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Sequence[Step]:
        """Returns the steps of an epoch, as a list or as ``Steps``, which needs no memory.

        Args:
            sizes: Task -> its size, in the order of the configuration.
            drop_last: Whether last, smaller batches are dropped.
        """


class AllTasks(Mixture):
    """Mixture with a batch of every task in each step.

    Larger tasks are sampled down to the smallest in each epoch.

    The CS224N report's "average": one loss of three batches (Chen, "Contrastive Learning for Generalizable
    Sentence Embeddings", section on multi-task training). With weights or a temperature, the sum of the tasks'
    batch sizes is distributed differently: in proportion to the weights, or to the number of rows to the power of
    1 / temperature (Devlin et al. 2019 for languages; for tasks T5, Raffel et al. 2020,
    https://arxiv.org/abs/1910.10683, section 3.5.2). An epoch ends when the first task has no more rows.

    Args:
        weights: Task -> its weight.
        temperature: 1 distributes in proportion to the numbers of rows, a large value equally.

    Raises:
        ValueError: Weights together with a temperature, a value that isn't positive, or weights of unknown tasks.

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
        """Returns a step for every batch of the task that has the fewest batches."""
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
        batch_sizes = _divide(sum(size.batch_size for size in sizes.values()), weights)
        return {task: replace(size, batch_size=batch_sizes[task]) for task, size in sizes.items()}


class BatchRoundRobin(Mixture):
    """Mixture with one task per step, in turn, in the order of the tasks (CS224N report, "batch round robin").

    Args:
        downsample: Whether all tasks stop with the smallest. Otherwise tasks with more rows continue alone.

    Example:
        >>> steps = BatchRoundRobin().steps({"a": TaskSize(4, 2), "b": TaskSize(9, 2)}, drop_last=True)
        >>> [dict(step.parts) for step in steps]
        [{'a': (0, 2)}, {'b': (0, 2)}, {'a': (2, 4)}, {'b': (2, 4)}]
    """

    def __init__(self, downsample: bool = True) -> None:
        self.downsample = downsample

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns the steps of an epoch in which the tasks alternate."""
        task_steps = _single_task_steps(sizes, drop_last, self.downsample)
        # Between two of these edges the same tasks take turns, each with batches of equal size.
        edges = sorted({0, *(end for steps in task_steps for end in steps.ends)})
        return Steps(
            Rounds(tuple(steps[start] for steps in task_steps if start < len(steps)), end - start)
            for start, end in pairwise(edges)
        )


class Proportional(Mixture):
    """Mixture with one task per step, in proportion to the numbers of rows, evenly interleaved.

    The number of steps of a task is proportional to ``rows ** (1 / temperature)``, and at least 1. An epoch has
    as many steps as the tasks have batches. With temperature 1 and equal batch sizes it takes each row about
    once. With a higher temperature it takes rows of small tasks several times, with other views each time.

    Source: temperature-scaled mixing of T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 3.5.2).
    Temperature 1 is its examples-proportional mixing without a limit, and the ``PROPORTIONAL`` sampler of
    sentence-transformers for equal batch sizes.

    Differs: both sources draw the task of a step at random. Here the steps of a task are evenly spaced. So the
    numbers of steps are exact in every epoch, and all ranks and a resumed run compute the same order.

    Args:
        temperature: 1 is in proportion to rows; a large value gives all tasks equal numbers of steps.

    Raises:
        ValueError: The temperature is 0 or less.

    Example:
        >>> steps = Proportional().steps({"a": TaskSize(2, 2), "b": TaskSize(8, 2)}, drop_last=True)
        >>> [dict(step.parts) for step in steps]
        [{'b': (0, 2)}, {'b': (2, 4)}, {'a': (0, 2)}, {'b': (4, 6)}, {'b': (6, 8)}]
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = above("Proportional.temperature", temperature, advice="1 is by size")

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns the steps of an epoch, each with a whole batch of one task."""
        passes = {task: consecutive_steps({task: size}, drop_last) for task, size in sizes.items()}
        largest = max(size.rows for size in sizes.values())
        # Divided by the largest number of rows, so that no power overflows.
        weights = {task: (size.rows / largest) ** (1 / self.temperature) for task, size in sizes.items()}
        counts = _divide(sum(map(len, passes.values())), weights)
        first = {task: Step({task: (0, steps.largest_step(task))}) for task, steps in passes.items()}
        return InterleavedSteps([Steps([Rounds((step,), counts[task])]) for task, step in first.items()])


class EpochRoundRobin(Mixture):
    """Mixture of one task after another, each for all of its rows (CS224N report, "epoch round robin").

    Args:
        downsample: Whether larger tasks are sampled down to the smallest. The report takes all rows.

    Example:
        >>> steps = EpochRoundRobin().steps({"a": TaskSize(4, 2), "b": TaskSize(6, 2)}, drop_last=True)
        >>> [dict(step.parts) for step in steps]
        [{'a': (0, 2)}, {'a': (2, 4)}, {'b': (0, 2)}, {'b': (2, 4)}, {'b': (4, 6)}]
    """

    def __init__(self, downsample: bool = False) -> None:
        self.downsample = downsample

    def steps(self, sizes: Mapping[str, TaskSize], drop_last: bool) -> Steps:
        """Returns all steps of the first task, then all of the second, and so on."""
        return Steps(
            rounds for steps in _single_task_steps(sizes, drop_last, self.downsample) for rounds in steps.rounds
        )


class Fusion(Mixture):
    """Mixture that repeats a batch for each group of objectives, such as supervised first and then contrastive.

    "Fusion training" of the CS224N report: each batch has a step on the classification loss, then a step on the
    contrastive loss of the same texts. Views and their random draws are the same in all steps of a batch.

    Args:
        turns: Groups of objective names, in the order of their steps.
        mixture: Mixture whose batches are repeated; None for ``AllTasks``.

    Raises:
        ValueError: Fewer than two groups, or an empty group.

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
        return Steps.of(self.mixture.steps(sizes, drop_last)).with_turns([tuple(turn) for turn in self.turns])


def _divide(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Divides a number among tasks in proportion to their weights, at least 1 for each."""
    scale = sum(weights.values())
    exact = {task: total * weight / scale for task, weight in weights.items()}
    counts = {task: max(1, int(value)) for task, value in exact.items()}
    # The rest after rounding down goes to the largest remainders.
    rest = max(0, total - sum(counts.values()))
    for task in sorted(weights, key=lambda task: counts[task] - exact[task])[:rest]:
        counts[task] += 1
    return counts


def _single_task_steps(sizes: Mapping[str, TaskSize], drop_last: bool, downsample: bool) -> list[Steps]:
    """Returns the steps of each task alone, one step a round."""
    if not downsample:
        return [consecutive_steps({task: size}, drop_last) for task, size in sizes.items()]
    joint_steps = consecutive_steps(sizes, drop_last)
    return [
        Steps(Rounds((Step({task: rounds.first[0].parts[task]}),), rounds.count) for rounds in joint_steps.rounds)
        for task in sizes
    ]
