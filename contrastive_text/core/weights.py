"""What weights are, in a few digits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def add_weights(digest: hashlib.blake2b, weights: Mapping[str, Tensor]) -> None:
    """Adds names, types, shapes and values of weights to a digest, in the order of their names.

    Example:
        >>> digest = hashlib.blake2b(digest_size=8)
        >>> add_weights(digest, {"bias": torch.zeros(2)})
        >>> digest.hexdigest() == hashlib.blake2b(digest_size=8).hexdigest()
        False
    """
    for name, weight in sorted(weights.items()):
        values = weight.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
