"""The order of an epoch, a function of (seed, epoch) alone, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

from torch.utils.data import Dataset

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import text_id
from contrastive_text.core.types import Row
from contrastive_text.data.collator import KeyedRow
from contrastive_text.data.orders import PERMUTATION_ROWS, EpochOrder
from contrastive_text.data.steps import Step, Steps


class Rows(Protocol):
    """Rows by number: a tuple, or a view of a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class RowKey(NamedTuple):
    """Which row of which data set, in which epoch, for which objectives, and how many each rank has in the step.

    Of a data set of n rows that come again within an epoch, number i is row i % n, in its pass i // n.
    """

    epoch: int
    number: int
    task: str = "train"
    objectives: tuple[str, ...] | None = None
    shares: tuple[int, ...] = ()


class KeyedRows(Dataset[KeyedRow]):
    """Rows that are asked for by key, so that a worker knows the key of their draws.

    Args:
        rows: Task -> its rows.
    """

    def __init__(self, rows: Mapping[str, Rows]) -> None:
        self.rows = dict(rows)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def __getitem__(self, key: RowKey) -> KeyedRow:
        rows = self.rows[key.task]
        row = rows[key.number % len(rows)]
        return KeyedRow(key.epoch, key.number, row, key.task, key.objectives, key.shares)


class RowsInOrder(Dataset[KeyedRow]):
    """The rows of one task by number, as they stand in the file.

    Args:
        task: Its name.
        rows: Its rows.
    """

    def __init__(self, task: str, rows: Rows) -> None:
        self.task = task
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> KeyedRow:
        return KeyedRow(epoch=0, number=number, row=self.rows[number], task=self.task)


class EpochBatchSampler:
    """Yields the rows of each step of an epoch; every rank takes its own part of the same global batches.

    No row is repeated to even out ranks: a repeated row is a false negative of itself. Ranks may differ by
    one row of each task. Steps beyond a task's rows take them again, in passes with orders and keys of their own.
    Lightning finds ``set_epoch`` on ``batch_sampler.sampler``, hence ``sampler``.

    Args:
        sizes: Task -> number of its rows.
        steps: The steps of every epoch.
        seed: Seed of the order.
        shuffle: Whether each epoch has an order of its own; otherwise the file's.
        rank: This process.
        world_size: Number of processes.
        same_order: Whether every epoch has the order of the first, for ``trainer.overfit_batches``.
        permutation_rows: Most rows of a task whose order is a permutation; of more it is a ``Bijection``.

    Attributes:
        skip: Steps that the next iteration leaves out, because a resumed run has taken them.

    Raises:
        ValueError: A step with fewer rows of a task than there are ranks, while shuffling.

    Example:
        >>> steps = [Step({"train": (0, 2)}), Step({"train": (2, 4)})]
        >>> sampler = EpochBatchSampler({"train": 5}, steps, seed=0, shuffle=False)
        >>> [[key.number for key in keys] for keys in sampler]
        [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        steps: Sequence[Step],
        seed: int,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        same_order: bool = False,
        permutation_rows: int = PERMUTATION_ROWS,
    ) -> None:
        self.steps = Steps.of(steps)
        for step in self.steps.kinds if shuffle else ():
            for task, (start, stop) in step.parts.items():
                if stop - start < world_size:
                    raise InvalidValueError(
                        f"batch_size: expected a row of {task} for each of {world_size} ranks in every step, got "
                        f"{stop - start}; raise batch_size, or set drop_last"
                    )
        self.sizes = dict(sizes)
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.same_order = same_order
        self.permutation_rows = permutation_rows
        self._own = self.steps.where(self._has_rows)
        self.epoch = 0
        self.skip = 0

    @property
    def sampler(self) -> EpochBatchSampler:
        """Itself: where Lightning looks for ``set_epoch``."""
        return self

    @cached_property
    def identity(self) -> int:
        """A number that is the same for the same order of the same rows, whatever the rank."""
        computed = [task for task, size in self.sizes.items() if self.shuffle and size > self.permutation_rows]
        return text_id(repr((self.sizes, self.steps, self.seed, self.shuffle, self.same_order, computed)))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration gives; what is to be left out is of the epoch before."""
        if epoch != self.epoch:
            self.skip = 0
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of this rank's batches: all ranks have as many, unless rows run out in the last one."""
        return len(self._own)

    def _has_rows(self, step: Step) -> bool:
        return any(stop - start > self.rank for start, stop in step.parts.values())

    def __iter__(self) -> Iterator[list[RowKey]]:
        epoch, skip, self.skip = self.epoch, self.skip, 0
        orders = {task: self._order(task, 0 if self.same_order else epoch) for task in self.sizes}
        for place in range(skip, len(self._own)):
            step = self._own[place]
            keys: list[RowKey] = []
            for task, (start, stop) in step.parts.items():
                shares = self._shares(stop - start)
                first = start + sum(shares[: self.rank])
                numbers = orders[task](first, first + shares[self.rank])
                keys += [RowKey(epoch, int(number), task, step.objectives, shares) for number in numbers]
            yield keys

    def _shares(self, rows: int) -> tuple[int, ...]:
        """Returns how many of some rows each rank takes; the first ones one more where they don't go evenly."""
        each, more = divmod(rows, self.world_size)
        return (each + 1,) * more + (each,) * (self.world_size - more)

    def _order(self, task: str, epoch: int) -> Callable[[int, int], Iterable[int]]:
        """Returns what gives the numbers of a task's rows between two places of an epoch's order."""
        if not self.shuffle:
            return range
        return EpochOrder(self.sizes[task], (self.seed, text_id(task), epoch), self.permutation_rows)
