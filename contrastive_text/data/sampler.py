"""Order of an epoch, a function of (seed, task, epoch) alone, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, generator, mix_each, text_id
from contrastive_text.core.types import Row
from contrastive_text.data.collator import KeyedRow
from contrastive_text.data.mixture import Step, Steps, TaskSize

PERMUTATION_ROWS = 1 << 24
"""Most rows that are put in order by a permutation, which is then 64 MiB and drawn in some two seconds."""
ROUNDS = 8
"""Of the Feistel network of a ``Bijection``."""


class Bijection:
    """A keyed order of the numbers below a size, any part of which is computed by itself, in no memory.

    A Feistel network of two halves over the smallest even number of bits that hold the size; a number that comes
    out too large goes in again until it doesn't ("cycle-walking"), which takes fewer than four turns on average.
    The round function is the finaliser of SplitMix64 of a half and the round's key, cut to the bits of a half.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains", as TensorFlow's
    ``random_index_shuffle`` has it, with four rounds. Luby and Rackoff 1988 prove that four look random until
    2^(b/2) numbers are seen, b being the bits of a half, and Maurer and Pietrzak 2003
    (https://doi.org/10.1007/3-540-39200-9_34) that more do until nearly 2^b. An epoch sees all of them, of which
    nothing is proven: three rounds show in the distances of neighbours, four don't, and eight leave room.

    Args:
        size: How many numbers there are, at least 1.
        key: What the order depends on.

    Example:
        >>> order = Bijection(6, key=1)
        >>> order[0:6].tolist(), order[2:4].tolist()
        ([4, 2, 0, 3, 1, 5], [0, 3])
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._bits, self._drop = np.uint64(bits), np.uint64(64 - bits)
        self._mask = np.uint64((1 << bits) - 1)
        self._keys = [np.array([fold(key, number)]).view(np.uint64) for number in range(ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, places: slice) -> npt.NDArray[np.int64]:
        """Returns the numbers at places in a row, as an array's slice would."""
        numbers = self._network(np.arange(*places.indices(self.size), dtype=np.uint64))
        outside = np.flatnonzero(numbers >= self.size)
        while len(outside):
            numbers[outside] = self._network(numbers[outside])
            outside = outside[numbers[outside] >= self.size]
        return numbers.view(np.int64)

    def _network(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = numbers >> self._bits, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix_each(right + key) >> self._drop)
        return left << self._bits | right


Order: TypeAlias = "npt.NDArray[np.integer] | Bijection"
"""Numbers from 0 in an order, of which slices are read."""


def keyed_order(size: int, key: int) -> Order:
    """Returns the numbers below a size in the order of a key: a permutation, or above a bound a ``Bijection``.

    Args:
        size: How many.
        key: What the order depends on.

    Example:
        >>> keyed_order(5, key=1)[:].tolist()
        [0, 1, 2, 4, 3]
    """
    if size > PERMUTATION_ROWS:
        return Bijection(size, key)
    # The draws don't depend on the type; the smallest that holds all is an eighth to a half of int64.
    numbers = np.arange(size, dtype=np.min_scalar_type(size))
    generator(key).shuffle(numbers)
    return numbers


class EpochOrder:
    """The numbers of a task's rows in the order of an epoch, as many passes over them as are read.

    Number i is row i % size, in pass i // size. One pass at most is in memory.

    Args:
        size: Rows of the task.
        key: What the order of the first pass depends on; the others have their number beside it.

    Example:
        >>> EpochOrder(3, key=(7,))(0, 6).tolist()
        [1, 2, 0, 3, 5, 4]
    """

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        self.size = size
        self.key = key
        self._number = -1
        self._order: Order | None = None

    def __call__(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns the numbers at the places from ``start`` to ``stop``, exclusive."""
        firsts = range(start // self.size * self.size, stop, self.size)
        return np.concatenate([
            first + self._pass(first // self.size)[max(0, start - first) : stop - first].astype(np.int64)
            for first in firsts
        ])  # fmt: skip

    def _pass(self, number: int) -> Order:
        if self._order is None or self._number != number:
            self._order = None  # before the next is drawn, which is as large
            # Without a number for the first pass: the keys of runs in which nothing comes again.
            key = fold(*self.key, *[number][:number])
            self._number, self._order = number, keyed_order(self.size, key)
        return self._order


def describe_orders(sizes: Mapping[str, TaskSize]) -> str:
    """Says how the rows of each task are put in order, for the run's summary.

    Example:
        >>> describe_orders({"train": TaskSize(20_000_000, batch_size=64)})
        'a bijection of 20,000,000 rows by seed and epoch, computed step by step'
        >>> describe_orders({"a": TaskSize(9, 2), "b": TaskSize(20_000_000, 2)})[:56]
        'a: a permutation by seed and epoch; b: a bijection of 20'
    """
    said = {
        task: f"a bijection of {size.rows:,} rows by seed and epoch, computed step by step"
        if size.rows > PERMUTATION_ROWS
        else "a permutation by seed and epoch"
        for task, size in sizes.items()
    }
    each = dict.fromkeys(said.values())
    return next(iter(each)) if len(each) == 1 else "; ".join(f"{task}: {how}" for task, how in said.items())


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
        computed = [task for task, size in self.sizes.items() if self.shuffle and size > PERMUTATION_ROWS]
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
        return EpochOrder(self.sizes[task], (self.seed, text_id(task), epoch))
