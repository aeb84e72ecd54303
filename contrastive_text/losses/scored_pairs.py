"""Losses of scored pairs: what the cosine of two texts should be, or how pairs should be ordered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, unit_vectors
from contrastive_text.losses.base import check_temperature


class ScoreLoss(nn.Module, ABC):
    """Base class of losses that hold the cosines of pairs, or their vectors, against their scores.

    Attributes:
        whole_batch: Whether pairs are held against each other, so that the pairs of all ranks are needed;
            False where every pair has a term of its own.
        reads_vectors: Whether it reads the two vectors of each pair in place of their cosine.

    Example:
        >>> class AbsoluteError(ScoreLoss):
        ...     def terms(self, pairs, scores):
        ...         return (pairs - scores).abs()
        >>> AbsoluteError()(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
        tensor(0.2500)
    """

    whole_batch: ClassVar[bool] = False
    reads_vectors: ClassVar[bool] = False

    @abstractmethod
    def terms(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns the terms whose mean is the loss.

        Args:
            pairs: Cosine of the two texts of each pair, (N,), or with ``reads_vectors`` their vectors, (N, 2, D),
                in at least float32.
            scores: From 0 (nothing in common) to 1 (the same meaning), (N,).

        Returns:
            One term per pair, (N,); with ``whole_batch`` the one of all pairs, (1,).
        """

    def forward(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns the loss of N pairs.

        Args:
            pairs: As ``terms`` has them, (N,) or (N, 2, D).
            scores: (N,).

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: Other shapes.
        """
        shape = f"({len(scores)}, 2, D)" if self.reads_vectors else f"({len(scores)},)"
        wanted = (len(scores), 2, pairs.shape[-1]) if self.reads_vectors else (len(scores),)
        if tuple(pairs.shape) != wanted or scores.ndim != 1:
            raise InvalidValueError(
                f"{type(self).__name__}: expected {'vectors' if self.reads_vectors else 'cosines'} {shape} for "
                f"scores (N,), got {tuple(pairs.shape)} and {tuple(scores.shape)}"
            )
        return self.terms(at_least_float32(pairs), scores).mean()


class CosineMSE(ScoreLoss):
    """Mean squared error of the cosine against the score.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3, "regression
    objective". The CS224N report names no loss for STS; this one, against gold / 5, stands for it.

    Example:
        >>> CosineMSE()(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
        tensor(0.1250)
    """

    def terms(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns the squared error of each pair's cosine, (N,)."""
        return (pairs - scores.to(pairs.dtype)).square()


def cosent_loss(cosines: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Returns the logarithm of how far pairs are out of the order of their scores.

    By their cosine, or any other similarity.

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

    def terms(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns ``cosent_loss`` of the cosines at this temperature, (1,)."""
        return cosent_loss(pairs, scores, temperature=self.temperature).unsqueeze(0)


def angle_similarity(x: Tensor, y: Tensor) -> Tensor:
    """Returns AnglE's similarity: of the complex quotient of two vectors, real and imaginary parts summed up.

    A vector's first half holds real parts, its second imaginary ones: ``x = a + i b``, ``y = c + i d``. Of their
    quotient, over the quotient of their lengths, it is ``| sum_k (re_k + im_k) |``, which comes to
    ``| a c + b d + b c - a d | / (|x| |y|)``. Scaling a vector changes nothing; exchanging the two does.

    Args:
        x: (N, D); an odd width is padded with one 0.
        y: (N, D).

    Returns:
        (N,), in at least float32; 0 where one of the two is zero.

    Example:
        >>> angle_similarity(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 3.0]]))  # |1 - 1| / sqrt(2)
        tensor([0.])
        >>> angle_similarity(torch.tensor([[3.0, 3.0]]), torch.tensor([[2.0, 0.0]]))
        tensor([1.4142])
    """
    (a, b), (c, d) = (_halves(unit_vectors(each)) for each in (x, y))
    return (a * c + b * d + b * c - a * d).sum(dim=1).abs()


def _halves(vectors: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = F.pad(vectors, (0, vectors.shape[1] % 2)).chunk(2, dim=1)
    return real, imaginary


class AnglE(ScoreLoss):
    """Orders pairs by AnglE's similarity: CoSENT's formula of the angle in complex space in place of the cosine.

    A higher score should have a higher ``angle_similarity``, which unlike the cosine isn't flat where vectors are
    alike. Source: Li and Li 2023, AnglE (https://arxiv.org/abs/2309.12871); SeanLee97/AnglE, angle_emb/loss.py,
    whose ``angle_tau`` of 20, and sentence-transformers' ``scale``, are the inverse of the temperature. That code
    adds CoSENT (``cosine_w``) and NT-Xent of the positive pairs (``ibn_w``): objectives beside this one, as in
    recipe ``angle_nli``. The pairs of all ranks are compared.

    Args:
        temperature: Divisor of the similarity.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> x, y = torch.tensor([[2.0, 0.0], [3.0, 3.0]]), torch.tensor([[3.0, 3.0], [2.0, 0.0]])
        >>> AnglE(temperature=1.0)(torch.stack([x, y], dim=1), torch.tensor([1.0, 0.0]))  # log(1 + exp(sqrt(2)))
        tensor(1.6318)
    """

    whole_batch: ClassVar[bool] = True
    reads_vectors: ClassVar[bool] = True

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature = temperature

    def terms(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns ``cosent_loss`` of the angles' similarity at this temperature, (1,)."""
        similarities = angle_similarity(*pairs.unbind(1))
        return cosent_loss(similarities, scores, temperature=self.temperature).unsqueeze(0)
