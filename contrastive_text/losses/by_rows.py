"""The terms of any loss some rows at a time: the same numbers in memory of a few rows of the matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.streaming import is_streamed

_ENTRIES = 2**21
"""Entries of a part, rows x columns: 8 MiB of float32 for each matrix that a formula makes of it."""


def terms_by_rows(formula: Callable[[Comparison], Tensor], block: Comparison, streamed: bool | None) -> Tensor:
    """Returns the terms of a block, of some rows at a time where it is streamed.

    Nothing of a part but its terms is kept for the gradient: the backward pass computes it once more. That serves
    every formula whose term of a row needs no other row, at the cost of the dense form and one pass more;
    ``streamed_terms`` is the faster form of two formulas.

    Args:
        formula: Of some rows against all columns; (R,).
        block: What is compared.
        streamed: Whether to take parts; None where the matrix is large.

    Example:
        >>> from contrastive_text.losses.comparisons import Triples
        >>> from contrastive_text.losses import NTXent
        >>> texts = Triples.distinct(torch.eye(2), torch.eye(2))
        >>> [block] = NTXent().comparisons(texts, texts)
        >>> formula = lambda part: part.hide(part.rows @ part.columns.T).logsumexp(dim=1)
        >>> terms_by_rows(formula, block, streamed=True)
        tensor([1.5514, 1.5514, 1.5514, 1.5514])
    """
    if not is_streamed(streamed, block.rows, block.columns) or not len(block.rows):
        return formula(block)
    columns = len(block.columns) + (0 if block.reverse is None else len(block.reverse.columns))
    size = max(_ENTRIES // max(columns, 1), 1)
    spans = (slice(start, start + size) for start in range(0, len(block.rows), size))
    parts: list[Tensor] = [
        checkpoint(formula, block.part(those), use_reentrant=False, preserve_rng_state=False) for those in spans
    ]
    return torch.cat(parts)
