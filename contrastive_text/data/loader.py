"""The loader that a resumed run takes up where it stopped, and what of a trainer would change its batches."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BatchSizeFinder
from torch.utils.data import DataLoader

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.distributed import rank, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.collator import KeyedRow
from contrastive_text.data.mixture import Step, Steps
from contrastive_text.data.sampler import EpochBatchSampler, KeyedRows, Rows, RowsInOrder


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


def prediction_loader(
    name: str, rows: Rows, batch_size: int, collate: Callable[[Sequence[KeyedRow]], Batch | StepBatch]
) -> DataLoader[KeyedRow]:
    """Returns the same with torch's own samplers over numbers: Lightning makes loaders of a prediction anew."""
    return DataLoader(RowsInOrder(name, rows), batch_size=batch_size, collate_fn=collate)


def check_own_batches(trainer: pl.Trainer, stage: str) -> None:
    """Checks that a trainer leaves batches as they are.

    Args:
        trainer: Whose loaders are to be made.
        stage: ``fit``, ``validate``, ``test`` or ``predict``.

    Raises:
        ValueError: Lightning's own sampler over several processes, or its search for a batch size.
    """
    # Nothing public tells it.
    injects = trainer._accelerator_connector.use_distributed_sampler
    if injects and trainer.world_size > 1 and stage != "predict":
        raise InvalidValueError(
            "trainer.use_distributed_sampler: expected False with several processes, got True; give "
            "Trainer(use_distributed_sampler=False), for the data share rows out: Lightning's sampler "
            "repeats rows to even processes out, and a repeated row is a false negative of itself"
        )
    if any(isinstance(callback, BatchSizeFinder) for callback in vars(trainer)["callbacks"]):
        raise InvalidValueError(
            "trainer.callbacks: expected no BatchSizeFinder, got one; texts are compared with those of their "
            "batch, so that another size gives another model. Choose data.batch_size for the result, and bound "
            "memory with --chunk auto (the callback ChunkSize), which changes nothing but time"
        )


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
