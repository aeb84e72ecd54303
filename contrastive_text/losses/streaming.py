"""Streamed losses: exact loss terms without the whole similarity matrix in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.similarity import Similarity, full_precision, prepare_vectors
from contrastive_text.losses.comparison import Comparison

STREAMED_ABOVE = 2**22
"""Largest similarity matrix, in entries (rows x columns), that is computed whole if ``streamed`` is None.

It takes 16 MiB in float32. Up to this size the whole matrix is at least as fast as the streamed loss."""

_ENTRIES = 2**23
"""Number of entries (rows x columns) of a part of the similarity matrix: 32 MiB in float32.

glibc maps allocations of this size one by one and returns them to the system. Smaller allocations fragment its
heap. Peak memory of ``ListNet`` at 4,096, 8,192 and 16,384 rows on a CPU: 405, 471 and 422 MiB; with parts of a
quarter of the size 404, 907 and 2,338 MiB. ``DCL`` takes a third more time, because the system clears the pages
again."""


Part = TypeVar("Part")
Result = TypeVar("Result")


def compute_in_parts(compute: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Returns the results of a function for each part of its input.

    If there are several parts, the backward pass computes each part again, so that memory stays bounded by one
    part.

    Args:
        compute: Function of one part.
        parts: Parts of the input.

    Example:
        >>> compute_in_parts(torch.sum, [torch.ones(2), torch.ones(3)])
        [tensor(2.), tensor(3.)]
    """
    if len(parts) < 2 or not torch.is_grad_enabled():
        return [compute(part) for part in parts]
    return [checkpoint(compute, part, use_reentrant=False, preserve_rng_state=False) for part in parts]


def is_streamed(streamed: bool | None, shape: tuple[int, int]) -> bool:
    """Returns whether a loss is streamed.

    Args:
        streamed: The option of the loss. None: streamed if the matrix has over ``STREAMED_ABOVE`` entries.
        shape: Rows and columns of the similarity matrix.
    """
    return shape[0] * shape[1] > STREAMED_ABOVE if streamed is None else streamed


def streamed_terms(
    formula: Callable[[slice], Tensor], rows: int, columns: int, streamed: bool | None = None
) -> Tensor:
    """Returns one loss term per row, computed for some rows at a time if the loss is streamed.

    Only the terms of a part are stored; the backward pass computes the part again. For a softmax,
    ``streamed_softmax_terms`` is faster.

    Args:
        formula: Computes the terms of a range of rows against all columns. The term of a row must not depend on
            other rows.
        rows: Number of rows, R.
        columns: Number of columns, C.
        streamed: Whether to compute some rows at a time. None: above ``STREAMED_ABOVE`` entries.

    Returns:
        (R,).

    Example:
        >>> logits = torch.eye(3)
        >>> streamed_terms(lambda part: logits[part].logsumexp(dim=1), rows=3, columns=3)
        tensor([1.5514, 1.5514, 1.5514])
    """
    if not rows or not is_streamed(streamed, (rows, columns)):
        return formula(slice(0, rows))
    return torch.cat(compute_in_parts(formula, list(_parts(rows, columns))))


def streamed_block_terms(
    formula: Callable[[Comparison], Tensor], block: Comparison, similarity: Similarity, streamed: bool | None
) -> Tensor:
    """Applies a formula to a block, outside autocast, and returns the loss terms of its rows, (R,).

    Args:
        formula: Computes the terms of a block. The dot products of its vectors are the similarities. The term of
            a row must not depend on other rows.
        block: Rows and columns.
        similarity: Similarity of a row and a column.
        streamed: Whether to compute some rows at a time. None: above ``STREAMED_ABOVE`` entries.
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: prepare_vectors(vectors, similarity))
        return streamed_terms(lambda rows: formula(block.select(rows)), *block.shape, streamed)


def streamed_softmax_terms(
    block: Comparison, temperature: Tensor | float, own_log_weight: float, similarity: Similarity
) -> tuple[Tensor, Tensor]:
    """Returns the streamed softmax cross-entropy of each row, and the logit of its target.

    The values equal ``info_nce_terms`` for rows with one positive. The logits of a part are computed in
    the forward pass and again in the backward pass, in one block of memory. If rows and columns are one tensor,
    the matrix is symmetric and about two thirds of the products are computed. Second derivatives are not
    supported.

    Args:
        block: Rows and columns, without ``positives`` and ``reverse``. A row without a target (-1) has a target
            logit of 0; its term is the logarithm of the sum.
        temperature: Divisor of the similarity.
        own_log_weight: Added to the logits of a row's own hard negatives.
        similarity: Similarity of a row and a column.

    Returns:
        Cross-entropies (R,) and logits (R,).

    Example:
        >>> eye = torch.eye(2)
        >>> streamed_softmax_terms(Comparison(eye, eye, torch.tensor([0, 1])), 1.0, 0.0, "cosine")
        (tensor([0.3133, 0.3133]), tensor([1., 1.]))
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: prepare_vectors(vectors, similarity))
        # Rows and columns are both divided by the root, so that one tensor remains one tensor.
        root = temperature**0.5
        block = block.map(lambda vectors: vectors / root)
        terms, logits = _SoftmaxTerms.apply(  # type: ignore[no-untyped-call]  # torch's
            block.rows, block.columns, block, own_log_weight
        )
    return terms, logits


