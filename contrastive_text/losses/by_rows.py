"""Losses computed some rows at a time: the numbers of the whole matrix, in memory that grows with the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.similarity import Similarity, comparable, full_precision
from contrastive_text.losses.comparison import Comparison

STREAMED_ABOVE = 2**22
"""Entries, rows x columns, above which a loss is streamed unless the option says otherwise. A matrix of 16 MiB in
float32; below, the dense form is no slower."""

_ENTRIES = 2**23
"""Entries of a part, rows x columns: 32 MiB of float32 for each matrix that a formula makes of it. Blocks of that
size glibc maps each by itself and gives back; smaller ones leave holes in its heap, part after part. Peak of
``ListNet`` at 4,096, 8,192 and 16,384 rows on a CPU: 405, 471 and 422 MiB, with parts of a quarter 404, 907 and
2,338 MiB. For ``DCL`` it takes a third more time, because pages are cleared again."""


Part = TypeVar("Part")
Found = TypeVar("Found")


def in_parts(compute: Callable[[Part], Found], parts: Sequence[Part]) -> list[Found]:
    """Returns the result of each part. The backward pass computes each of several parts again.

    Example:
        >>> in_parts(torch.sum, [torch.ones(2), torch.ones(3)])
        [tensor(2.), tensor(3.)]
    """
    if len(parts) < 2 or not torch.is_grad_enabled():
        return [compute(part) for part in parts]
    return [checkpoint(compute, part, use_reentrant=False, preserve_rng_state=False) for part in parts]


def is_streamed(streamed: bool | None, shape: tuple[int, int]) -> bool:
    """Returns whether a matrix of a shape is streamed: the option, or if that is None, whether it is large."""
    return shape[0] * shape[1] > STREAMED_ABOVE if streamed is None else streamed


def terms_by_rows(
    formula: Callable[[slice], Tensor], rows: int, columns: int, streamed: bool | None = None
) -> Tensor:
    """Returns one term per row, computed for some rows at a time if they are streamed.

    A part keeps nothing but its terms; the backward pass computes it again. The formula may be any whose term of
    a row needs no other row. ``softmax_terms`` is the faster form of a softmax.

    Args:
        formula: Computes the terms of a range of rows against all columns.
        rows: Number of rows, R.
        columns: Number of columns, C.
        streamed: Whether to take parts; None to do so above ``STREAMED_ABOVE`` entries.

    Returns:
        (R,).

    Example:
        >>> logits = torch.eye(3)
        >>> terms_by_rows(lambda part: logits[part].logsumexp(dim=1), rows=3, columns=3)
        tensor([1.5514, 1.5514, 1.5514])
    """
    if not rows or not is_streamed(streamed, (rows, columns)):
        return formula(slice(0, rows))
    return torch.cat(in_parts(formula, list(_parts(rows, columns))))


def block_terms(
    formula: Callable[[Comparison], Tensor], block: Comparison, similarity: Similarity, streamed: bool | None
) -> Tensor:
    """Returns the terms of a formula of a block, outside autocast and by rows if streamed, (R,).

    Args:
        formula: Gets vectors whose dot products are the similarities. Its term of a row needs no other row.
        block: Rows and columns.
        similarity: Similarity of a row and a column.
        streamed: As for ``terms_by_rows``.
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: comparable(vectors, similarity))
        return terms_by_rows(lambda rows: formula(block.part(rows)), *block.shape, streamed)


