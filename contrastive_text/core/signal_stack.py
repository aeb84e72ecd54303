"""The memory that handlers of signals run in, held against libraries that leave another."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class SignalStack(ctypes.Structure):
    """What Linux calls ``stack_t``: where this thread's handlers run, of how many bytes; see sigaltstack(2)."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def signal_stack() -> SignalStack:
    """Returns this thread's; Linux alone."""
    stack = SignalStack()
    _call(None, ctypes.byref(stack))
    return stack


@contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Gives this thread its signal stack back, whatever a library has put there; on other systems does nothing.

    OpenVINO 2026.4 gives the thread that compiles a network a stack of the network's own, and when the network
    goes the stack from before it. Of two networks of which the first goes first, the second leaves the thread
    with memory that is no more, where the next signal, a Ctrl-C, ends the process by a segmentation fault.

    Example:
        >>> with kept_signal_stack():
        ...     pass  # compile a network
    """
    if sys.platform != "linux":
        yield
        return
    before = signal_stack()
    try:
        yield
    finally:
        _call(ctypes.byref(before), None)


def _call(new: object, old: object) -> None:
    refused = ctypes.CDLL(None).sigaltstack(new, old)
    assert not refused, "called by a handler that runs in it"
