"""The order of an epoch, a function of (seed, epoch) alone, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, generator, text_id
from contrastive_text.core.types import Row
from contrastive_text.data.collator import KeyedRow
from contrastive_text.data.mixture import Step


class Rows(Protocol):
    """Rows by number: a tuple, or a view of a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class RowKey(NamedTuple):
    """Which row of which data set, in which epoch, and for which objectives.

    Of a data set of n rows that come again within an epoch, number i is row i % n, in its pass i // n.
    """

    epoch: int
    number: int
    task: str = "train"
    objectives: tuple[str, ...] | None = None


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
        return KeyedRow(epoch=key.epoch, number=key.number, row=row, task=key.task, objectives=key.objectives)


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
        for step in steps if shuffle else ():
            for task, (start, stop) in step.parts.items():
                if stop - start < world_size:
                    raise InvalidValueError(
                        f"batch_size: expected a row of {task} for each of {world_size} ranks in every step, got "
                        f"{stop - start}; raise batch_size, or set drop_last"
                    )
        self.sizes = dict(sizes)
        self.steps = list(steps)
        self.seed = seed
        self.shuffle = shuffle
        self.rank = rank
        self.world_size = world_size
        self.same_order = same_order
        self.epoch = 0
        self.skip = 0

    @property
    def sampler(self) -> EpochBatchSampler:
        """Itself: where Lightning looks for ``set_epoch``."""
        return self

    @property
    def identity(self) -> int:
        """A number that is the same for the same order of the same rows, whatever the rank."""
        order = (self.sizes, self.steps, self.seed, self.shuffle)
        # Without the fifth it is the number that checkpoints have which know of four.
        return text_id(repr((*order, True) if self.same_order else order))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration gives; what is to be left out is of the epoch before."""
        if epoch != self.epoch:
            self.skip = 0
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of this rank's batches: all ranks have as many, unless rows run out in the last one."""
        return sum(self._has_rows(step) for step in self.steps)

    def _has_rows(self, step: Step) -> bool:
        return any(stop - start > self.rank for start, stop in step.parts.values())

    def __iter__(self) -> Iterator[list[RowKey]]:
        epoch, skip, self.skip = self.epoch, self.skip, 0
        drawn = 0 if self.same_order else epoch
        orders = {task: self._order(task, drawn) for task in self.sizes}
        for step in [step for step in self.steps if self._has_rows(step)][skip:]:
            yield [
                RowKey(epoch=epoch, number=int(number), task=task, objectives=step.objectives)
                for task, (start, stop) in step.parts.items()
                for number in np.array_split(orders[task][start:stop], self.world_size)[self.rank]
            ]

    def _order(self, task: str, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of a task's rows in the order of an epoch, as many passes as the steps take."""
        size = self.sizes[task]
        taken = max((step.parts[task][1] for step in self.steps if task in step.parts), default=0)
        passes = range(max(1, -(-taken // size)))
        if not self.shuffle:
            return np.arange(len(passes) * size)
        key = (self.seed, text_id(task), epoch)
        # Without a number for the first pass: the keys of runs in which nothing comes again.
        orders = [generator(fold(*key, *[number][:number])).permutation(size) for number in passes]
        return np.concatenate([order + number * size for number, order in enumerate(orders)])
