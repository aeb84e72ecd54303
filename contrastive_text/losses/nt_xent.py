"""NT-Xent: every text finds its partner among all other texts of both sides."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from contrastive_text.losses.base import Loss, Reduction, check_reduction, check_temperature
from contrastive_text.losses.blocks import Forbid
from contrastive_text.losses.info_nce import info_nce_terms


class NTXent(Loss):
    """Normalised temperature-scaled cross-entropy over 2N rows.

    InfoNCE in both directions with same-side negatives: 2N - 2 negatives for each of 2N rows. Source: Chen
    et al. 2020, SimCLR (https://arxiv.org/abs/2002.05709), eq. 1; used by DeCLUTR, CLEAR and ConSERT.

    Args:
        temperature: Divisor of the cosine similarity.
        reduction: ``mean`` over 2N (DeCLUTR's code), ``sum`` (DeCLUTR's and CLEAR's papers), or
            ``two_sided``, twice the mean (ConSERT's code).

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

    def __init__(self, temperature: float = 0.05, reduction: Reduction = "mean") -> None:
        super().__init__()
        check_temperature(temperature)
        check_reduction(reduction)
        self.temperature = temperature
        self.reduction = reduction

    def terms(
        self,
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,  # noqa: ARG002  # part of the contract; SimCLR weighs all negatives alike
    ) -> Tensor:
        """Gives ``info_nce_terms`` at this temperature, (R,)."""
        return info_nce_terms(rows, columns, target, temperature=self.temperature, forbid=forbid)
