"""One piece of work on several devices: a process for each, results in order, nothing read far ahead."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from contrastive_text.core.errors import InvalidValueError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""Items read for each device before results are taken: one that it works on, one that it goes on with."""


def map_on_devices(
    work: Callable[[Item], Result], items: Iterable[Item], devices: Sequence[str]
) -> Generator[Result, None, None]:
    """Returns the results of items in their order, each from whichever device was free.

    Every device has a process of its own, which gets the work once, with its tensors on that device. At most two
    items for each device are read before their results are taken, so items may be endless. Processes end with the
    iteration: at its end, by an error, when the iterator is closed, or with this process. They are started anew
    (``spawn``), so a script must iterate under ``if __name__ == "__main__":``.

    Args:
        work: From an item to its result; can be pickled, as items and results can.
        items: Read as they are needed.
        devices: Names such as ``cuda:0``. One may stand twice; processes on the CPU share this one's threads.

    Raises:
        ValueError: No device.
        RuntimeError: A process that died, for want of memory for example.
        Exception: What the work raised in its process; its cause has the traceback from there.

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
    cpus = sum(torch.device(device).type == "cpu" for device in devices)
    workers: list[_Worker] = []
    free: SimpleQueue[_Worker] = SimpleQueue()

    def ask(item: Item) -> Result:
        worker = free.get()
        try:
            result: Result = worker.ask(item)
            return result
        finally:
            free.put(worker)

    def load(worker: _Worker) -> None:
        worker.load(saved.getvalue())
        free.put(worker)

    # A thread waits for each process's answers, which goes on while the consumer is busy.
    with ThreadPoolExecutor(len(devices)) as threads:
        try:
            for device in devices:
                workers.append(_Worker(device, threads=max(torch.get_num_threads() // max(cpus, 1), 1)))
            for _ in threads.map(load, workers):
                pass  # what has gone wrong in one is raised here
            saved.close()
            results: deque[Future[Result]] = deque()
            for item in items:
                results.append(threads.submit(ask, item))
                if len(results) == _AHEAD * len(devices):
                    yield results.popleft().result()
            while results:
                yield results.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.stop()  # its thread, if it waits for an answer, sees that there will be none


def check_devices(devices: Sequence[str]) -> None:
    """Checks that a list of devices names at least one, and devices alone.

    Raises:
        ValueError: Such a list.

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


class _Worker:
    """A process on a device, which is asked one thing at a time."""

    def __init__(self, device: str, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.device = device
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, device, threads), daemon=True)
        with _deaf_to_interrupts():
            self._process.start()
        theirs.close()  # so that the connection ends with the process

    def load(self, work: bytes) -> None:
        """Sends the work that all items go through."""
        self._exchange(work)

    def ask(self, item: object) -> Any:  # Any: the work's result
        """Returns the result of an item."""
        return self._exchange(pickle.dumps(item))

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.terminate()
        self._process.join()

    def _exchange(self, message: bytes) -> Any:  # Any: the work's result
        try:
            self._connection.send_bytes(message)
            result, error, place = self._connection.recv()
        except (EOFError, OSError) as lost:
            self._process.join()
            raise RuntimeError(
                f"device {self.device}: expected a result, but its process ended with exit code "
                f"{self._process.exitcode}; it may have run out of memory, or a script has to call this under "
                "if __name__ == '__main__':"
            ) from lost
        if error is not None:
            raise error from RuntimeError(f"in the process of {self.device}:\n{place}")
        return result


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Has processes that are started within ignore Ctrl-C, which this one hears and ends them all."""
    if threading.current_thread() is not threading.main_thread():  # only there signals can be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, device: str, threads: int) -> None:
    """Answers until the asking process is gone: (result, error, traceback)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the asking process hears it too, and ends this one
    torch.set_num_threads(threads)
    work: Callable[[Any], Any] | None = None  # Any: items and results of the asking process
    with suppress(EOFError, OSError):
        while True:
            message = connection.recv_bytes()
            try:
                if work is None:
                    work = _loaded(message, device)
                    connection.send((None, None, ""))
                else:
                    connection.send((work(pickle.loads(message)), None, ""))
            except Exception as error:
                connection.send((None, _portable(error), traceback.format_exc()))


def _loaded(work: bytes, device: str) -> Callable[[Any], Any]:  # Any: as in _serve
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    loaded: Callable[[Any], Any] = torch.load(io.BytesIO(work), map_location=device, weights_only=False)
    return loaded


def _portable(error: Exception) -> Exception:
    """Returns an error that can be sent: itself, or one with its words."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
