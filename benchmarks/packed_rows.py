"""Packed rows by hand, as the bare loop of train_step.py takes them: what a step costs without a library."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Packed(NamedTuple):
    """A batch as the bare loop takes it, rows by falling length.

    Args:
        ids: Tokens of all rows, (1, T).
        positions: The place of each in its row, (1, T).
        runs: Number of rows and their length, for rows of equal length.
        places: Where each row of the batch stands among the sorted ones, (S,).
    """

    ids: Tensor
    positions: Tensor
    runs: list[tuple[int, int]]
    places: Tensor


def pack(rows: Sequence[Sequence[int]], device: str = "cpu") -> Packed:
    """Packs rows of token ids.

    Example:
        >>> packed = pack([[7], [8, 9], [5, 6]])
        >>> packed.ids.tolist(), packed.positions.tolist(), packed.runs, packed.places.tolist()
        ([[8, 9, 5, 6, 7]], [[0, 1, 0, 1, 0]], [(2, 2), (1, 1)], [2, 0, 1])
    """
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    ids = [token for i in order for token in rows[i]]
    positions = [place for i in order for place in range(len(rows[i]))]
    runs = [(len(list(same)), length) for length, same in itertools.groupby(len(rows[i]) for i in order)]
    places = torch.tensor(order).argsort()
    return Packed(
        torch.tensor([ids], device=device), torch.tensor([positions], device=device), runs, places.to(device)
    )


def attend_in_runs(
    module: nn.Module,  # noqa: ARG001  # Transformers' contract
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  # Transformers' contract
    dropout: float = 0.0,
    scaling: float | None = None,
    runs: Sequence[tuple[int, int]] = (),
    **_: Any,  # Any: Transformers' contract
) -> tuple[Tensor, None]:
    """Attention among the tokens of each row of a packed batch, (1, heads, T, size) -> (1, T, heads, size)."""
    sizes = [rows * length for rows, length in runs]
    given = (states[0].split(sizes, dim=1) for states in (query, key, value))
    parts = []
    for run, *states in zip(runs, *given, strict=True):
        q, k, v = (each.unflatten(1, run).transpose(0, 1) for each in states)
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        parts.append(attended.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).unsqueeze(0), None
