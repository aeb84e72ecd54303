"""Losses of scored pairs: what the cosine of two texts should be, or how pairs should be ordered by it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.losses.temperature import check_temperature


class ScoreLoss(nn.Module, ABC):
    """Base class of losses that hold the cosines of pairs against their scores.

    Attributes:
        whole_batch: Whether pairs are held against each other, so that the pairs of all ranks are needed;
            False where every pair has a term of its own.
    """

    whole_batch: ClassVar[bool] = False

    @abstractmethod
    def terms(self, cosines: Tensor, scores: Tensor) -> Tensor:
        """Returns the terms whose mean is the loss.

        Args:
            cosines: Of the two texts of each pair, (N,), in at least float32.
            scores: From 0 (nothing in common) to 1 (the same meaning), (N,).

        Returns:
            One term per pair, (N,); with ``whole_batch`` the one of all pairs, (1,).
        """

    def forward(self, cosines: Tensor, scores: Tensor) -> Tensor:
        """Returns the loss of N pairs.

        Args:
            cosines: (N,).
            scores: (N,).

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: Shapes other than (N,) for both.
        """
        if cosines.ndim != 1 or cosines.shape != scores.shape:
            raise InvalidValueError(
                f"{type(self).__name__}: expected cosines and scores of one shape (N,), got "
                f"{tuple(cosines.shape)} and {tuple(scores.shape)}"
            )
        return self.terms(at_least_float32(cosines), scores).mean()


class CosineMSE(ScoreLoss):
    """Mean squared error of the cosine against the score.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3, "regression
    objective". The CS224N report names no loss for STS; this one, against gold / 5, stands for it.

    Example:
        >>> CosineMSE()(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
        tensor(0.1250)
    """

    def terms(self, cosines: Tensor, scores: Tensor) -> Tensor:
        """Returns the squared error of each pair, (N,)."""
        return (cosines - scores.to(cosines.dtype)).square()


def cosent_loss(cosines: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Returns the logarithm of how far pairs are out of the order of their scores.

    ``log( 1 + sum over i, j with score_i > score_j of exp((cos_j - cos_i) / T) )``

    In O(N log N) time and O(N) memory: pairs sorted by score, running sums over those of a lower one.

    Args:
        cosines: (N,).
        scores: (N,).
        temperature: Divisor of the cosine.

    Returns:
        A scalar; 0 where all scores are equal.

    Example:
        >>> cosent_loss(torch.tensor([0.2, 0.7]), torch.tensor([1.0, 0.0]), temperature=0.5)
        tensor(1.3133)
    """
    scores, order = scores.sort()
    # The sums of N terms one after another keep float32's digits in float64, which not every device has.
    exact = cosines.dtype if cosines.device.type == "mps" else torch.float64
    logits = cosines[order].to(exact) / temperature
    lower = torch.searchsorted(scores, scores)  # how many pairs have a lower score
    below = torch.logcumsumexp(logits, dim=0)[(lower - 1).clamp(min=0)]
    excess = torch.where(lower > 0, below - logits, -torch.inf)
    return torch.logsumexp(torch.cat([excess.new_zeros(1), excess]), dim=0).to(cosines.dtype)


class CoSENT(ScoreLoss):
    """Orders pairs: one of a higher score should have the higher cosine.

    CosineMSE without a scale: only the order of the scores counts, as for Spearman's correlation, and pairs of
    equal scores are not compared. Source: Su 2022 (https://kexue.fm/archives/8847), whose lambda of 20, and
    sentence-transformers' ``scale``, are the inverse of the temperature. The pairs of all ranks are compared.

    Args:
        temperature: Divisor of the cosine.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> CoSENT(temperature=0.5)(torch.tensor([0.2, 0.7]), torch.tensor([1.0, 0.0]))
        tensor(1.3133)
    """

    whole_batch: ClassVar[bool] = True

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature = temperature

    def terms(self, cosines: Tensor, scores: Tensor) -> Tensor:
        """Returns ``cosent_loss`` at this temperature, (1,)."""
        return cosent_loss(cosines, scores, temperature=self.temperature).unsqueeze(0)
