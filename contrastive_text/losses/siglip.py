"""SigLIP: every pair of texts is a yes or a no of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.similarity import similarity_matrix
from contrastive_text.losses.base import Loss
from contrastive_text.losses.by_rows import block_terms
from contrastive_text.losses.comparisons import Comparison
from contrastive_text.losses.temperature import LearnedTemperature, check_temperature


class SigLIP(Loss):
    """Pairwise sigmoid loss: whether an anchor and a text belong together, for all texts that it sees.

    ``1/N sum_i sum_c log(1 + exp(-y_ic (cos(a_i, c) / T + b)))``, y 1 for the positive and -1 for all others:
    other positives, hard negatives, past columns. Divided by the N anchors, not by the number of comparisons.
    Both directions are one. T and b are trained, b without decay, as nothing of one dimension has any.
    Source: Zhai et al. 2023 (https://arxiv.org/abs/2303.15343); values equal those of the formula of
    google-research/big_vision.

    Differs: 1/T never goes above 100 (``LearnedTemperature``). Texts that a row must not see add nothing to it.

    Args:
        temperature: Start of T; 0.1 is a scale of 10.
        bias: Start of b: below 0, for most comparisons are a no. big_vision's shipped configuration of LiT starts
            from -2.71.
        streamed: Whether terms are computed some rows at a time (``terms_by_rows``); None if there are many.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> SigLIP(temperature=0.1, bias=-10.0)(anchor, positive)
        tensor(2.1360, grad_fn=<MulBackward0>)
    """

    signed = False

    def __init__(self, temperature: float = 0.1, bias: float = -10.0, streamed: bool | None = None) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature = temperature
        self.bias = bias
        self.streamed = streamed
        self.learned = LearnedTemperature(temperature)
        # One dimension, as LearnedTemperature's.
        self.learned_bias = nn.Parameter(torch.tensor([float(bias)]))

    @property
    def figures(self) -> dict[str, Tensor]:
        """The temperature and the bias."""
        return super().figures | {"bias": self.learned_bias.detach().squeeze()}

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, (R,)."""
        assert self.learned is not None
        temperature = self.learned()
        return block_terms(lambda part: self._sigmoids(part, temperature), block, "cosine", self.streamed)

    def _sigmoids(self, block: Comparison, temperature: Tensor) -> Tensor:
        """Returns the sum of each row's cross-entropies, (R,)."""
        cosines = similarity_matrix(block.rows, block.columns, temperature, similarity="dot")
        logits = block.hide(cosines + self.learned_bias)
        target = block.target.unsqueeze(1)
        noes = -F.logsigmoid(-logits.scatter(1, target, -torch.inf))
        return noes.sum(dim=1) - F.logsigmoid(logits.gather(1, target)).squeeze(1)
