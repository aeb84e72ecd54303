"""All pairs of near-duplicates among vectors, exactly, and the groups that they make."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least, share
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import full_precision
from contrastive_text.inference.search import BLOCK, check_vectors, unit_blocks

MOST_PAIRS = 10_000_000
"""Near-duplicates above which the threshold is refused: some 250 MB of ids and cosines."""


@torch.no_grad()
def near_duplicates(
    vectors: Tensor,
    threshold: float,
    block: int = BLOCK,
    most: int = MOST_PAIRS,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns all pairs of vectors whose cosine reaches a threshold, exactly, a tile of cosines at a time.

    Args:
        vectors: (N, D); may be a memory-mapped file larger than memory.
        threshold: Lowest cosine of a pair, above 0 and at most 1; equal vectors can round to 1 - 1e-7.
        block: Vectors at once.
        most: Pairs above which the threshold is taken for too low.
        device: Where to compute; None for where the vectors are.

    Returns:
        Ids (M, 2), the lower one first, sorted by the first and then the second; their cosines (M,).

    Raises:
        ValueError: Not a matrix of finite numbers, a threshold out of range, or more pairs than ``most``.

    Example:
        >>> near_duplicates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), threshold=0.9)
        (tensor([[0, 2]]), tensor([1.]))
    """
    check_vectors("vectors", vectors)
    at_least("block", block, 1)
    check_threshold(threshold)
    place = device or vectors.device
    ids = [torch.empty(0, 2, dtype=torch.long, device=place)]
    scores = [torch.empty(0, dtype=torch.float32, device=place)]
    count = 0
    for start, rows in unit_blocks("vectors", vectors, block, place):
        for offset, columns in unit_blocks("vectors", vectors[start:], block, place):
            with full_precision(rows.device):
                tile = rows @ columns.T
            near = tile >= threshold
            pairs = (near.triu(diagonal=1) if offset == 0 else near).nonzero()
            count += len(pairs)
            if count > most:
                raise InvalidValueError(
                    f"threshold: expected at most {most:,} pairs, got more at {threshold}; take a higher one"
                )
            ids.append(pairs + torch.tensor([start, start + offset], device=pairs.device))
            scores.append(tile[pairs[:, 0], pairs[:, 1]].to(torch.float32))
    # Tiles of one row of tiles come one after the other, so that pairs of a vector stand apart.
    found, cosines = torch.cat(ids), torch.cat(scores)
    order = (found[:, 0] * max(len(vectors), 1) + found[:, 1]).argsort()
    return found[order], cosines[order]


def check_threshold(threshold: float) -> None:
    """Checks that a cosine can be a threshold, before anything is encoded."""
    share("threshold", threshold, "try 0.95", with_zero=False)


def connected_groups(pairs: Tensor, count: int) -> Tensor:
    """Returns for each of some items the first item that it is connected with, itself if with none before it.

    Groups are connected components: two items of one group need not be near each other, only linked by a chain.

    Args:
        pairs: Ids of connected items, (M, 2).
        count: Number of items, N.

    Returns:
        (N,), int64, on the CPU.

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

    for one, other in pairs.tolist():
        low, high = sorted((root(one), root(other)))
        first[high] = low
    return torch.tensor([root(item) for item in range(count)], dtype=torch.long)
