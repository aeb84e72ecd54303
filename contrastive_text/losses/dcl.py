"""Decoupled contrastive losses: the target leaves the denominator."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import Similarity, comparable, full_precision, similarity_matrix
from contrastive_text.losses.base import Reduction
from contrastive_text.losses.comparisons import Comparison, FurtherNegatives
from contrastive_text.losses.softmax import SoftmaxLoss
from contrastive_text.losses.triples import Triples


class DCL(SoftmaxLoss):
    """Decoupled contrastive loss: NT-Xent, or InfoNCE, without the target in the denominator.

    ``log sum_c exp(s(r, c) / T) - s(r, t) / T``, c over the columns seen but the target t. A positive that is
    found already no longer makes the gradient of its negatives smaller, which helps small batches. Not bounded
    below: values under 0 are right. Source: Yeh et al. 2021 (https://arxiv.org/abs/2110.06848); values equal
    those of a re-implementation, raminnakhli/Decoupled-Contrastive-Learning, which lightly cites.

    Differs: the codes hide columns by -103 on their logits, here they are left out. A row that sees no negative
    counts 0, without a gradient.

    Args:
        temperature: Divisor of the similarity; 0.1 in both codes.
        reduction: How the terms make one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed some rows at a time (``terms_by_rows``); None if there are many.
        similarity: What is compared: directions (``cosine``), or the vectors as they are (``dot``).
        same_side: Whether both sides look among both, as in NT-Xent, or anchors among positives.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> DCL(temperature=0.5)(anchor, positive), DCL(temperature=0.5, same_side=False)(anchor, positive)
        (tensor(-0.7367), tensor(-1.6000))
    """

    def __init__(
        self,
        temperature: float = 0.1,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
        same_side: bool = True,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed, similarity)
        self.same_side = same_side

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, (R,)."""
        return self.by_rows(_decoupled, block)


class DCLW(DCL):
    """DCL whose pairs pull the more, the less alike they are.

    The target's similarity counts ``2 - N softmax_i(s(a_i, p_i) / sigma)`` times, the softmax over the N pairs of
    all ranks: once on average. The weights have a gradient. Source: Yeh et al. 2021
    (https://arxiv.org/abs/2110.06848), and the same code. Where columns are keys (``Momentum``), the weights
    are of those.

    Differs: lightly computes the weights from detached vectors, so that they have no gradient there.

    Args:
        temperature: Divisor of the similarity; 0.1 in both codes.
        reduction: How the terms make one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed some rows at a time (``terms_by_rows``); None if there are many.
        similarity: What is compared: directions (``cosine``), or the vectors as they are (``dot``).
        same_side: Whether both sides look among both, as in NT-Xent, or anchors among positives.
        sigma: Divisor of the similarity in the weights.

    Raises:
        ValueError: A temperature or sigma of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> DCLW()(anchor, anchor) == DCL()(anchor, anchor)  # pairs that are alike weigh the same
        tensor(True)
    """

    signed = False

    def __init__(
        self,
        temperature: float = 0.1,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
        same_side: bool = True,
        sigma: float = 0.5,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed, similarity, same_side)
        if not 0 < sigma < math.inf:
            raise InvalidValueError(
                f"DCLW.sigma: expected a finite number above 0, got {sigma}; 0.5 is usual, and DCL has no weights"
            )
        self.sigma = sigma

    def comparisons(
        self, local: Triples, every: Triples, offset: int = 0, further: FurtherNegatives | None = None
    ) -> list[Comparison]:
        """Arranges texts as ``Loss.comparisons`` does, with the weights of their pairs."""
        n = len(local.anchor)
        weight = self.weights(every.anchor, every.positive)[offset : offset + n]
        blocks = super().comparisons(local, every, offset, further)
        return [replace(block, weight=weight.repeat(len(block.rows) // max(n, 1))) for block in blocks]

    def weights(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Returns the weight of each of N pairs, (N,), for (N, D) each."""
        with full_precision(anchor.device):
            found = (comparable(anchor, self.similarity) * comparable(positive, self.similarity)).sum(dim=1)
            return 2 - len(found) * (found / self.sigma).softmax(dim=0)


def _decoupled(block: Comparison, temperature: Tensor | float) -> Tensor:
    """Returns what the other columns weigh, less what the target does, (R,)."""
    logits = block.hide(similarity_matrix(block.rows, block.columns, temperature, similarity="dot"))
    target = block.target.unsqueeze(1)
    wanted = logits.gather(1, target).squeeze(1)
    others = logits.scatter(1, target, -torch.inf).logsumexp(dim=1)
    wanted = wanted if block.weight is None else wanted * block.weight
    return torch.where(others.isneginf(), 0.0, others - wanted)
