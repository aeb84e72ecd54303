"""The way from the host to a device, on which neither waits for the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor on a device, to which the host copies it without waiting; where it is there, itself.

    A GPU works through what it was given while the host goes on; a copy from ordinary memory would make the host
    wait for all of that first, so the way leads through page-locked memory, of which torch keeps a stock.

    Example:
        >>> values = torch.arange(2)
        >>> sent(values, torch.device("cpu")) is values
        True
    """
    if values.device.type != "cpu" or device.type == "mps":  # whose queue doesn't hold on to the memory
        return values.to(device)
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def unpadded(rows: Tensor, mask: Tensor) -> Tensor:
    """Returns what stands where a mask is True, row by row, (S, L, ...) and (S, L) -> (tokens, ...).

    Args:
        rows: On any device.
        mask: On the host for vectors on a GPU, which the host otherwise has to wait for.

    Example:
        >>> unpadded(torch.tensor([[7, 0], [8, 9]]), torch.tensor([[True, False], [True, True]]))
        tensor([7, 8, 9])
    """
    if mask.device == rows.device:
        return rows[mask]
    return rows.flatten(0, 1)[sent(mask.flatten().nonzero().flatten(), rows.device)]


def of_slots(rows: Tensor, slots: Sequence[int]) -> Tensor:
    """Returns some slots of a batch, (slots, N, ...) -> (their number, N, ...), without an index to be copied.

    Example:
        >>> of_slots(torch.tensor([[1], [2], [3]]), [2, 0]).tolist()
        [[3], [1]]
    """
    first = slots[0] if slots else 0
    if list(slots) == list(range(first, first + len(slots))):
        return rows[first : first + len(slots)]
    return torch.stack([rows[slot] for slot in slots])
