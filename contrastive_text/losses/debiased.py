"""Debiased NT-Xent: some negatives are expected to belong to the row."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import similarity_matrix
from contrastive_text.losses.base import Reduction
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.softmax import SoftmaxLoss


class DebiasedNTXent(SoftmaxLoss):
    """NT-Xent less the share of negatives that are expected to be of the row's own class.

    ``-log( e_t / (e_t + max((sum_c e_c - n tau_plus e_t) / (1 - tau_plus), n exp(-1 / T))) )``, e = exp(cos / T),
    c over the n negatives that a row sees. Source: Chuang et al. 2020 (https://arxiv.org/abs/2007.00224), with
    one positive, and their code, chingyaoc/DCL.

    Args:
        temperature: Divisor of the cosine; 0.5 in that code.
        reduction: How the terms make one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed some rows at a time (``terms_by_rows``); None if there are many.
        tau_plus: Probability that a negative belongs to the row; 0 is ``NTXent``.

    Raises:
        ValueError: A temperature of 0 or less, an unknown reduction, or a tau_plus outside [0, 1).

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> DebiasedNTXent()(anchor, positive), DebiasedNTXent(tau_plus=0.0)(anchor, positive)
        (tensor(0.3126), tensor(0.4302))
    """

    same_side = True

    def __init__(
        self,
        temperature: float = 0.5,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        tau_plus: float = 0.1,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed)
        if not 0 <= tau_plus < 1:
            raise InvalidValueError(
                f"DebiasedNTXent.tau_plus: expected a probability of 0 or more and below 1, got {tau_plus}; 0.1 "
                "is the authors', 0 is NTXent"
            )
        self.tau_plus = tau_plus

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, (R,)."""
        return self.by_rows(self._debiased, block)

    def _debiased(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        logits = block.hide(similarity_matrix(block.rows, block.columns, temperature, similarity="dot"))
        target = block.target.unsqueeze(1)
        largest = logits.detach().amax(dim=1, keepdim=True)
        seen = logits.scatter(1, target, -torch.inf)
        count = seen.isfinite().sum(dim=1).to(logits)
        wanted = (logits.gather(1, target) - largest).squeeze(1)
        negatives = (seen - largest).exp().sum(dim=1) - count * self.tau_plus * wanted.exp()
        least = count * (-1 / temperature - largest.squeeze(1)).exp()
        total = torch.maximum(negatives / (1 - self.tau_plus), least)
        return (wanted.exp() + total).log() - wanted
