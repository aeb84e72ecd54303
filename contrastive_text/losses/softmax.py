"""What the softmax losses share: a similarity, a temperature, a reduction, whether logits are held as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import Similarity
from contrastive_text.losses.base import Loss, Reduction
from contrastive_text.losses.by_rows import block_terms
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.formulas import info_nce_terms, sup_con_terms
from contrastive_text.losses.streaming import is_streamed, streamed_terms
from contrastive_text.losses.temperature import LearnedTemperature, check_temperature


class SoftmaxLoss(Loss):
    """Base class of losses that are a softmax of similarities divided by a temperature.

    ``terms`` calls ``softmax_terms``, or ``by_rows`` with a formula of its own.

    Attributes:
        hard_negative_log_weight: Added to the logits of a row's own hard negatives.

    Args:
        temperature: Divisor of the similarity.
        reduction: How the terms make one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed part by part, in memory that grows with the rows and not with their
            square (``streamed_terms``, ``terms_by_rows``); None where that is no slower.
        similarity: What is compared: directions (``cosine``), or the vectors as they are (``dot``).

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.
    """

    hard_negative_log_weight: float = 0.0

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        for name, given, known in (("reduction", reduction, Reduction), ("similarity", similarity, Similarity)):
            if given not in get_args(known):
                raise InvalidValueError(f"{name}: expected one of {', '.join(get_args(known))}, got {given!r}")
        self.temperature = temperature
        self.reduction = reduction
        self.learn_temperature = learn_temperature
        self.streamed = streamed
        self.similarity = similarity
        self.learned = LearnedTemperature(temperature) if learn_temperature else None

    def softmax_terms(self, block: Comparison) -> Tensor:
        """Returns ``info_nce_terms`` of a block, or ``sup_con_terms`` where rows have several targets, (R,)."""
        options: dict[str, Any] = {  # Any: what both formulas take
            "forbid": block.forbid,
            "own": block.own if self.hard_negative_log_weight else None,
            "own_log_weight": self.hard_negative_log_weight,
            "similarity": self.similarity,
        }
        compute: Callable[..., Tensor] = info_nce_terms
        if block.alike is not None:
            compute, options["alike"] = sup_con_terms, block.alike
        if is_streamed(self.streamed, block.rows, block.columns):
            compute = streamed_terms
        return compute(block.rows, block.columns, block.target, self.temperature_now(), **options)

    def by_rows(self, formula: Callable[[Comparison, Tensor | float], Tensor], block: Comparison) -> Tensor:
        """Returns the terms of a formula of a block and the temperature, some rows at a time if streamed, (R,).

        The formula gets vectors whose dot products are the similarities, and terms that need no other row.
        """
        temperature = self.temperature_now()
        return block_terms(lambda part: formula(part, temperature), block, self.similarity, self.streamed)

    def temperature_now(self) -> Tensor | float:
        """Returns the temperature, (1,) where it is learned."""
        return self.temperature if self.learned is None else self.learned()
