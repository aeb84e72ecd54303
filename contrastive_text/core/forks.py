"""Check that a process may compute: a process forked from one that has used a model lacks its threads."""

from __future__ import annotations

import os

import torch

from contrastive_text.core.errors import RunError

_has_threads = False
_forked_from: int | None = None
"""Number of the process that had used a model by several threads when this one was forked from it."""


def check_not_forked(where: str, has_pool: bool = False) -> None:
    """Checks that this process has the threads it computes with, and records that it computes by several.

    A fork copies the state of thread pools, but not their threads. Torch, onnxruntime and OpenVINO would wait
    forever for threads that don't exist. Where torch computes by one thread, in the process that was forked or
    in its child, it waits for none.

    Args:
        where: What errors begin with.
        has_pool: Whether the model is run by a runtime, which has threads of its own.

    Raises:
        RuntimeError: This process would compute by several threads, and was forked from one that had.
    """
    global _has_threads
    needs_threads = has_pool or torch.get_num_threads() > 1
    if needs_threads and _forked_from is not None:
        raise RunError(
            f"{where}: expected a process that is started by spawn, got process {os.getpid()}, forked from "
            f"process {_forked_from} after it had used a model; use multiprocessing.get_context('spawn'), "
            "load the first model after the fork, or, with the backend torch, call torch.set_num_threads(1) in "
            "the new process"
        )
    _has_threads = _has_threads or needs_threads


def _record_fork() -> None:
    global _forked_from
    if _has_threads:
        _forked_from = os.getppid()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_record_fork)