def softmax_terms(
    block: Comparison, temperature: Tensor | float, own_log_weight: float, similarity: Similarity
) -> tuple[Tensor, Tensor]:
    """Returns ``info_nce_terms`` of a block with one positive a row, and the logits of the targets, by rows.

    The logits of a part are computed forward and again backward, in one block of memory. If rows and columns are
    one tensor, the logits are equal to their mirror image, and each is computed once: two thirds of the products.
    The gradient can't be differentiated again.

    Args:
        block: Rows and columns; without ``positives`` and ``reverse``. A row without a target, -1, has a logit of
            0, and its term is the logarithm of the sum.
        temperature: Divisor of the similarity.
        own_log_weight: Added to the logits of a row's own hard negatives.
        similarity: Similarity of a row and a column.

    Returns:
        (R,) and (R,).

    Example:
        >>> eye = torch.eye(2)
        >>> softmax_terms(Comparison(eye, eye, torch.tensor([0, 1])), 1.0, 0.0, "cosine")
        (tensor([0.3133, 0.3133]), tensor([1., 1.]))
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: comparable(vectors, similarity))
        # Both sides divided by the root, so that rows which are the columns stay that.
        root = temperature**0.5
        block = block.map(lambda vectors: vectors / root)
        terms, logits = _SoftmaxTerms.apply(  # type: ignore[no-untyped-call]  # torch's
            block.rows, block.columns, block, own_log_weight
        )
    return terms, logits


class _SoftmaxTerms(torch.autograd.Function):
    """Cross-entropies of rows whose logits are their dot products with columns, and the targets' logits."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch leaves it untyped
        rows: Tensor,
        columns: Tensor,
        block: Comparison,
        own_log_weight: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.is_mirrored = rows is columns and block.own is None
        wanted, total = rows.new_zeros(len(rows)), rows.new_zeros(len(rows))
        # At least a finite number: a row without visible columns then has a sum of 0.
        largest = torch.full_like(total, torch.finfo(rows.dtype).min)
        for views in _logits(rows, columns, block, own_log_weight, ctx.is_mirrored):
            for part, across, logits in views:
                seen = block.part(part, across)
                seen.mask(logits)
                target = seen.target.unsqueeze(1)
                found = logits.gather(1, target.clamp(min=0)).masked_fill_(target < 0, 0.0)
                wanted[part] += found.squeeze(1)
                before = largest[part].clone()
                largest[part] = torch.maximum(before, logits.amax(dim=1))
                total[part] *= (before - largest[part]).exp_()
                total[part] += logits.sub_(largest[part].unsqueeze(1)).exp_().sum(dim=1)
        total.log_()
        ctx.save_for_backward(rows, columns, total + largest)
        ctx.block, ctx.own_log_weight = block, own_log_weight
        return total + (largest - wanted), wanted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_wanted: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, columns, total = ctx.saved_tensors
        block: Comparison = ctx.block
        total = total.clamp(min=torch.finfo(total.dtype).min)
        with full_precision(rows.device):
            pulled = (of_wanted - gradient).masked_fill(block.target < 0, 0.0).unsqueeze(1)
            target = block.target.clamp(min=0)
            grad_rows, grad_columns = pulled * columns[target], None
            if ctx.needs_input_grad[1]:
                grad_columns = grad_rows if ctx.is_mirrored else torch.zeros_like(columns)
                grad_columns.index_add_(0, target, pulled * rows)
            for views in _logits(rows, columns, block, ctx.own_log_weight, ctx.is_mirrored):
                for part, across, logits in views:
                    block.part(part, across).mask(logits)
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
    """Yields the logits of parts, with the ranges of their rows and columns, in the same memory each time.

    If the logits are equal to their mirror image, a part has no columns before its first row. A second entry has
    the transposed logits of these columns: the rows after the part with the columns of the part.
    """
    memory = rows.new_empty(max(min(_ENTRIES, len(rows) * len(columns)), len(columns)))
    for part in _parts(len(rows), len(columns), is_mirrored):
        across = slice(part.start if is_mirrored else 0, len(columns))
        size, width = part.stop - part.start, across.stop - across.start
        logits = torch.mm(rows[part], columns[across].T, out=memory[: size * width].view(size, width))
        if block.own is not None and own_log_weight:
            add_to_own(logits, block.own[part], own_log_weight)
        if is_mirrored and size < width:
            yield [(part, across, logits), (slice(part.stop, len(rows)), part, logits[:, size:].T.clone())]
        else:
            yield [(part, across, logits)]


def add_to_own(logits: Tensor, own: Tensor, log_weight: float) -> Tensor:
    """Adds a weight to the logits, (R, C), of each row's own hard negatives, (R, K), in place."""
    weight = logits.new_full((), log_weight)
    return logits.scatter_add_(1, own.clamp(min=0), torch.where(own < 0, 0.0, weight))


def _parts(rows: int, columns: int, is_mirrored: bool = False) -> Iterator[slice]:
    """Yields ranges of rows, with ``_ENTRIES`` entries each; if mirrored, columns begin at the first row."""
    start = 0
    while start < rows:
        size = max(_ENTRIES // max(columns - start * is_mirrored, 1), 1)
        yield slice(start, min(start + size, rows))
        start += size
