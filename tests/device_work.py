"""Work for the processes of ``test_device_pool``, which import it from here."""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor, nn


class Unsendable(Exception):
    """An error that can be pickled and not be read again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} and {other}")


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def threads(_: int) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def die(status: int) -> int:
    if status:
        os._exit(status)
    return status


def fail(number: int) -> int:
    if number == 3:
        raise Unsendable("three", "four")
    if number > 3:
        raise KeyError("expected 3 at most")
    return number


class Place(nn.Module):
    """Tells where its weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, rows: Tensor) -> tuple[str, Tensor]:
        return self.layer.weight.device.type, self.layer(rows.to(self.layer.weight.device)).detach()
