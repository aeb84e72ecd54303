"""SupCon: every text finds all other texts of its class."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.softmax import SoftmaxLoss
from contrastive_text.losses.triples import Triples


class SupCon(SoftmaxLoss):
    """Supervised contrastive loss over 2N rows: the mean over all other texts of the row's class.

    NTXent with several targets per row: texts of the same class are pulled together instead of pushed
    apart, the denominator is the same. Where every example is a class of its own, or without classes, it is
    NTXent. Hard negatives are further columns of no class. Source: Khosla et al. 2020
    (https://arxiv.org/abs/2004.11362), eq. 2 (the sum over positives outside the logarithm).

    Differs: a text that is the row's own or its partner's once more is neither in the mean nor in the
    denominator (``Contrastive.mask_duplicates``); the sum over rows is divided by their number.

    Args:
        temperature: Divisor of the similarity.
        reduction: ``mean`` over 2N, ``sum`` (as the paper writes it), or ``two_sided``, twice the mean.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed tile by tile, in memory that grows with the rows and not with their
            square (``streamed_terms``); None where that is no slower.
        similarity: What is compared: directions (``cosine``), or the vectors as they are (``dot``).

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> import torch
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> loss = SupCon(temperature=0.5)
        >>> loss(anchor, positive), loss(anchor, positive, classes=torch.tensor([0, 0]))
        (tensor(0.4302), tensor(1.4969))
    """

    several_targets = True
    same_side = True
    reads_labels: ClassVar[bool] = True

    def terms(self, block: Comparison) -> Tensor:
        """Returns ``sup_con_terms`` of a block at this temperature, (R,)."""
        return self.softmax_terms(block)

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        negative: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """Returns the loss of N examples whose texts all differ.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: Hard negatives, (N, D) or (N, K, D).
            classes: Class of each example, 0 or more, (N,); None for a class each.

        Returns:
            A scalar, in at least float32.
        """
        return self._value(replace(Triples.distinct(anchor, positive, negative), classes=classes))
