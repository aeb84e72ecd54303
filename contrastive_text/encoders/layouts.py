"""Layouts: how ragged rows are laid out for the network. Padded is the one that every architecture takes."""

from __future__ import annotations

import torch
from torch import Tensor


def token_mask(lengths: Tensor) -> Tensor:
    """Gives True on tokens and False on padding, right-padded, (S,) -> (S, L).

    Example:
        >>> token_mask(torch.tensor([1, 3])).int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(1)


def pad(values: Tensor, mask: Tensor, fill: int) -> Tensor:
    """Gives ragged values row by row with padding behind each row, (T,) -> (S, L).

    Example:
        >>> pad(torch.tensor([7, 8, 9]), token_mask(torch.tensor([1, 2])), fill=0)
        tensor([[7, 0],
                [8, 9]])
    """
    return torch.full(mask.shape, fill, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
