"""Loaders of batches: the order of an epoch, the part of each rank, and the position of a resumed run."""

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
from contrastive_text.core.random import fold_key, generator, splitmix64, text_id
from contrastive_text.core.types import Row
from contrastive_text.data.collator import KeyedRow
from contrastive_text.data.mixture import Step, Steps, TaskSize

PERMUTATION_ROWS = 1 << 24
"""Largest number of rows that are ordered by a permutation, which then has 64 MiB and is drawn in two seconds."""
ROUNDS = 8
"""Number of rounds of the Feistel network of a ``Bijection``."""


class Bijection:
    """Keyed pseudorandom permutation of the numbers below a size.

    Any part of it is computed directly, without memory.

    It is a Feistel network of two halves over the smallest even number of bits that hold the size. A result that
    is too large is encrypted again ("cycle-walking"), fewer than four times on average. The round function is the
    finalizer of SplitMix64 of a half and the round's key, cut to the bits of a half.

    Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains". TensorFlow's ``random_index_shuffle``
    is the same with four rounds. Luby and Rackoff 1988 prove that four rounds look random until 2^(b/2) numbers
    are seen, where b is the number of bits of a half. Maurer and Pietrzak 2003
    (https://doi.org/10.1007/3-540-39200-9_34) prove that more rounds do until nearly 2^b. An epoch sees all
    numbers, for which nothing is proven. In distances of neighbors three rounds are detectable, four are not;
    eight are safe.

    Args:
        size: Number of numbers, at least 1.
        key: Key of the order.

    Example:
        >>> order = Bijection(6, key=1)
        >>> order[0:6].tolist(), order[2:4].tolist()
        ([4, 2, 0, 3, 1, 5], [0, 3])
    """

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._bits, self._shift = np.uint64(bits), np.uint64(64 - bits)
        self._mask = np.uint64((1 << bits) - 1)
        self._keys = [np.array([fold_key(key, number)]).view(np.uint64) for number in range(ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, span: slice) -> npt.NDArray[np.int64]:
        """Returns the numbers at the positions of a slice of the pseudorandom order."""
        numbers = self._network(np.arange(*span.indices(self.size), dtype=np.uint64))
        outside = np.flatnonzero(numbers >= self.size)
        while len(outside):
            numbers[outside] = self._network(numbers[outside])
            outside = outside[numbers[outside] >= self.size]
        return numbers.view(np.int64)

    def _network(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = numbers >> self._bits, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (splitmix64(right + key) >> self._shift)
        return left << self._bits | right


Order: TypeAlias = "npt.NDArray[np.integer] | Bijection"
"""Protocol of a sequence of row numbers in the order of an epoch, which can be sliced."""


def draw_order(size: int, key: int) -> Order:
    """Returns the numbers below a size in an order drawn from a key: a permutation, or a ``Bijection`` if large.

    Args:
        size: Number of numbers.
        key: Key of the order.

    Example:
        >>> draw_order(5, key=1)[:].tolist()
        [0, 1, 2, 4, 3]
    """
    if size > PERMUTATION_ROWS:
        return Bijection(size, key)
    # The draws don't depend on the data type. The smallest type that fits has an eighth to a half of int64's
    # size.
    numbers = np.arange(size, dtype=np.min_scalar_type(size))
    generator(key).shuffle(numbers)
    return numbers


class EpochOrder:
    """Numbers of a task's rows in the order of an epoch, for any number of passes over the rows.

    Number i is row i % size in pass i // size. Memory holds at most one pass.

    Args:
        size: Number of rows of the task.
        key: Key of the order of the first pass. Later passes add their number to it.

    Example:
        >>> EpochOrder(3, key=(7,))(0, 6).tolist()
        [1, 2, 0, 3, 5, 4]
    """

    def __init__(self, size: int, key: tuple[int, ...]) -> None:
        self.size = size
        self.key = key
        self._pass_number = -1
        self._order: Order | None = None

    def __call__(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns the row numbers at the positions from ``start`` to ``stop`` of an epoch, exclusive."""
        firsts = range(start // self.size * self.size, stop, self.size)
        return np.concatenate([
            first + self._pass(first // self.size)[max(0, start - first) : stop - first].astype(np.int64)
            for first in firsts
        ])  # fmt: skip

    def _pass(self, number: int) -> Order:
        if self._order is None or self._pass_number != number:
            self._order = None  # frees the memory before the next order is drawn, which has the same size
            # The key of the first pass has no number, so that runs without repeats keep their order.
            key = fold_key(*self.key, *[number][:number])
            self._pass_number, self._order = number, draw_order(self.size, key)
        return self._order


def describe_orders(sizes: Mapping[str, TaskSize]) -> str:
    """Describes how the rows of each task are ordered, for the run's summary.

    Example:
        >>> describe_orders({"train": TaskSize(20_000_000, batch_size=64)})
        'a bijection of 20,000,000 rows by seed and epoch, computed step by step'
        >>> describe_orders({"a": TaskSize(9, 2), "b": TaskSize(20_000_000, 2)})[:56]
        'a: a permutation by seed and epoch; b: a bijection of 20'
    """
    description_of = {
        task: f"a bijection of {size.rows:,} rows by seed and epoch, computed step by step"
        if size.rows > PERMUTATION_ROWS
        else "a permutation by seed and epoch"
        for task, size in sizes.items()
    }
    descriptions = dict.fromkeys(description_of.values())
    return (
        next(iter(descriptions))
        if len(descriptions) == 1
        else "; ".join(f"{task}: {description}" for task, description in description_of.items())
    )


class Rows(Protocol):
    """Protocol of rows by number, such as a tuple or a mapped file."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class KeyedRows(Dataset[KeyedRow]):
    """Rows of several tasks by key, so that a worker process knows the key of their random draws.

    Args:
        rows: Task -> its rows. Number i of a task of n rows is row i % n, in pass i // n over the rows.
    """

    def __init__(self, rows: Mapping[str, Rows]) -> None:
        self.rows = dict(rows)

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))

    def __getitem__(self, key: KeyedRow | int) -> KeyedRow:
        if isinstance(key, int):  # samplers of torch, over the rows of the only task
            key = KeyedRow(epoch=0, number=key, task=next(iter(self.rows)))
        rows = self.rows[key.task]
        return key._replace(row=rows[key.number % len(rows)])


@dataclass(eq=False)
class EpochBatchSampler:
    """Yields the rows of each step of an epoch. Each rank takes its own part of the same global batches.

    No row is repeated to give ranks equal numbers of rows: a repeated row is a false negative of itself. Ranks
    may differ by one row of each task. Steps after a task's last row take its rows again, in passes with other
    orders and keys. Lightning calls ``set_epoch`` on ``batch_sampler.sampler``, hence the property ``sampler``.

    Args:
        sizes: Task -> number of its rows.
        steps: Steps of every epoch.
        seed: Seed of the order.
        shuffle: Whether each epoch has its own random order; otherwise the order of the file is used.
        rank: Rank of this process.
        world_size: Number of processes.
        same_order: Whether every epoch has the order of the first, for ``trainer.overfit_batches``.

    Attributes:
        skip: Number of steps that the next iteration skips, because a resumed run has taken them.

    Raises:
        ValueError: A step has fewer rows of a task than there are ranks, with ``shuffle``.

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
        self._steps = steps.filter(
            lambda step: any(stop - start > self.rank for start, stop in step.parts.values())
        )
        self.epoch = self.skip = 0

    @property
    def sampler(self) -> EpochBatchSampler:
        """The batch sampler itself, because Lightning calls ``set_epoch`` on the attribute ``sampler``."""
        return self

    @cached_property
    def identity(self) -> int:
        """Hash of the rows and of their order in an epoch, equal on every rank."""
        computed = [task for task, size in self.sizes.items() if self.shuffle and size > PERMUTATION_ROWS]
        return text_id(repr((self.sizes, self.steps, self.seed, self.shuffle, self.same_order, computed)))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration. For another epoch, no steps are skipped."""
        if epoch != self.epoch:
            self.skip = 0
        self.epoch = epoch

    def __len__(self) -> int:
        """Number of batches of this rank in an epoch.

        It is the same on all ranks, unless rows run out in the last batch.
        """
        return len(self._steps)

    def __iter__(self) -> Iterator[list[KeyedRow]]:
        epoch, skip, self.skip = self.epoch, self.skip, 0
        pass_epoch = 0 if self.same_order else epoch
        orders: dict[str, Callable[[int, int], Iterable[int]]] = {
            task: EpochOrder(size, (self.seed, text_id(task), pass_epoch)) if self.shuffle else range
            for task, size in self.sizes.items()
        }
        for number in range(skip, len(self._steps)):
            step = self._steps[number]
            keys: list[KeyedRow] = []
            for task, (start, stop) in step.parts.items():
                share, rest = divmod(stop - start, self.world_size)
                # The first ranks take one more row if the rows don't divide evenly.
                rank_sizes = (share + 1,) * rest + (share,) * (self.world_size - rest)
                rank_start = start + sum(rank_sizes[: self.rank])
                keys += [
                    KeyedRow(epoch, int(row_number), task=task, objectives=step.objectives, shares=rank_sizes)
                    for row_number in orders[task](rank_start, rank_start + rank_sizes[self.rank])
                ]
            yield keys


class ResumableLoader(DataLoader[KeyedRow]):
    """Loader of batches of keyed rows. Its state is the number of batches that the main process has received.

    Lightning saves ``state_dict`` with every checkpoint and restores it before the first batch.

    Args:
        rows: Rows of all tasks.
        sampler: Order of the rows.
        collate: Function from keyed rows to a batch.
        num_workers: Number of worker processes.
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
            worker_init_fn=_ignore_signals,
            pin_memory=torch.cuda.is_available(),
        )
        self.order = sampler
        self.batches_done = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Any: the base's iterator yields any batch type
        # Nothing is drawn before the first batch is requested. Lightning sets the epoch before that, and workers
        # that prefetch would miss it.
        self.batches_done = self.order.skip
        for batch in super().__iter__():
            self.batches_done += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Returns the loader's position in the run: epoch, batches received and in all, identity of the order."""
        place = {"epoch": self.order.epoch, "given": self.batches_done, "batches": len(self.order)}
        return place | {"order": self.order.identity}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restores the loader's position in a run, from ``state_dict``.

        Raises:
            ValueError: The position is inside an epoch whose number of batches or order differs.
        """
        has_ended = state["given"] >= state["batches"]
        if not has_ended and state["given"] and state.get("order") != self.order.identity:
            raise InvalidValueError(
                f"ckpt_path: expected the {state['batches']:,} batches an epoch of the checkpoint, saved after "
                f"{state['given']:,} of them, got {len(self.order):,} or other batches; give the same data, "
                "batch_size, mixture and seed, or start from the weights alone with --init_from"
            )
        self.order.set_epoch(state["epoch"] + has_ended)
        self.order.skip = 0 if has_ended else state["given"]


def epoch_loader(
    rows: Mapping[str, Rows],
    steps: Sequence[Step],
    collate: Callable[[Sequence[KeyedRow]], Batch | StepBatch],
    seed: int,
    shuffle: bool = True,
    same_order: bool = False,
    num_workers: int = 0,
) -> ResumableLoader:
    """Returns the loader of this rank's batches of an epoch; see ``EpochBatchSampler`` for the arguments."""
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


def sequential_loader(
    name: str, rows: Rows, batch_size: int, collate: Callable[[Sequence[KeyedRow]], Batch | StepBatch]
) -> ResumableLoader:
    """Returns a loader of rows in the order of the file, ``batch_size`` rows per rank, the last batch smaller.

    All ranks have the same number of batches. If the last rows aren't enough for all ranks, they join the batch
    before.
    """
    bounds = [*range(0, len(rows), batch_size * world_size()), len(rows)]
    if len(bounds) > 2 and bounds[-1] - bounds[-2] < world_size():
        del bounds[-2]
    steps = Steps.of([Step({name: part}) for part in pairwise(bounds)])
    return epoch_loader({name: rows}, steps, collate, seed=0, shuffle=False)


def _ignore_signals(worker: int) -> None:  # noqa: ARG001  # torch's signature
    """Makes a worker process of a loader ignore Ctrl-C, and SIGTERM unless it comes from the main process.

    Schedulers and terminals send signals to all processes of a run. The main process finishes its step first, and
    would fail if a worker exited during the step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # other systems don't report the sender of a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_exit_on_request, daemon=True).start()


def _exit_on_request() -> None:
    """Exits a loader's worker process when the main process sends SIGTERM, which it does when it exits."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
