"""What weights are, in a few digits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

_SAMPLE = 4096
"""Values of a weight that its identity looks at."""


def sampled_identity(weights: Mapping[str, Tensor]) -> str:
    """Returns 32 hex digits of names, shapes and some values of weights, at no cost, in whichever type they are.

    It tells one model from another; it doesn't find a changed byte.

    Example:
        >>> weight = torch.arange(6.0).view(2, 3)
        >>> sampled_identity({"a": weight}) == sampled_identity({"a": weight.bfloat16()})
        True
    """
    sampled = {}
    for name, weight in weights.items():
        values = weight.detach().reshape(-1)
        sampled[f"{name} {tuple(weight.shape)}"] = values[:: -(-len(values) // _SAMPLE) or 1].bfloat16()
    digest = hashlib.blake2b(digest_size=16)
    add_weights(digest, sampled)
    return digest.hexdigest()


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
