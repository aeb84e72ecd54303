"""InfoNCE: each anchor finds its positive among all positives and hard negatives."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from contrastive_text.losses.base import Reduction
from contrastive_text.losses.relations import Forbid
from contrastive_text.losses.softmax import SoftmaxLoss, weighted_logits


def info_nce_terms(
    rows: Tensor,
    columns: Tensor,
    target: Tensor,
    temperature: Tensor | float,
    forbid: Forbid | None = None,
    own: Tensor | None = None,
    own_log_weight: Tensor | float = 0.0,
) -> Tensor:
    """Returns the cross-entropy of each row's target among the columns it may see.

    ``-log( exp(cos(r, c_t) / T) / sum_c exp(cos(r, c) / T + w * [c is r's own hard negative]) )``

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,).
        temperature: Divisor of the cosine.
        forbid: Columns that rows must not see.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer.
        own_log_weight: Logarithm of the weight of those, added after the division by the temperature.

    Returns:
        (R,), in at least float32.

    Example:
        >>> import torch
        >>> eye = torch.eye(2)
        >>> info_nce_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0)
        tensor([0.3133, 0.3133])
    """
    logits = weighted_logits(rows, columns, temperature, own, own_log_weight)
    if forbid is not None:
        logits = forbid.hide(logits, target)
    return F.cross_entropy(logits, target, reduction="none")


class InfoNCE(SoftmaxLoss):
    """One-directional in-batch softmax, the loss of SimCSE.

    NTXent without same-side negatives: an anchor is compared with positives only, a positive with nothing.
    Source: van den Oord et al. 2018 (https://arxiv.org/abs/1807.03748), eq. 4; with hard negatives Gao et
    al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), eq. 5, whose authors' code takes the logarithm of
    the paper's weight alpha and adds it to a row's own hard negatives only.

    Args:
        temperature: Divisor of the cosine similarity; sentence-transformers' ``scale`` is its inverse.
        reduction: ``mean`` or ``sum`` over anchors; ``two_sided`` adds the mean of the other direction
            (positives looking for anchors; hard negatives stay with the anchors' direction).
        hard_negative_log_weight: Added to the logit of a row's own hard negatives; 0 weighs all alike.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed tile by tile, in memory that grows with the rows and not with their
            square (``streamed_terms``); None where that is no slower.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction.

    Example:
        >>> import torch
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> InfoNCE(temperature=0.5)(anchor, positive)
        tensor(0.2860)
    """

    several_targets: ClassVar[bool] = True

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: Reduction = "mean",
        hard_negative_log_weight: float = 0.0,
        learn_temperature: bool = False,
        streamed: bool | None = None,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed)
        self.hard_negative_log_weight = hard_negative_log_weight

    def terms(
        self,
        rows: Tensor,
        columns: Tensor,
        target: Tensor,
        forbid: Forbid | None = None,
        own: Tensor | None = None,
    ) -> Tensor:
        """Returns ``info_nce_terms`` at this temperature and weight, (R,)."""
        weight = self.hard_negative_log_weight
        return self.softmax_terms(
            info_nce_terms, rows, columns, target, forbid=forbid, own=own, own_log_weight=weight
        )
