"""The order of an epoch, a function of (seed, epoch) alone, and each rank's part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from torch.utils.data import Dataset

from contrastive_text.data.collator import KeyedRow
from contrastive_text.random import fold, generator
from contrastive_text.types import Row


class Rows(Protocol):
    """Rows by number: a tuple, or a view of a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class KeyedRows(Dataset[KeyedRow]):
    """Rows that are asked for by (epoch, index), so that a worker knows the key of their draws."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[int, int]) -> KeyedRow:
        epoch, index = key
        return KeyedRow(epoch=epoch, number=index, row=self.rows[index])


class EpochBatchSampler:
    """Gives batches of (epoch, index); every rank takes its own part of the same global batches.

    No row is repeated to even out ranks: a repeated row is a false negative of itself. Ranks may differ by
    one row. Lightning finds ``set_epoch`` on ``batch_sampler.sampler``, hence ``sampler``.

    Args:
        size: Number of rows of the data set.
        batch_size: Rows of a step over all ranks together.
        seed: Seed of the order.
        shuffle: Whether each epoch has an order of its own; otherwise the file's.
        drop_last: Whether a last, smaller batch is left out.
        rank: This process.
        world_size: Number of processes.

    Raises:
        ValueError: A batch size below the number of ranks, or, with ``drop_last``, above that of rows.

    Example:
        >>> list(EpochBatchSampler(size=5, batch_size=2, seed=0, shuffle=False))
        [[(0, 0), (0, 1)], [(0, 2), (0, 3)]]
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size < max(world_size, 1):
            raise ValueError(
                f"batch_size: expected a row for each of {world_size} ranks or more, got {batch_size}"
            )
        if size % batch_size and not drop_last and shuffle and size % batch_size < world_size:
            raise ValueError(
                f"drop_last: expected a last batch with a row for each of {world_size} ranks, got "
                f"{size % batch_size} rows; set drop_last, or another batch_size"
            )
        if drop_last and batch_size > size:
            raise ValueError(
                f"batch_size: expected at most the number of rows, {size}, got {batch_size}; lower "
                "--data.batch_size or give more text"
            )
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0

    @property
    def sampler(self) -> EpochBatchSampler:
        """Itself: where Lightning looks for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of this rank's batches: all ranks have as many, unless rows run out in the last one."""
        whole, rest = divmod(self.size, self.batch_size)
        return whole + (not self.drop_last and rest > self.rank)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order = np.arange(self.size)
        if self.shuffle:
            order = generator(fold(self.seed, self.epoch)).permutation(order)
        for step in range(len(self)):
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            part = np.array_split(batch, self.world_size)[self.rank]
            yield [(self.epoch, int(index)) for index in part]
