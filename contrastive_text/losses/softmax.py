"""What the softmax losses share: a temperature, a reduction, several targets, whether logits are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import cosine_similarity_matrix
from contrastive_text.losses.base import Loss, Reduction
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.relations import Alike, Forbid
from contrastive_text.losses.streaming import is_streamed, streamed_terms
from contrastive_text.losses.temperature import LearnedTemperature, check_temperature


def weighted_logits(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | float,
    own: Tensor | None,
    own_log_weight: Tensor | float,
) -> Tensor:
    """Returns cosines over the temperature, plus the weight of each row's own hard negatives, (R, C)."""
    logits = cosine_similarity_matrix(rows, columns, temperature)
    if own is None:
        return logits
    weight = torch.as_tensor(own_log_weight, dtype=logits.dtype, device=logits.device)
    return logits.scatter_add(1, own.clamp(min=0), torch.where(own < 0, 0.0, weight))


def sup_con_terms(
    rows: Tensor,
    columns: Tensor,
    target: Tensor,
    temperature: Tensor | float,
    forbid: Forbid | None = None,
    own: Tensor | None = None,
    own_log_weight: Tensor | float = 0.0,
    alike: Alike | None = None,
) -> Tensor:
    """Returns each row's cross-entropy over all columns that it is pulled to, among those that it may see.

    ``log sum_c exp(cos(r, c) / T) - mean_p cos(r, p) / T``, p over the columns alike; where those are joined by
    the ``sum``, ``log sum_p exp(cos(r, p) / T)`` takes the place of the mean.

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,); always alike.
        temperature: Divisor of the cosine.
        forbid: Columns that rows must not see, alike or not.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer.
        own_log_weight: Added to the logits of those.
        alike: Columns that rows are pulled to; None for the target alone.

    Returns:
        (R,), in at least float32.

    Example:
        >>> eye, one_class = torch.eye(2), torch.tensor([0, 0])
        >>> alike = Alike(rows=one_class, columns=one_class)
        >>> sup_con_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0, alike=alike)
        tensor([0.8133, 0.8133])
        >>> alike = Alike(one_class, one_class, joined="sum")
        >>> sup_con_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0, alike=alike)
        tensor([0., 0.])
    """
    logits = weighted_logits(rows, columns, temperature, own, own_log_weight)
    if alike is None:
        alike = Alike(target, torch.arange(len(columns), device=target.device))
    pulled = alike.mask(target)
    seen = logits
    if forbid is not None:
        forbidden = forbid.mask(target)
        pulled = pulled & ~forbidden
        seen = logits.masked_fill(forbidden, -torch.inf)
    if alike.joined == "sum":
        return seen.logsumexp(dim=1) - logits.masked_fill(~pulled, -torch.inf).logsumexp(dim=1)
    return seen.logsumexp(dim=1) - logits.masked_fill(~pulled, 0.0).sum(dim=1) / pulled.sum(dim=1)


class SoftmaxLoss(Loss):
    """Base class of losses that are a softmax of cosines divided by a temperature; ``terms`` is the formula.

    Where ``several_targets`` is set, that of several targets is ``sup_con_terms``.

    Attributes:
        hard_negative_log_weight: Added to the logits of a row's own hard negatives.

    Args:
        temperature: Divisor of the cosine similarity.
        reduction: How the terms make one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed tile by tile, in memory that grows with the rows and not with their
            square (``streamed_terms``); None where that is no slower.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction.
    """

    hard_negative_log_weight: float = 0.0

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        if reduction not in get_args(Reduction):
            raise InvalidValueError(
                f"reduction: expected one of {', '.join(get_args(Reduction))}, got {reduction!r}"
            )
        self.temperature = temperature
        self.reduction = reduction
        self.learn_temperature = learn_temperature
        self.streamed = streamed
        self.learned = LearnedTemperature(temperature) if learn_temperature else None

    def block_terms(self, block: Comparison) -> Tensor:
        """Returns ``terms`` of a block, or ``sup_con_terms`` where rows have several targets, (R,)."""
        if block.alike is None:
            return super().block_terms(block)
        return self.softmax_terms(
            sup_con_terms,
            block.rows,
            block.columns,
            block.target,
            forbid=block.forbid,
            own=block.own if self.hard_negative_log_weight else None,
            own_log_weight=self.hard_negative_log_weight,
            alike=block.alike,
        )

    def softmax_terms(
        self,
        dense: Callable[..., Tensor],
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        **options: Any,  # Any: what dense takes beside those
    ) -> Tensor:
        """Returns the terms of a dense formula at this temperature, or the streamed form of the same, (R,)."""
        compute = streamed_terms if is_streamed(self.streamed, rows, columns) else dense
        temperature = self.temperature if self.learned is None else self.learned()
        return compute(rows, columns, target, temperature=temperature, **options)
