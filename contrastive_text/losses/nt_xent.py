"""NT-Xent: every text finds its partner among all other texts of both sides."""

from __future__ import annotations

from torch import Tensor

from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.softmax import SoftmaxLoss


class NTXent(SoftmaxLoss):
    """Normalised temperature-scaled cross-entropy over 2N rows.

    InfoNCE in both directions with same-side negatives: 2N - 2 negatives for each of 2N rows. Source: Chen
    et al. 2020, SimCLR (https://arxiv.org/abs/2002.05709), eq. 1; used by DeCLUTR, CLEAR and ConSERT.

    Args:
        temperature: Divisor of the similarity.
        reduction: ``mean`` over 2N (DeCLUTR's code), ``sum`` (DeCLUTR's and CLEAR's papers), or
            ``two_sided``, twice the mean (ConSERT's code).
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
        >>> NTXent(temperature=0.5)(anchor, positive)
        tensor(0.4302)
    """

    several_targets = True
    same_side = True

    def terms(self, block: Comparison) -> Tensor:
        """Returns ``info_nce_terms`` of a block at this temperature, (R,)."""
        return self.softmax_terms(block)