class _SoftmaxTerms(torch.autograd.Function):
    """Autograd function of the streamed softmax cross-entropy of rows, and of the logits of their targets."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch leaves it untyped
        rows: Tensor,
        columns: Tensor,
        block: Comparison,
        own_log_weight: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.is_mirrored = rows is columns and block.own_negatives is None
        target_logits, total = rows.new_zeros(len(rows)), rows.new_zeros(len(rows))
        # A finite lowest value, so that a row without visible columns has a sum of 0.
        largest = torch.full_like(total, torch.finfo(rows.dtype).min)
        for views in _logits(rows, columns, block, own_log_weight, ctx.is_mirrored):
            for part, across, logits in views:
                sub_block = block.select(part, across)
                sub_block.mask_logits(logits)
                target = sub_block.target.unsqueeze(1)
                part_logits = logits.gather(1, target.clamp(min=0)).masked_fill_(target < 0, 0.0)
                target_logits[part] += part_logits.squeeze(1)
                previous = largest[part].clone()
                largest[part] = torch.maximum(previous, logits.amax(dim=1))
                total[part] *= (previous - largest[part]).exp_()
                total[part] += logits.sub_(largest[part].unsqueeze(1)).exp_().sum(dim=1)
        total.log_()
        ctx.save_for_backward(rows, columns, total + largest)
        ctx.block, ctx.own_log_weight = block, own_log_weight
        return total + (largest - target_logits), target_logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, target_gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, columns, total = ctx.saved_tensors
        block: Comparison = ctx.block
        total = total.clamp(min=torch.finfo(total.dtype).min)
        with full_precision(rows.device):
            weight = (target_gradient - gradient).masked_fill(block.target < 0, 0.0).unsqueeze(1)
            target = block.target.clamp(min=0)
            grad_rows, grad_columns = weight * columns[target], None
            if ctx.needs_input_grad[1]:
                grad_columns = grad_rows if ctx.is_mirrored else torch.zeros_like(columns)
                grad_columns.index_add_(0, target, weight * rows)
            for views in _logits(rows, columns, block, ctx.own_log_weight, ctx.is_mirrored):
                for part, across, logits in views:
                    block.select(part, across).mask_logits(logits)
                    logits.sub_(total[part].unsqueeze(1)).exp_().mul_(gradient[part].unsqueeze(1))
                (part, across, weights), *mirrored = views
                for _, _, logits in mirrored:
                    weights[:, len(weights) :] += logits.T
                grad_rows[part].addmm_(weights, columns[across])
                if grad_columns is not None:
                    grad_columns[across].addmm_(weights.T, rows[part])
        return grad_rows, None if ctx.is_mirrored else grad_columns, None, None


def _logits(
    rows: Tensor, columns: Tensor, block: Comparison, own_log_weight: float, is_mirrored: bool
) -> Iterator[list[tuple[slice, slice, Tensor]]]:
    """Yields the ranges of rows and columns of each part, and its logits in reused memory.

    If the matrix is symmetric (``is_mirrored``), a part starts at its diagonal. A second entry then has the
    transposed logits: the rows after the part with the columns of the part.
    """
    memory = rows.new_empty(max(min(_ENTRIES, len(rows) * len(columns)), len(columns)))
    for part in _parts(len(rows), len(columns), is_mirrored):
        across = slice(part.start if is_mirrored else 0, len(columns))
        size, width = part.stop - part.start, across.stop - across.start
        logits = torch.mm(rows[part], columns[across].T, out=memory[: size * width].view(size, width))
        if block.own_negatives is not None and own_log_weight:
            add_to_own_negatives(logits, block.own_negatives[part], own_log_weight)
        if is_mirrored and size < width:
            yield [(part, across, logits), (slice(part.stop, len(rows)), part, logits[:, size:].T.clone())]
        else:
            yield [(part, across, logits)]


def add_to_own_negatives(logits: Tensor, own: Tensor, log_weight: float) -> Tensor:
    """Adds a weight in place to the logits of each row's own hard negatives, and returns the logits.

    Args:
        logits: (R, C).
        own: Columns of each row's own hard negatives, (R, K); -1 for none.
        log_weight: Number to add.
    """
    weight = logits.new_full((), log_weight)
    return logits.scatter_add_(1, own.clamp(min=0), torch.where(own < 0, 0.0, weight))


def _parts(rows: int, columns: int, is_mirrored: bool = False) -> Iterator[slice]:
    """Yields ranges of rows that have about ``_ENTRIES`` entries each.

    If the matrix is symmetric (``is_mirrored``), a part has no columns before its first row.
    """
    start = 0
    while start < rows:
        size = max(_ENTRIES // max(columns - start * is_mirrored, 1), 1)
        yield slice(start, min(start + size, rows))
        start += size
