"""The terms of in-batch losses tile by tile: the same numbers in O((R + C) D) memory instead of O(R C)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contrastive_text.core.similarity import Similarity, comparable, full_precision
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.device_tiles import DeviceTiling
from contrastive_text.losses.relations import Alike, Forbid
from contrastive_text.losses.tiles import Tiles, Tiling

STREAMED_ABOVE = 2**22
"""Entries R x C above which a loss is streamed if not told otherwise; below, both forms take the same time."""

MIRRORED_ABOVE = 2**20
"""The same where rows and columns are one tensor: at 2,048 rows 0.72 of the dense form's time, at 512 1.3."""

_TILE, _MIRRORED_TILE, _DEVICE_TILE = 1024, 512, 8192
"""Sides of a tile: measured on a CPU whose cores have 1 MiB each, in two directions and in one; on another
device, unverified."""

_LARGEST_SCALE = {torch.float32: 50.0, torch.float64: 300.0}
"""Largest 1/T at which exp(cos / T), its sums and their quotients stay within the numbers of a type: logits lie
within +-1/T, so no maximum has to be taken out."""


def is_streamed(streamed: bool | None, rows: Tensor, columns: Tensor) -> bool:
    """Whether to stream: as told, and if not told where R x C is large enough for it to be faster."""
    if streamed is not None:
        return streamed
    return len(rows) * len(columns) > (MIRRORED_ABOVE if rows is columns else STREAMED_ABOVE)


