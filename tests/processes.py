"""Several processes of a test: forked from one that has imported whatever tests import, and met over gloo."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from contrastive_text.core.distributed import sum_over_ranks, world_size


def serve() -> None:
    """Forks the server that forks the processes, while there is one thread.

    This process has imported all that tests need; Python would start another, which takes seconds to import it.
    """
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]  # Python has no public way to start it so
    address = connection.arbitrary_address("AF_UNIX")
    with socket.socket(socket.AF_UNIX) as listener, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads; pytest-xdist's only reads from a pipe
        listener.bind(address)
        listener.listen()
        ended, living = os.pipe()  # read to its end when this process is no more
        sys.stdout.flush()
        sys.stderr.flush()
        if not (number := os.fork()):
            os.close(living)
            # OpenMP's threads are lost in a fork: a process with more than one would wait for them forever.
            torch.set_num_threads(1)
            try:
                forkserver.main(listener.detach(), ended, [])
            finally:
                os._exit(0)
    os.close(ended)
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, living, number


def start_all(work: Callable[..., object], count: int, *words: object) -> None:
    """Calls a function of a module in some processes, with the number of each and the words; waits for them."""
    mp.start_processes(work, args=words, nprocs=count, start_method="forkserver")


def free_ports(count: int) -> list[int]:
    """Returns ports at which nothing listens."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def meeting(number: int, world: int, port: int) -> Iterator[None]:
    """Makes this process a rank among others."""
    where, patience = f"tcp://127.0.0.1:{port}", timedelta(minutes=30)
    dist.init_process_group("gloo", init_method=where, rank=number, world_size=world, timeout=patience)
    try:
        yield
    finally:
        dist.destroy_process_group()


def means(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the means over the ranks, of one sum for all: each costs the processes a wait for one another."""
    total = sum_over_ranks(torch.cat([value.flatten() for value in values.values()])) / world_size()
    parts = total.split([value.numel() for value in values.values()])
    return {name: part.view_as(value) for part, (name, value) in zip(parts, values.items(), strict=True)}


def of_two_ranks(work: Callable[..., Any], folder: Path, *words: str) -> list[Any]:
    """Returns what each of two ranks gives: tensors in lists and dicts.

    Args:
        work: Called with the number of its rank and the words; a function of a module, for it is pickled.
        folder: Where the ranks leave it.
        words: Passed on.
    """
    start_all(_rank, 2, work, *free_ports(1), folder, words)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def _rank(number: int, work: Callable[..., Any], port: int, folder: Path, words: tuple[str, ...]) -> None:
    with meeting(number, world=2, port=port):
        found = work(number, *words)
    torch.save(found, folder / f"{number}.pt")
