"""Some gloo processes of one test module, which all do the same work."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def of_two_ranks(work: Callable[..., Any], folder: Path, *words: str) -> list[Any]:
    """Returns what each of two ranks gives: tensors in lists and dicts.

    Args:
        work: Called with the number of its rank and the words; a function of a module, for it is pickled.
        folder: Where the ranks leave it.
        words: Passed on.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # A fork server imports torch once for both and, unlike this process, has no threads to lose.
    multiprocessing.set_forkserver_preload(["contrastive_text.training.module"])
    mp.start_processes(_rank, args=(work, port, folder, words), nprocs=2, start_method="forkserver")
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def _rank(number: int, work: Callable[..., Any], port: int, folder: Path, words: tuple[str, ...]) -> None:
    where, patience = f"tcp://127.0.0.1:{port}", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=where, rank=number, world_size=2, timeout=patience)
    found = work(number, *words)
    dist.destroy_process_group()
    torch.save(found, folder / f"{number}.pt")
