"""Losses of scored pairs: fit the cosine of two texts to a gold score, or order pairs by their scores."""

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
    """Base class of losses that compare the cosines of pairs, or their vectors, with gold scores.

    A subclass implements ``terms``.

    Attributes:
        whole_batch: Whether the loss compares pairs with each other and needs the pairs of all ranks. If false,
            each pair has its own term.
        reads_vectors: Whether the loss reads the two vectors of each pair instead of their cosine.

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
        """Returns the loss terms of N pairs. Their mean is the loss.

        Args:
            pairs: Cosine of the two texts of each pair, (N,), or with ``reads_vectors`` their vectors, (N, 2, D),
                in at least float32.
            scores: Gold score of each pair, from 0 (nothing in common) to 1 (the same meaning), (N,).

        Returns:
            One term per pair, (N,); with ``whole_batch`` one term of all pairs, (1,).
        """

    def forward(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns the loss of N pairs.

        Args:
            pairs: Cosines (N,), or with ``reads_vectors`` vectors (N, 2, D).
            scores: Gold scores, (N,).

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: The shapes of pairs and scores don't fit together.
        """
        text = f"({len(scores)}, 2, D)" if self.reads_vectors else f"({len(scores)},)"
        shape = (len(scores), 2, pairs.shape[-1]) if self.reads_vectors else (len(scores),)
        if tuple(pairs.shape) != shape or scores.ndim != 1:
            raise InvalidValueError(
                f"{type(self).__name__}: expected {'vectors' if self.reads_vectors else 'cosines'} {text} for "
                f"scores (N,), got {tuple(pairs.shape)} and {tuple(scores.shape)}"
            )
        return self.terms(at_least_float32(pairs), scores).mean()


class CosineMSE(ScoreLoss):
    """Mean squared error between the cosine of each pair and its gold score.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3, "regression
    objective". The CS224N report names no loss for STS; its recipes use this loss with gold scores divided by 5.

    Example:
        >>> CosineMSE()(torch.tensor([0.5, 1.0]), torch.tensor([1.0, 1.0]))
        tensor(0.1250)
    """

    def terms(self, pairs: Tensor, scores: Tensor) -> Tensor:
        """Returns the squared error of each pair's cosine, (N,)."""
        return (pairs - scores.to(pairs.dtype)).square()


def cosent_loss(cosines: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Returns the CoSENT loss: a penalty for pairs whose cosines are not in the order of their gold scores.

    ``log( 1 + sum over i, j with score_i > score_j of exp((cos_j - cos_i) / T) )``

    It takes O(N log N) time and O(N) memory: pairs are sorted by score, and cumulative sums cover the pairs of
    lower scores.

    Args:
        cosines: Cosines, or any other similarities, of N pairs, (N,).
        scores: Gold scores of the pairs, (N,).
        temperature: Divisor of the cosine.

    Returns:
        A scalar; 0 if all scores are equal.

    Example:
        >>> cosent_loss(torch.tensor([0.2, 0.7]), torch.tensor([1.0, 0.0]), temperature=0.5)
        tensor(1.3133)
    """
    scores, order = scores.sort()
    # Cumulative sums of N terms are exact to float32 only in float64, which MPS lacks.
    precise = cosines.dtype if cosines.device.type == "mps" else torch.float64
    logits = cosines[order].to(precise) / temperature
    lower = torch.searchsorted(scores, scores)  # how many pairs have a lower score
    below = torch.logcumsumexp(logits, dim=0)[(lower - 1).clamp(min=0)]
    excess = torch.where(lower > 0, below - logits, -torch.inf)
    return torch.logsumexp(torch.cat([excess.new_zeros(1), excess]), dim=0).to(cosines.dtype)


class CoSENT(ScoreLoss):
    """CoSENT: trains pairs with higher gold scores to have higher cosines.

    Only the order of the scores counts, as in Spearman's correlation. Pairs with equal scores are not compared.
    The pairs of all ranks are compared. Source: Su 2022 (https://kexue.fm/archives/8847). Its lambda of 20, and
    sentence-transformers' ``scale``, are the inverse of the temperature.

    Args:
        temperature: Divisor of the cosine.

    Raises:
        ValueError: The temperature is 0 or less.

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
        """Returns the CoSENT loss of all pairs, (1,)."""
        return cosent_loss(pairs, scores, temperature=self.temperature).unsqueeze(0)


def angle_similarity(x: Tensor, y: Tensor) -> Tensor:
    """Returns the AnglE similarity of vector pairs: the absolute sum of the parts of their complex quotient.

    The first half of a vector are real parts, the second half imaginary parts: ``x = a + i b``, ``y = c + i d``.
    The similarity is ``| sum_k (re_k + im_k) |`` of the quotient x / y, divided by the quotient of their lengths:
    ``| a c + b d + b c - a d | / (|x| |y|)``. It doesn't change with the length of a vector, but is not
    symmetric.

    Args:
        x: First vectors, (N, D); an odd width is padded with one 0.
        y: Second vectors, (N, D).

    Returns:
        (N,), in at least float32; 0 if a vector of the pair is zero.

    Example:
        >>> angle_similarity(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 3.0]]))  # |1 - 1| / sqrt(2)
        tensor([0.])
        >>> angle_similarity(torch.tensor([[3.0, 3.0]]), torch.tensor([[2.0, 0.0]]))
        tensor([1.4142])
    """
    (a, b), (c, d) = (_halves(unit_vectors(vectors)) for vectors in (x, y))
    return (a * c + b * d + b * c - a * d).sum(dim=1).abs()


def _halves(vectors: Tensor) -> tuple[Tensor, Tensor]:
    real, imaginary = F.pad(vectors, (0, vectors.shape[1] % 2)).chunk(2, dim=1)
    return real, imaginary


class AnglE(ScoreLoss):
    """AnglE: the CoSENT loss with the angle of vectors in complex space instead of their cosine.

    Pairs with higher gold scores are trained to have a higher ``angle_similarity``. Unlike the cosine, it has a
    gradient for vectors that are nearly equal. The pairs of all ranks are compared. Source: Li and Li 2023, AnglE
    (https://arxiv.org/abs/2309.12871); SeanLee97/AnglE, angle_emb/loss.py. Its ``angle_tau`` of 20, and
    sentence-transformers' ``scale``, are the inverse of the temperature. That code adds CoSENT (``cosine_w``) and
    NT-Xent of the positive pairs (``ibn_w``). Here these are further objectives, as in recipe ``angle_nli``.

    Args:
        temperature: Divisor of the similarity.

    Raises:
        ValueError: The temperature is 0 or less.

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
        """Returns the CoSENT loss of the angle similarities of all pairs, (1,)."""
        similarities = angle_similarity(*pairs.unbind(1))
        return cosent_loss(similarities, scores, temperature=self.temperature).unsqueeze(0)
