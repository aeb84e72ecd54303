"""Supervised pairs: the class of two texts by a scorer, or how much they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import EPSILON, at_least_float32, full_precision
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, build_head, linear_exactly
from contrastive_text.losses import CosineMSE, ScoreLoss
from contrastive_text.objectives.supervised import Supervised, read_classes
from contrastive_text.objectives.terms import Terms


class Scorer(nn.Module, ABC):
    """Base class of scorers: a small network whose widths are known when encoder and classes are.

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
        """Makes what depends on the width D of the vectors and on the number of classes."""

    @abstractmethod
    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the classes' scores of pairs before the softmax; called outside autocast.

        Args:
            u: Vectors of the first texts, (N, D), in at least float32.
            v: Vectors of the second texts, (N, D).

        Returns:
            (N, classes); or (N, 1) for two classes: the log-odds of the second one.
        """


def pair_features(u: Tensor, v: Tensor, max_squared: bool = False) -> Tensor:
    """Returns the features of a classifier of pairs: u, v and |u - v|, and on request max(u, v) squared.

    Args:
        u: (N, D).
        v: (N, D).
        max_squared: Whether the square of the larger value of each feature comes last.

    Returns:
        (N, 3D), or (N, 4D).

    Example:
        >>> pair_features(torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 1.0]]), max_squared=True)
        tensor([[ 1.0000, -2.0000,  0.5000,  1.0000,  0.5000,  3.0000,  1.0000,  1.0000]])
    """
    parts = [u, v, (u - v).abs()]
    return torch.cat([*parts, torch.maximum(u, v).square()] if max_squared else parts, dim=1)


class ConcatenationScorer(Scorer):
    """A linear layer over u, v and |u - v|: the classifier of SBERT and of ConSERT.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3; Yan et al.
    2021, ConSERT (https://arxiv.org/abs/2105.11741), whose scripts add the square of max(u, v).

    Differs: SBERT's formula has no bias; its code has one, as here.

    Args:
        max_squared: Whether it reads max(u, v) squared too.

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
        """Makes the layer of 3D or 4D inputs."""
        self.linear = nn.Linear((4 if self.max_squared else 3) * features, classes)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the layer's output on ``pair_features``, (N, classes)."""
        if self.linear is None:
            raise RuntimeError("ConcatenationScorer: expected build(features, classes) before the first call")
        features = pair_features(at_least_float32(u), at_least_float32(v), max_squared=self.max_squared)
        return linear_exactly(self.linear, features)


class BilinearScorer(Scorer):
    """The form u^T W v + b: one for two classes, else one for each.

    With two classes the form is the log-odds of the second one, and cross entropy is the binary one. Source:
    the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), head of paraphrase.

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
        """Makes one matrix for two classes, else one for each, with torch's initial values."""
        self.bilinear = nn.Bilinear(features, features, 1 if classes == 2 else classes)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns the forms' values, (N, 1) or (N, classes)."""
        if self.bilinear is None:
            raise RuntimeError("BilinearScorer: expected build(features, classes) before the first call")
        u, v = at_least_float32(u), at_least_float32(v)
        weight, bias = self.bilinear.weight.to(u.dtype), self.bilinear.bias.to(u.dtype)
        return F.bilinear(u, v, weight, bias)


class CosineScorer(Scorer):
    """The cosine of two texts less a threshold, as the log-odds of the second of two classes; nothing is learned.

    It scores pairs by the vectors as they are: of an encoder that was trained contrastively, say. Source: the
    CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), unsupervised study, which
    doesn't say where its threshold lies. The evaluation code that the course hands out rounds the logistic
    function of what is predicted, which for a cosine is a threshold of 0.

    Args:
        threshold: The cosine above which a pair is of the second class.

    Raises:
        ValueError: A threshold below -1 or of 1 or more.

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
                f"CosineScorer.threshold: expected a cosine from -1 to below 1, got {threshold}; 0 is that of "
                "the CS224N course's evaluation"
            )
        self.threshold = threshold

    def build(self, features: int, classes: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks the number of classes.

        Raises:
            ValueError: Other than two.
        """
        if classes != 2:
            raise InvalidValueError(
                f"CosineScorer: expected two classes, such as 0 and 1, got {classes}; take ConcatenationScorer"
            )

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        """Returns cosines less the threshold, (N, 1)."""
        u, v = (F.normalize(at_least_float32(each), dim=1, eps=EPSILON) for each in (u, v))
        return (u * v).sum(dim=1, keepdim=True) - self.threshold


class PairClassification(Supervised[Classes]):
    """Cross entropy of the classes of pairs: SBERT's on inference data, ConSERT's joint training.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3,
    "classification objective"; Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.3,
    which adds 0.15 times the contrastive loss of each side. With two classes ``BilinearScorer`` makes it
    the binary cross entropy of the CS224N report.

    Args:
        classes: Number of classes, or their names in the order of the outputs (ConSERT's code: contradiction,
            entailment, neutral).
        scorer: From two vectors to the classes' scores; None for ``ConcatenationScorer``.
        head: A train-only head on both vectors, before the scorer; None for none.
        view: Which of several views of each text it reads, from 1.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: Fewer than two classes, a head that isn't train-only, or a view below 1.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> inference = PairClassification(["contradiction", "entailment", "neutral"])
        >>> inference.build(features=4)
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> pairs = Encoded(torch.eye(4), slots, torch.arange(4), target=torch.tensor([0.0, 2.0]))
        >>> inference.predict(pairs).shape
        torch.Size([2, 3])
    """

    reads: tuple[Role, ...] = ("anchor", "positive")

    def __init__(
        self,
        classes: int | list[str] | list[int],
        scorer: Scorer | None = None,
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        super().__init__(read_classes(classes, "PairClassification.classes"), head, view, task)
        self.classes = classes
        self.scorer = scorer or ConcatenationScorer()
        self.head = head

    def build(self, features: int) -> None:
        """Makes the layers of head and scorer."""
        self.scorer.build(build_head(self.head, features), len(self._target.names))

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the local pairs."""
        return self.class_terms(encoded)

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the classes' scores before the softmax, (N, classes).

        Raises:
            ValueError: A scorer with another number of outputs.
        """
        u, v = self.projected(encoded, self.head)
        with full_precision(u.device):
            scores = at_least_float32(self.scorer(u, v))
        classes = len(self._target.names)
        if scores.shape[1] == 1 and classes == 2:
            # log-odds z of the second class as scores (0, z): their cross entropy is the binary one of z
            return F.pad(scores, (1, 0))
        if scores.shape[1] != classes:
            raise InvalidValueError(
                f"PairClassification.scorer: expected {classes} outputs, one for each class, got "
                f"{scores.shape[1]} of {type(self.scorer).__name__}; make as many as its build is told"
            )
        return scores


class PairRegression(Supervised[Scores]):
    """The cosine of two texts, or what a loss makes of their vectors, against their score.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3, "regression
    objective"; the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), whose
    head stands before the cosine. A loss that orders pairs (``CoSENT``, ``AnglE``) compares those of all
    ranks, with an exact gradient. In evaluation mode no rank talks to another. What is predicted is the cosine,
    whatever the loss reads.

    Args:
        loss: The formula; None for ``CosineMSE``.
        low: The score of texts that have nothing in common; it becomes 0.
        high: The score of texts that mean the same; it becomes 1.
        head: A train-only head on both vectors, before the cosine; None for none.
        view: Which of several views of each text it reads, from 1.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: Bounds out of order, a head that isn't train-only, or a view below 1.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> vectors = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
        >>> pairs = Encoded(vectors, slots, torch.arange(2), target=torch.tensor([0.4]))
        >>> PairRegression().predict(pairs), PairRegression()(pairs).total
        (tensor([-0.6000]), tensor(1.))
    """

    reads: tuple[Role, ...] = ("anchor", "positive")

    def __init__(
        self,
        loss: ScoreLoss | None = None,
        low: float = 0.0,
        high: float = 5.0,
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        super().__init__(Scores(low=low, high=high), head, view, task)
        self.loss = loss or CosineMSE()
        self.low = low
        self.high = high
        self.head = head

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        build_head(self.head, features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the terms of the local pairs, or the one of all ranks' pairs, the same on every rank."""
        u, v = self.projected(encoded, self.head)
        pairs, scores = _cosines(u, v), self.known_target(encoded)
        if self.loss.reads_vectors:
            pairs = torch.stack([u, v], dim=1)
        if self.loss.whole_batch and self.training:
            sizes = gather_sizes(len(pairs), pairs.device, encoded.shares)
            pairs, scores = gather_all([pairs, scores], sizes)
        terms: Tensor = self.loss.terms(pairs, scores)
        return Terms(total=terms.sum(), count=len(terms))

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the cosine of each pair, (N,), in at least float32."""
        return _cosines(*self.projected(encoded, self.head))


def _cosines(u: Tensor, v: Tensor) -> Tensor:
    return (F.normalize(u, dim=1, eps=EPSILON) * F.normalize(v, dim=1, eps=EPSILON)).sum(dim=1)
