"""Scorers: small networks that classify a pair of texts from their two vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import EPSILON, at_least_float32, full_precision
from contrastive_text.heads.base import linear_in_full_precision


class Scorer(nn.Module, ABC):
    """Base class of scorers: small networks that classify a pair of texts from their two vectors.

    A subclass implements ``forward``, and ``build`` if it has layers.

    Example:
        >>> class Difference(Scorer):
        ...     def build(self, features, classes):
        ...         self.layer = nn.Linear(features, classes)
        ...
        ...     def forward(self, u, v):
        ...         return self.layer((u - v).abs())
        >>> scorer = Difference()
        >>> scorer.build(features=4, classes=3)
        >>> scorer(torch.zeros(2, 4), torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    def build(self, features: int, classes: int) -> None:  # a scorer may have nothing to build
        """Builds the scorer's layers for vectors of width D and a number of classes."""

    @abstractmethod
    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the logits of the classes for each pair. Called outside autocast.

        Args:
            u: Vectors of the first texts, (N, D), in at least float32.
            v: Vectors of the second texts, (N, D).

        Returns:
            (N, classes); or for two classes the log-odds of the second class, (N, 1).
        """


def pair_features(u: Tensor, v: Tensor, max_squared: bool = False) -> Tensor:
    """Concatenates the features of a pair classifier: u, v and |u - v|, optionally also max(u, v) squared.

    Args:
        u: Vectors of the first texts, (N, D).
        v: Vectors of the second texts, (N, D).
        max_squared: Whether to append max(u, v) squared.

    Returns:
        (N, 3D), or (N, 4D).

    Example:
        >>> pair_features(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 1.0]]), max_squared=True)
        tensor([[ 1.0000, -2.0000,  0.5000,  1.0000,  0.5000,  3.0000,  1.0000,  1.0000]])
    """
    parts = [u, v, (u - v).abs()]
    return torch.cat([*parts, torch.maximum(u, v).square()] if max_squared else parts, dim=1)


class ConcatenationScorer(Scorer):
    """Linear layer over u, v and |u - v|: the pair classifier of Sentence-BERT and ConSERT.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3; Yan et al.
    2021, ConSERT (https://arxiv.org/abs/2105.11741). ConSERT's scripts add the square of max(u, v).

    Differs: SBERT's formula has no bias; SBERT's code has a bias, as here.

    Args:
        max_squared: Whether the layer also reads max(u, v) squared.

    Example:
        >>> scorer = ConcatenationScorer()
        >>> scorer.build(features=768, classes=3)
        >>> scorer(torch.zeros(2, 768), torch.zeros(2, 768)).shape
        torch.Size([2, 3])
    """

    def __init__(self, max_squared: bool = False) -> None:
        super().__init__()
        self.max_squared = max_squared
        self.linear: nn.Linear | None = None

    def build(self, features: int, classes: int) -> None:
        """Builds the scorer's linear layer, with 3D or 4D inputs."""
        self.linear = nn.Linear((4 if self.max_squared else 3) * features, classes)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the logits of the classes for each pair, (N, classes)."""
        if self.linear is None:
            raise RuntimeError("ConcatenationScorer: expected build(features, classes) before the first call")
        features = pair_features(at_least_float32(u), at_least_float32(v), max_squared=self.max_squared)
        return linear_in_full_precision(self.linear, features)


class BilinearScorer(Scorer):
    """Bilinear form u^T W v + b of two vectors: one form for two classes, else one form for each class.

    With two classes the form is the log-odds of the second class, and the loss is binary cross-entropy. Source:
    the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), paraphrase head.

    Example:
        >>> scorer = BilinearScorer()
        >>> scorer.build(features=4, classes=2)
        >>> scorer(torch.zeros(3, 4), torch.zeros(3, 4)).shape
        torch.Size([3, 1])
    """

    def __init__(self) -> None:
        super().__init__()
        self.bilinear: nn.Bilinear | None = None

    def build(self, features: int, classes: int) -> None:
        """Builds one matrix for two classes, else one matrix for each class, with torch's initialization."""
        self.bilinear = nn.Bilinear(features, features, 1 if classes == 2 else classes)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the values of the bilinear forms for each pair, (N, 1) or (N, classes)."""
        if self.bilinear is None:
            raise RuntimeError("BilinearScorer: expected build(features, classes) before the first call")
        u, v = at_least_float32(u), at_least_float32(v)
        weight, bias = self.bilinear.weight.to(u.dtype), self.bilinear.bias.to(u.dtype)
        return F.bilinear(u, v, weight, bias)


class CosineScorer(Scorer):
    """Untrained scorer: the cosine of two texts minus a threshold is the log-odds of the second of two classes.

    Use it to classify pairs with the vectors of an encoder that was trained contrastively. Source: the CS224N
    report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), unsupervised study. The report
    does not name its threshold. The course's evaluation code rounds the logistic function of a prediction, so
    that a cosine has a threshold of 0.

    Args:
        threshold: Cosine above which a pair has the second class.

    Raises:
        ValueError: The threshold is below -1, or 1 or more.

    Example:
        >>> scorer = CosineScorer(threshold=0.5)
        >>> scorer(torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor([[0.5000],
                [0.3000]])
    """

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        if not -1 <= threshold < 1:
            raise InvalidValueError(
                f"CosineScorer.threshold: expected a cosine from -1 to below 1, got {threshold}; the CS224N "
                "course's evaluation has 0"
            )
        self.threshold = threshold

    def build(self, features: int, classes: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks that the scorer has exactly two classes.

        Raises:
            ValueError: The number of classes is not two.
        """
        if classes != 2:
            raise InvalidValueError(
                f"CosineScorer: expected two classes, such as 0 and 1, got {classes}; use ConcatenationScorer"
            )

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the cosine of each pair minus the threshold, (N, 1)."""
        u, v = (F.normalize(at_least_float32(vectors), dim=1, eps=EPSILON) for vectors in (u, v))
        return (u * v).sum(dim=1, keepdim=True) - self.threshold


def class_scores(scorer: Scorer, u: Tensor, v: Tensor, classes: int) -> Tensor:
    """Returns the logits of the classes of each pair from a scorer, (N, classes), in at least float32.

    Args:
        scorer: Scorer whose ``build`` has run.
        u: Vectors of the first texts, (N, D).
        v: Vectors of the second texts, (N, D).
        classes: Number of classes.

    Raises:
        ValueError: The number of the scorer's outputs differs from the number of classes.

    Example:
        >>> class_scores(CosineScorer(), torch.ones(1, 2), torch.ones(1, 2), classes=2)
        tensor([[0.0000, 1.0000]])
    """
    with full_precision(u.device):
        scores = at_least_float32(scorer(u, v))
    if scores.shape[1] == 1 and classes == 2:
        # Softmax cross-entropy of the logits (0, z) is binary cross-entropy of the log-odds z.
        return F.pad(scores, (1, 0))
    if scores.shape[1] != classes:
        raise InvalidValueError(
            f"PairClassification.scorer: expected {classes} outputs, one for each class, got "
            f"{scores.shape[1]} from {type(scorer).__name__}; build the scorer with as many outputs as "
            "classes"
        )
    return scores


def cosines(u: Tensor, v: Tensor) -> Tensor:
    """Returns the cosine of each pair of vectors, (N, D) and (N, D) -> (N,).

    Example:
        >>> cosines(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([0.6000])
    """
    return (F.normalize(u, dim=1, eps=EPSILON) * F.normalize(v, dim=1, eps=EPSILON)).sum(dim=1)
