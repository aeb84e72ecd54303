"""One function on several devices: a process for each, results in order, nothing read far ahead."""

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
"""Items read for each device before results are taken: the current item and the next."""

_saved: tuple[bytes, str] = (b"", "")
"""In a worker: the pickled function, and the worker's device."""
_work: Callable[[Any], Any] | None = None  # Any: items and results of the parent process
"""In a worker: the function, loaded with the first item, so that an error is raised like any other."""


def map_on_devices(
    work: Callable[[Item], Result], items: Iterable[Item], devices: Sequence[str]
) -> Generator[Result, None, None]:
    """Returns the results of items in their order, each computed by the next free device.

    Every device has its own process, which gets the function once, with its tensors on that device. At most two
    items for each device are read before their results are taken, so items may be endless. Processes end with the
    iteration: at its end, by an error, when the iterator is closed, or with this process. They are started by
    ``spawn``, so a script must iterate under ``if __name__ == "__main__":``.

    Args:
        work: From an item to its result; it can be pickled, as items and results can.
        items: Read on demand.
        devices: Names such as ``cuda:0``, also repeated; processes on the CPU share this one's threads.

    Raises:
        ValueError: No device.
        RuntimeError: A process that died, for lack of memory for example.
        Exception: An error of the function in its process; its cause has the traceback from there.

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
            with _ignoring_interrupts():  # the pool starts a process with an item
                results.append(pool.submit(_run, item))
            if len(results) == _AHEAD * len(devices):
                yield results.popleft().result()
        while results:
            yield results.popleft().result()
    except BrokenProcessPool as lost:
        pool.shutdown()  # its thread collects the exit codes, which only one thread can
        ended = {process.exitcode for process in processes.values()}
        codes = ended - {-signal.SIGTERM}  # by which the pool ends the others
        raise RuntimeError(
            f"device {', '.join(devices)}: expected a result, but its process ended with exit code "
            f"{', '.join(map(str, codes))}; it may have run out of memory, or a script has to call this under "
            "if __name__ == '__main__':"
        ) from lost
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()


def check_devices(devices: Sequence[str]) -> None:
    """Checks that a list of devices has at least one name, and names of devices alone.

    Raises:
        ValueError: An empty list, or another name.

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
    """Makes processes that are started within ignore Ctrl-C. This process gets it too, and ends them all."""
    if threading.current_thread() is not threading.main_thread():  # only there signals can be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start(names: Any, saved: bytes, threads: int) -> None:  # Any: a queue of texts
    """Prepares a worker, and ends it with its parent process."""
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
        except Exception:  # an error that can't be sent would break the pool
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise
