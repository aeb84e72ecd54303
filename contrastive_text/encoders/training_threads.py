"""Record of the thread that trains an encoder, so that other threads don't use weights that are being changed."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from torch import nn

_threads: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Encoder -> identity of the thread that last ran it in training mode with gradients."""


def note_training(encoder: nn.Module) -> None:
    """Records that this thread trains an encoder, until the encoder is in evaluation mode."""
    _threads[encoder] = threading.get_ident()


def is_trained_elsewhere(encoder: nn.Module) -> bool:
    """Returns whether another thread, which is still running, trains an encoder."""
    thread = _threads.get(encoder)
    if not encoder.training or thread is None or thread == threading.get_ident():
        return False
    return any(other.ident == thread for other in threading.enumerate())
