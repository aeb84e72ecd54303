"""Pool of processes that applies a function to many items on several devices, one process for each device."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

import torch

from contrastive_text.core.errors import InvalidValueError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""Number of items that the pool reads ahead for each device: the current and the next item."""

_saved: tuple[bytes, str] = (b"", "")
"""Serialized function and device of this worker process; empty in the parent process."""
_work: Callable[[Any], Any] | None = None  # Any: items and results of the parent process
"""Function that this worker process of the pool applies.

It is loaded with the first item, so that its errors reach the parent.
"""


def map_on_devices(
    work: Callable[[Item], Result], items: Iterable[Item], devices: Sequence[str]
) -> Generator[Result, None, None]:
    """Applies a function to items on several devices and yields the results in the order of the items.

    Every device has its own process, which receives the function once, with its tensors on that device. The next
    free device computes the next item. At most two items for each device are read ahead, so items may be endless.
    Processes end when the iteration ends, fails or is closed, or when this process ends. They are started by
    ``spawn``, so a script must iterate under ``if __name__ == "__main__":``.

    Args:
        work: Function from an item to its result. The function, items and results must be picklable.
        items: Items, which are read on demand.
        devices: Names of devices, such as ``cuda:0``; a name may be repeated. Processes on the CPU share the
            threads of this process.

    Raises:
        ValueError: ``devices`` is empty, or a name is not a device.
        RuntimeError: A process died, for example because memory ran out.
        Exception: The function failed in its process. The cause of the error has the traceback of that process.

    Example:
        >>> from math import sqrt
        >>> list(map_on_devices(sqrt, [4.0, 9.0, 25.0], devices=["cpu"]))
        [2.0, 3.0, 5.0]
    """
    check_devices(devices)
    return _map(work, items, devices)


def _map(
    work: Callable[[Item], Result], items: Iterable[Item], devices: Sequence[str]
) -> Generator[Result, None, None]:
    saved = io.BytesIO()
    torch.save(work, saved)  # unlike pickle, for tensors of any device
    context = multiprocessing.get_context("spawn")
    names = context.SimpleQueue()
    for device in devices:
        names.put(device)
    cpus = sum(torch.device(device).type == "cpu" for device in devices)
    threads = max(torch.get_num_threads() // max(cpus, 1), 1)
    options = (names, saved.getvalue(), threads)
    pool = ProcessPoolExecutor(len(devices), mp_context=context, initializer=_start, initargs=options)
    processes = pool._processes
    results: deque[Future[Result]] = deque()
    try:
        for item in items:
            with _ignoring_interrupts():  # submit() may start a process
                results.append(pool.submit(_run, item))
            if len(results) == _AHEAD * len(devices):
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    except BrokenProcessPool as error:
        pool.shutdown()  # the pool's thread collects the exit codes, which only one thread can
        exit_codes = {process.exitcode for process in processes.values()}
        codes = exit_codes - {-signal.SIGTERM}  # the pool terminates the remaining processes with SIGTERM
        raise RuntimeError(
            f"device {', '.join(devices)}: expected a result, but its process ended with exit code "
            f"{', '.join(map(str, codes))}; it may have run out of memory, or the script must call this "
            f"function under if __name__ == '__main__':"
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def check_devices(devices: Sequence[str]) -> None:
    """Checks that a list has at least one name, and that torch accepts each name as a device.

    Raises:
        ValueError: The list is empty, or a name is not a device.

    Example:
        >>> check_devices(["cpu", "cuda:1"])
    """
    if not devices:
        raise InvalidValueError(
            "device: expected one name or more, got an empty list; None is the model's own device"
        )
    for name in devices:
        try:
            torch.device(name)
        except RuntimeError as error:
            raise InvalidValueError(f"device: expected names such as cpu or cuda:0, got {name!r}") from error


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Makes processes that start in this context ignore Ctrl-C. The parent handles it and ends them."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start(names: Any, saved: bytes, threads: int) -> None:  # Any: a queue of device names
    """Initializes a worker process, and makes it end when its parent process ends."""
    global _saved
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    _saved = saved, names.get()


def _run(item: Any) -> Any:  # Any: items and results of the parent process
    global _work
    try:
        if _work is None:
            saved, device = _saved
            if torch.device(device).type == "cuda":
                torch.cuda.set_device(device)
            _work = torch.load(io.BytesIO(saved), map_location=device, weights_only=False)
        return _work(item)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an error that can't be pickled would break the pool
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
