"""NT-Xent: every text finds its partner among all other texts of both sides."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from contrastive_text.losses.base import Loss, Reduction, check_reduction, check_temperature
from contrastive_text.losses.comparisons import Forbid
from contrastive_text.losses.info_nce import info_nce_terms
from contrastive_text.losses.streaming import is_streamed, streamed_terms
from contrastive_text.losses.temperature import LearnedTemperature


class NTXent(Loss):
    """Normalised temperature-scaled cross-entropy over 2N rows.

    InfoNCE in both directions with same-side negatives: 2N - 2 negatives for each of 2N rows. Source: Chen
    et al. 2020, SimCLR (https://arxiv.org/abs/2002.05709), eq. 1; used by DeCLUTR, CLEAR and ConSERT.

    Args:
        temperature: Divisor of the cosine similarity.
        reduction: ``mean`` over 2N (DeCLUTR's code), ``sum`` (DeCLUTR's and CLEAR's papers), or
            ``two_sided``, twice the mean (ConSERT's code).
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed tile by tile, in memory that grows with the rows and not with their
            square (``streamed_terms``); None where that is no slower.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction.

    Example:
        >>> import torch
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> NTXent(temperature=0.5)(anchor, positive)
        tensor(0.4302)
    """

    same_side: ClassVar[bool] = True

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        check_reduction(reduction)
        self.temperature = temperature
        self.reduction = reduction
        self.learn_temperature = learn_temperature
        self.streamed = streamed
        self.learned = LearnedTemperature(temperature) if learn_temperature else None

    def terms(
        self,
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,  # noqa: ARG002  # part of the contract; SimCLR weighs all negatives alike
    ) -> Tensor:
        """Returns ``info_nce_terms`` at this temperature, (R,)."""
        compute = streamed_terms if is_streamed(self.streamed, rows, columns) else info_nce_terms
        temperature = self.temperature if self.learned is None else self.learned()
        return compute(rows, columns, target, temperature=temperature, forbid=forbid)
