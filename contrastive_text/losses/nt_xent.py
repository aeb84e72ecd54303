"""NT-Xent: every text finds its partner among all other texts of both sides."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from contrastive_text.losses.info_nce import info_nce_terms
from contrastive_text.losses.relations import Forbid
from contrastive_text.losses.softmax import SoftmaxLoss


class NTXent(SoftmaxLoss):
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

    several_targets: ClassVar[bool] = True
    same_side: ClassVar[bool] = True

    def terms(
        self,
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,  # noqa: ARG002  # part of the contract; SimCLR weighs all negatives alike
    ) -> Tensor:
        """Returns ``info_nce_terms`` at this temperature, (R,)."""
        return self.softmax_terms(info_nce_terms, rows, columns, target, forbid=forbid)
