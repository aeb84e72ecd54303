"""Supervised pairs: the class of two texts, or how much they have in common."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import EPSILON, at_least_float32, full_precision
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, build_head
from contrastive_text.losses import CosineMSE, ScoreLoss
from contrastive_text.objectives.scorers import ConcatenationScorer, Scorer
from contrastive_text.objectives.supervised import Supervised, read_classes
from contrastive_text.objectives.terms import Terms


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