def streamed_terms(
    rows: Tensor,
    columns: Tensor,
    target: Tensor,
    temperature: Tensor | float,
    forbid: Forbid | None = None,
    own: Tensor | None = None,
    own_log_weight: float = 0.0,
    alike: Alike | None = None,
    tile: int | None = None,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Returns ``info_nce_terms``, or with ``alike`` ``sup_con_terms``, without a matrix of R x C.

    Forward and backward pass compute the logits tile by tile, each for itself. Where rows and columns are one
    tensor, each tile serves also as its mirror image, with 2/3 of the dense form's multiplications. The gradient
    of rows, columns and temperature is exact; it can't be differentiated once more.

    Args:
        rows: (R, D).
        columns: (C, D); the same object as the rows where they are the very texts.
        target: Column that each row should find, (R,).
        temperature: Divisor of the cosine, of one element if a tensor.
        forbid: Columns that rows must not see.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer.
        own_log_weight: Added to the logits of those.
        alike: Columns that rows are pulled to too; None for the target alone.
        tile: Side of a tile; None for the measured one.
        similarity: What stands in the place of the cosine, if not that.

    Returns:
        (R,), in at least float32.

    Example:
        >>> eye = torch.eye(2)
        >>> streamed_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0, tile=1)
        tensor([0.3133, 0.3133])
    """
    side = _MIRRORED_TILE if rows is columns else _TILE
    options: dict[str, Any] = {"own": own, "own_log_weight": own_log_weight, "alike": alike}  # Any: of Tiling.of
    tiling = _tiles(rows, columns, tile or side, target=target, forbid=forbid, **options)
    with full_precision(rows.device):
        left = comparable(rows, similarity)
        scale = _scale(temperature, left)
        is_bounded = similarity == "cosine" and _at_most(_LARGEST_SCALE[left.dtype], temperature, left.dtype)
        if columns is rows and tiling.mirrors and is_bounded:
            mirrored: Tensor = _Mirrored.apply(left, scale, tiling)  # type: ignore[no-untyped-call]  # torch's
            return mirrored
        right = left if columns is rows else comparable(columns, similarity)
        terms, _ = _Streamed.apply(left, right, scale, tiling)  # type: ignore[no-untyped-call]  # torch's
        return torch.as_tensor(terms)


def streamed_sums(
    block: Comparison, temperature: Tensor | float, own_log_weight: float, similarity: Similarity
) -> tuple[Tensor, Tensor]:
    """Returns for each row of a block ``log sum_c exp(logit_c)`` less its target's logit, and that logit.

    A row without a target, -1, has the whole logarithm, and a logit of 0. See ``streamed_terms``.

    Returns:
        (R,) and (R,).
    """
    options: dict[str, Any] = {"own": block.own, "own_log_weight": own_log_weight}  # Any: of Tiling.of
    tiling = _tiles(block.rows, block.columns, _TILE, target=block.target, forbid=block.forbid, **options)
    with full_precision(block.rows.device):
        left = comparable(block.rows, similarity)
        right = left if block.columns is block.rows else comparable(block.columns, similarity)
        terms, wanted = _Streamed.apply(left, right, _scale(temperature, left), tiling)  # type: ignore[no-untyped-call]  # torch's
    return terms, wanted


def _tiles(rows: Tensor, columns: Tensor, size: int, **options: Any) -> Tiles:  # Any: of Tiling.of
    """Returns the tiling of rows and columns where they are: on a device nothing may be read to find it."""
    shape = (len(rows), len(columns))
    if rows.device.type == "cpu":
        return Tiling.of(shape, size=size, **options)
    return DeviceTiling(shape=shape, size=_DEVICE_TILE, **options)


def _scale(temperature: Tensor | float, like: Tensor) -> Tensor:
    """Returns the inverse of a temperature, a scalar."""
    if not isinstance(temperature, Tensor):
        return like.new_full((), temperature).reciprocal()
    return temperature.to(like).reciprocal().reshape(())


def _at_most(largest: float, temperature: Tensor | float, dtype: torch.dtype) -> bool:
    """Returns whether the inverse of a temperature is that small, as far as the host knows."""
    if isinstance(temperature, Tensor) and temperature.device.type != "cpu":
        return False
    given = temperature.detach() if isinstance(temperature, Tensor) else temperature
    return float(torch.as_tensor(given, dtype=dtype).reciprocal()) <= largest


class _Streamed(torch.autograd.Function):
    """Terms of rows against columns, with a running maximum, and what was wanted of each row."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch leaves it untyped
        rows: Tensor,
        columns: Tensor,
        scale: Tensor,
        tiling: Tiles,
    ) -> tuple[Tensor, Tensor]:
        largest = rows.new_full((len(rows),), torch.finfo(rows.dtype).min)
        total, count = torch.zeros_like(largest), torch.zeros_like(largest)
        wanted = torch.full_like(largest, tiling.nothing)
        scratch = tiling.scratch(rows)
        for down in tiling.down:
            scaled = rows[down] * scale
            for across in tiling.across:
                logits = torch.mm(scaled, columns[across].T, out=tiling.cut(scratch, down, across))
                tiling.add_own(logits, down, across)
                tiling.pull(logits, down, across, wanted[down], count[down])
                tiling.fill_forbidden(logits, down, across, value=-torch.inf)
                before = largest[down].clone()
                torch.maximum(before, logits.amax(dim=1), out=largest[down])
                total[down] *= (before - largest[down]).exp_()
                total[down] += logits.sub_(largest[down].unsqueeze(1)).exp_().sum(dim=1)
        count.clamp_(min=1.0)  # of a row without a target nothing is wanted
        ctx.save_for_backward(rows, columns, scale, largest, total, wanted, count)
        ctx.tiling = tiling
        found = wanted / count
        return total.log() + (largest - found), found

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Tensor, of_wanted: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        rows, columns, scale, largest, total, wanted, count = ctx.saved_tensors
        tiling: Tiles = ctx.tiling
        grad_rows = torch.zeros_like(rows)
        grad_columns = torch.zeros_like(columns) if ctx.needs_input_grad[1] else None
        # A row that sees nothing has a total of 0, and a gradient of 0.
        share = gradient * scale / total.clamp(min=torch.finfo(total.dtype).tiny)
        part = (gradient - of_wanted) * scale / count
        scratch = tiling.scratch(rows)
        with full_precision(rows.device):
            for down in tiling.down:
                scaled = rows[down] * scale
                for across in tiling.across:
                    logits = torch.mm(scaled, columns[across].T, out=tiling.cut(scratch, down, across))
                    tiling.add_own(logits, down, across)
                    shares = tiling.shares(logits, down, across, wanted[down])
                    tiling.fill_forbidden(logits, down, across, value=-torch.inf)
                    weights = logits.sub_(largest[down].unsqueeze(1)).exp_().mul_(share[down].unsqueeze(1))
                    tiling.take_pulled(weights, shares, down, across, part[down])
                    grad_rows[down].addmm_(weights, columns[across])
                    if grad_columns is not None:
                        grad_columns[across].addmm_(weights.T, rows[down])
            return grad_rows, grad_columns, _grad_scale(rows, grad_rows, tiling) / scale, None


