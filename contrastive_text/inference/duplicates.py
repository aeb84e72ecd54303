"""Exact search for all pairs of near-duplicate vectors, and groups of connected pairs."""

from __future__ import annotations

import math
from array import array

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least, fraction
from contrastive_text.core.similarity import full_precision
from contrastive_text.inference.search import BLOCK, check_vectors, unit_blocks

MOST_PAIRS = 10_000_000
"""Largest number of near-duplicate pairs that a search returns. Their ids and cosines take about 250 MB."""


@torch.no_grad()
def near_duplicates(
    vectors: Tensor,
    threshold: float,
    block: int = BLOCK,
    most: int = MOST_PAIRS,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns all pairs of vectors with a cosine of at least ``threshold``, by exact search.

    Memory holds one block x block tile of cosines at a time.

    Args:
        vectors: Vectors, (N, D). They may be a memory-mapped file larger than memory.
        threshold: Lowest cosine of a pair, above 0 and at most 1. The cosine of equal vectors may be 1 - 1e-7.
        block: Number of rows and of columns of a tile.
        most: Largest number of pairs.
        device: Device of the search; None for the vectors' device.

    Returns:
        Ids of the pairs, (M, 2), the lower id first, sorted by the first and then the second id; and the cosines,
        (M,).

    Raises:
        ValueError: ``vectors`` is not a matrix of finite numbers, ``threshold`` is out of range, or there are
            more than ``most`` pairs.

    Example:
        >>> near_duplicates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), threshold=0.9)
        (tensor([[0, 2]]), tensor([1.]))
    """
    check_vectors("vectors", vectors)
    at_least("block", block, 1)
    check_threshold(threshold)
    place = device or vectors.device
    # Two arrays that grow, and one tile's memory: glibc may not reuse freed tiles between small tensors
    # that stay, and 200,000 vectors then took 18 GB.
    ids, scores = array("q"), array("f")
    tile_size = min(block, len(vectors)) ** 2
    tile_memory = torch.empty(tile_size, dtype=torch.promote_types(vectors.dtype, torch.float32), device=place)
    near_memory = torch.empty(tile_size, dtype=torch.bool, device=place)
    for start, rows in unit_blocks("vectors", vectors, block, place):
        for offset, columns in unit_blocks("vectors", vectors[start:], block, place):
            shape = len(rows), len(columns)
            with full_precision(rows.device):
                tile = torch.mm(rows, columns.T, out=tile_memory[: math.prod(shape)].view(shape))
            near = torch.ge(tile, threshold, out=near_memory[: math.prod(shape)].view(shape))
            pairs = (near.triu(diagonal=1) if offset == 0 else near).nonzero()
            if len(scores) + len(pairs) > most:
                raise InvalidValueError(
                    f"threshold: expected at most {most:,} pairs, got more at {threshold}; raise the threshold"
                )
            scores.frombytes(_bytes(tile[pairs[:, 0], pairs[:, 1]].to(torch.float32)))
            ids.frombytes(_bytes(pairs + torch.tensor([start, start + offset], device=place)))
    # Sorted again: pairs of one vector come from several tiles.
    pairs = torch.from_numpy(np.asarray(ids)).view(-1, 2).to(place)
    cosines = torch.from_numpy(np.asarray(scores)).to(place)
    order = (pairs[:, 0] * max(len(vectors), 1) + pairs[:, 1]).argsort()
    return pairs[order], cosines[order]


def _bytes(values: Tensor) -> bytes:
    return values.numpy(force=True).tobytes()


def check_threshold(threshold: float) -> None:
    """Raises ValueError unless a cosine threshold is above 0 and at most 1."""
    fraction("threshold", threshold, "try 0.95", with_zero=False)


def connected_groups(pairs: Tensor, count: int) -> Tensor:
    """Returns the group of each item, numbered by the lowest id among the items that it is connected with.

    Groups are connected components: a chain of pairs links all items of a group, but two of them need not be
    near-duplicates.

    Args:
        pairs: Ids of connected items, (M, 2).
        count: Number of items, N.

    Returns:
        Lowest id of each item's group, (N,), int64, on the CPU.

    Example:
        >>> connected_groups(torch.tensor([[0, 2], [2, 3]]), count=5)
        tensor([0, 1, 0, 0, 4])
    """
    first = list(range(count))

    def root(item: int) -> int:
        while first[item] != item:
            first[item] = first[first[item]]
            item = first[item]
        return item

    for left, right in pairs.tolist():
        low, high = sorted((root(left), root(right)))
        first[high] = low
    return torch.tensor([root(item) for item in range(count)], dtype=torch.long)
