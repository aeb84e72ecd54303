"""Loaders of batches: the order of an epoch, each rank's part of the order, and the place of a resumed run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.distributed import rank, world_size
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


class KeyedRows(Dataset[KeyedRow]):
    """Rows of several tasks by key, so that a worker process knows the key of their draws.

    Args:
        rows: Task -> its rows. Number i of a task of n rows is row i % n, in its pass i // n over the rows.
    """

    def __init__(self, rows: Mapping[str, Rows]) -> None:
        self.rows = dict(rows)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def __getitem__(self, key: KeyedRow | int) -> KeyedRow:
        if isinstance(key, int):  # torch's own samplers, over the rows of the only task
            key = KeyedRow(epoch=0, number=key, task=next(iter(self.rows)))
        rows = self.rows[key.task]
        return key._replace(row=rows[key.number % len(rows)])


@dataclass(eq=False)
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

    sizes: Mapping[str, int]
    steps: Sequence[Step]
    seed: int
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    same_order: bool = False

    def __post_init__(self) -> None:
        self.steps = steps = Steps.of(self.steps)
        for step in steps.kinds if self.shuffle else ():
            for task, (start, stop) in step.parts.items():
                if stop - start < self.world_size:
                    raise InvalidValueError(
                        f"batch_size: expected a row of {task} for each of {self.world_size} ranks in every "
                        f"step, got {stop - start}; raise batch_size, or set drop_last"
                    )
        self._own = steps.where(lambda step: any(stop - start > self.rank for start, stop in step.parts.values()))
        self.epoch = self.skip = 0

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

    def __iter__(self) -> Iterator[list[KeyedRow]]:
        epoch, skip, self.skip = self.epoch, self.skip, 0
        passes = 0 if self.same_order else epoch
        orders: dict[str, Callable[[int, int], Iterable[int]]] = {
            task: EpochOrder(size, (self.seed, text_id(task), passes)) if self.shuffle else range
            for task, size in self.sizes.items()
        }
        for place in range(skip, len(self._own)):
            step = self._own[place]
            keys: list[KeyedRow] = []
            for task, (start, stop) in step.parts.items():
                each, more = divmod(stop - start, self.world_size)
                # The first ranks take one row more where the rows don't divide evenly.
                shares = (each + 1,) * more + (each,) * (self.world_size - more)
                first = start + sum(shares[: self.rank])
                keys += [
                    KeyedRow(epoch, int(number), task=task, objectives=step.objectives, shares=shares)
                    for number in orders[task](first, first + shares[self.rank])
                ]
            yield keys


class ResumableLoader(DataLoader[KeyedRow]):
    """Batches of keyed rows; its state is how many of them the main process has been given.

    Lightning saves ``state_dict`` with every checkpoint and gives it back before the first batch.

    Args:
        rows: The rows of all tasks.
        sampler: The order.
        collate: From keyed rows to a batch.
        num_workers: Worker processes.
    """

    def __init__(
        self,
        rows: KeyedRows,
        sampler: EpochBatchSampler,
        collate: Callable[[Sequence[KeyedRow]], Batch | StepBatch],
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            rows,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=_outlast_a_signal,
            pin_memory=torch.cuda.is_available(),
        )
        self.order = sampler
        self.given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Any: the base's iterator gives whatever it collates
        # Nothing is drawn before the first batch is asked for: by then Lightning has set the epoch, which workers
        # that fetch ahead would miss.
        self.given = self.order.skip
        for batch in super().__iter__():
            self.given += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Returns the place in the run: the epoch, how many of its batches were given, their number and order."""
        place = {"epoch": self.order.epoch, "given": self.given, "batches": len(self.order)}
        return place | {"order": self.order.identity}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes to a place in a run.

        Raises:
            ValueError: A place inside an epoch of other batches, or of the same in another order.
        """
        ended = state["given"] >= state["batches"]
        if not ended and state["given"] and state.get("order") != self.order.identity:
            raise InvalidValueError(
                f"ckpt_path: expected the {state['batches']:,} batches an epoch of the checkpoint, which is from "
                f"after {state['given']:,} of them, got {len(self.order):,}, or others; take the same data, "
                "batch_size, mixture and seed, or start from the weights alone with --init_from"
            )
        self.order.set_epoch(state["epoch"] + ended)
        self.order.skip = 0 if ended else state["given"]


def epoch_loader(
    rows: Mapping[str, Rows],
    steps: Sequence[Step],
    collate: Callable[[Sequence[KeyedRow]], Batch | StepBatch],
    seed: int,
    shuffle: bool = True,
    same_order: bool = False,
    num_workers: int = 0,
) -> ResumableLoader:
    """Returns the batches of an epoch that this rank takes; see ``EpochBatchSampler`` for the arguments."""
    order = EpochBatchSampler(
        {name: len(part) for name, part in rows.items()},
        steps,
        seed=seed,
        shuffle=shuffle,
        rank=rank(),
        world_size=world_size(),
        same_order=same_order,
    )
    return ResumableLoader(KeyedRows(rows), order, collate, num_workers=num_workers)


def loader_in_order(
    name: str, rows: Rows, batch_size: int, collate: Callable[[Sequence[KeyedRow]], Batch | StepBatch]
) -> ResumableLoader:
    """Returns batches of so many rows a rank in the order of the file, the last one smaller.

    All ranks have as many: rows at the end that aren't one for each of them join the batch before.
    """
    bounds = [*range(0, len(rows), batch_size * world_size()), len(rows)]
    if len(bounds) > 2 and bounds[-1] - bounds[-2] < world_size():
        del bounds[-2]
    steps = Steps.of([Step({name: part}) for part in pairwise(bounds)])
    return epoch_loader({name: rows}, steps, collate, seed=0, shuffle=False)


def _outlast_a_signal(worker: int) -> None:  # noqa: ARG001  # torch's signature
    """Lets a worker live on when all processes of a run are sent SIGTERM or Ctrl-C.

    Schedulers and terminals send them so. The main process ends its step first, and a worker's death in mid-step
    is an error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere nothing tells who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    """Ends the worker when the main process sends SIGTERM, as it does on its way out."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
