"""Any loss part by part: the same numbers in memory of a few rows of the matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.similarity import Similarity, comparable, full_precision
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.streaming import STREAMED_ABOVE

_ENTRIES = 2**23
"""Entries of a part, rows x columns: 32 MiB of float32 for each matrix that a formula makes of it. Blocks of that
size glibc maps each by itself and gives back; smaller ones leave holes in its heap, part after part. Peak of
``ListNet`` at 4,096, 8,192 and 16,384 rows on a CPU: 405, 471 and 422 MiB, with parts of a quarter 404, 907 and
2,338 MiB. For ``DCL`` it takes a third more time: pages are cleared anew."""


Part = TypeVar("Part")
Found = TypeVar("Found")


def in_parts(compute: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
    """Returns what each part gives; of several nothing else is kept for the gradient, and each is computed anew.

    Example:
        >>> in_parts(torch.sum, [torch.ones(2), torch.ones(3)])
        [tensor(2.), tensor(3.)]
    """
    if len(parts) < 2 or not torch.is_grad_enabled():
        return [compute(part) for part in parts]
    return [checkpoint(compute, part, use_reentrant=False, preserve_rng_state=False) for part in parts]


def block_terms(
    formula: Callable[[Comparison], Tensor], block: Comparison, similarity: Similarity, streamed: bool | None
) -> Tensor:
    """Returns the terms of a formula of a block, outside autocast and some rows at a time if streamed, (R,).

    Args:
        formula: Gets vectors whose dot products are the similarities; its term of a row needs no other row.
        block: Rows and columns.
        similarity: What is compared.
        streamed: As for ``terms_by_rows``.
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: comparable(vectors, similarity))
        return terms_by_rows(lambda those: formula(block.part(those)), *block.shape, streamed)


def terms_by_rows(
    formula: Callable[[slice], Tensor], rows: int, columns: int, streamed: bool | None = None
) -> Tensor:
    """Returns one term per row, of some rows at a time where they are streamed.

    Nothing of a part but its terms is kept for the gradient: the backward pass computes it once more. That serves
    every formula whose term of a row needs no other row, at the cost of the dense form and one pass more;
    ``streamed_terms`` is the faster form of two formulas.

    Args:
        formula: From a range of rows to their terms against all columns.
        rows: Their number R.
        columns: What each is held against, C.
        streamed: Whether to take parts; None above ``STREAMED_ABOVE`` entries.

    Returns:
        (R,).

    Example:
        >>> logits = torch.eye(3)
        >>> terms_by_rows(lambda those: logits[those].logsumexp(dim=1), rows=3, columns=3)
        tensor([1.5514, 1.5514, 1.5514])
    """
    if not rows or not (rows * columns > STREAMED_ABOVE if streamed is None else streamed):
        return formula(slice(0, rows))
    size = max(_ENTRIES // max(columns, 1), 1)
    return torch.cat(in_parts(formula, [slice(i, min(i + size, rows)) for i in range(0, rows, size)]))
