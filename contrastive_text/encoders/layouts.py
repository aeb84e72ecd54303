"""Layouts: how ragged rows are laid out for the network, and how many go through it at a time.

=========  ===========================================================================================
padded     one block, every row as long as the longest
bucketed   blocks of a few rows of similar length, each padded to its own longest
packed     one row of all tokens: no layer sees padding, attention runs over rows of equal length
=========  ===========================================================================================

None of them changes which texts are in a batch, nor what is computed for a text.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from contrastive_text.core.distributed import most_over_ranks
from contrastive_text.core.host import sent

FixedLayout: TypeAlias = Literal["packed", "bucketed", "padded"]
Layout: TypeAlias = Literal["auto", "packed", "bucketed", "padded"]

_BUCKET = 16
"""Rows of a bucket: on a CPU, 2 to 3 times as fast as one padded block of 128 texts."""


def token_mask(lengths: Tensor) -> Tensor:
    """Returns True on tokens and False on padding, right-padded, (S,) -> (S, L), where the lengths are.

    Example:
        >>> token_mask(torch.tensor([1, 3])).int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(1)


def pad(values: Tensor, mask: Tensor, fill: int = 0) -> Tensor:
    """Returns ragged values row by row with padding after each row, (T, ...) and (S, L) -> (S, L, ...).

    Values on a GPU take a mask that is on the host, as ``token_mask`` gives it: the host would wait for another.

    Example:
        >>> pad(torch.tensor([7, 8, 9]), token_mask(torch.tensor([1, 2])))
        tensor([[7, 0],
                [8, 9]])
    """
    places = sent(mask.flatten().nonzero().flatten(), values.device)
    empty = values.new_full((mask.numel(), *values.shape[1:]), fill)
    return empty.index_copy(0, places, values).view(*mask.shape, *values.shape[1:])


def natural_positions(lengths: Tensor) -> Tensor:
    """Returns every token's place in its row, (S,) -> (T,).

    Example:
        >>> natural_positions(torch.tensor([1, 3])).tolist()
        [0, 0, 1, 2]
    """
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total, device=lengths.device) - torch.repeat_interleave(ends - lengths, lengths)


def split_rows(lengths: Tensor, layout: FixedLayout, chunk_tokens: int | None) -> list[Tensor]:
    """Returns the rows that go through the network together, group by group, long rows first.

    Args:
        lengths: Tokens of each row, (S,).
        layout: With ``bucketed`` a part is a bucket; the others have one part where nothing bounds it.
        chunk_tokens: Most tokens of a part, padding included where the layout pads; a longer row is a part of its
            own. None for no bound.

    Example:
        >>> lengths = torch.tensor([2, 5, 3, 5])
        >>> [rows.tolist() for rows in split_rows(lengths, "packed", chunk_tokens=8)]
        [[1], [3, 2], [0]]
    """
    order = lengths.argsort(descending=True, stable=True)
    most_rows = _BUCKET if layout == "bucketed" else len(lengths)
    if chunk_tokens is None:
        return list(torch.split(order, max(most_rows, 1)))
    counts, rows, tokens, longest = [0], 0, 0, 0
    for length in lengths[order].tolist():
        grown = tokens + length if layout == "packed" else (rows + 1) * max(longest, length)
        if rows and (grown > chunk_tokens or rows == most_rows):
            counts.append(0)
            rows, longest, grown = 0, 0, length
        rows, tokens, longest = rows + 1, grown, max(longest, length)
        counts[-1] = rows
    return list(torch.split(order, counts))


def in_lockstep(parts: list[Tensor], device: torch.device) -> list[Tensor]:
    """Returns the same rows in as many parts as every other rank has.

    That is as many as the rank with the most of them needs: others halve their largest parts. Where a rank has
    fewer rows than that, the others have as many parts as it has rows, and join their smallest ones.

    Ranks have to hear of each other before they encode, so this is read back from a GPU: where ranks hold parts
    of the weights, and a bound on tokens, or buckets, leave their number open.

    Args:
        parts: Rows that go through the network together, long ones first.
        device: On which ranks talk to each other.

    Example:
        >>> [part.tolist() for part in in_lockstep([torch.tensor([2, 0, 1])], torch.device("cpu"))]  # one process
        [[2, 0, 1]]
    """
    rows = sum(map(len, parts))
    needed, fewest = most_over_ranks([len(parts), -rows], device)
    count, split = min(needed, -fewest), list(parts)
    while len(split) < count:
        largest = max(range(len(split)), key=lambda number: len(split[number]))
        split[largest : largest + 1] = split[largest].tensor_split(2)
    while len(split) > count:
        split[-2:] = [torch.cat(split[-2:])]
    return split