class _Mirrored(torch.autograd.Function):
    """Terms of unit rows against themselves: tiles on and above the diagonal, without a maximum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, tiling: Tiles) -> Tensor:  # Any: torch leaves ctx untyped
        total, count = rows.new_zeros(len(rows)), rows.new_zeros(len(rows))
        wanted = torch.full_like(total, tiling.nothing)
        scratch = tiling.scratch(rows)
        for down in tiling.down:
            scaled = rows[down] * scale
            for across in tiling.from_diagonal(down):
                logits = torch.mm(scaled, rows[across].T, out=tiling.cut(scratch, down, across))
                tiling.pull(logits, down, across, wanted[down], count[down])
                if across != down:
                    tiling.pull(logits.T, across, down, wanted[across], count[across])
                masses = logits.exp_()
                total[down] += tiling.seen_sum(masses, down, across)
                if across != down:
                    total[across] += tiling.seen_sum(masses.T, across, down)
        wanted /= count
        ctx.save_for_backward(rows, scale, total, wanted, count)
        ctx.tiling = tiling
        # Near 0 the logarithm of the quotient is the exact form; far off it may overflow.
        quotient = (total * (-wanted).exp()).clamp_(min=1.0)
        return torch.where(quotient < 2.0, quotient.log(), total.log() - wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, scale, total, wanted, count = ctx.saved_tensors
        tiling: Tiles = ctx.tiling
        grad_rows = torch.zeros_like(rows)
        share, part = gradient * scale / total, gradient * scale / count
        scratch, second = tiling.scratch(rows), tiling.scratch(rows)
        with full_precision(rows.device):
            for down in tiling.down:
                scaled = rows[down] * scale
                for across in tiling.from_diagonal(down):
                    logits = torch.mm(scaled, rows[across].T, out=tiling.cut(scratch, down, across))
                    shares = tiling.shares(logits, down, across, wanted[down])
                    if across != down:
                        mirrored_shares = tiling.shares(logits.T, across, down, wanted[across])
                    masses = logits.exp_()
                    weights = torch.mul(masses, share[down].unsqueeze(1), out=tiling.cut(second, down, across))
                    tiling.fill_forbidden(weights, down, across, value=0.0)
                    tiling.take_pulled(weights, shares, down, across, part[down])
                    if across != down:
                        mirrored = masses.mul_(share[across]).T
                        tiling.fill_forbidden(mirrored, across, down, value=0.0)
                        tiling.take_pulled(mirrored, mirrored_shares, across, down, part[across])
                        weights += masses
                    grad_rows[down].addmm_(weights, rows[across])
                    grad_rows[across].addmm_(weights.T, rows[down])
            # Every logit stands in the gradient of its row and in that of its column.
            return grad_rows, _grad_scale(rows, grad_rows, tiling) / (2 * scale), None


def _grad_scale(rows: Tensor, grad_rows: Tensor, tiling: Tiles) -> Tensor:
    """Returns the sum of rows times their gradients: that of the weights times the logits, scale by scale."""
    parts = [(rows[down] * grad_rows[down]).sum() for down in tiling.down]
    return torch.stack(parts).sum() if parts else rows.new_zeros(())
