"""What the softmax losses share: a temperature, a reduction, and whether a matrix of logits is ever held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses.base import Loss, Reduction
from contrastive_text.losses.streaming import is_streamed, streamed_terms
from contrastive_text.losses.temperature import LearnedTemperature, check_temperature


class SoftmaxLoss(Loss):
    """Base class of losses that are a softmax of cosines divided by a temperature; ``terms`` is the formula.

    Args:
        temperature: Divisor of the cosine similarity.
        reduction: How the terms make one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed tile by tile, in memory that grows with the rows and not with their
            square (``streamed_terms``); None where that is no slower.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction.
    """

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
