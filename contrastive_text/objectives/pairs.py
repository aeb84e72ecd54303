"""Supervised objectives for text pairs: classification with a scorer, and regression of a similarity score."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.targets import Classes, Scores
from contrastive_text.core.types import Role
from contrastive_text.heads import ConcatenationScorer, Head, Scorer, build_head, class_scores, cosines
from contrastive_text.losses import CosineMSE, ScoreLoss
from contrastive_text.objectives.supervised import Supervised, read_classes
from contrastive_text.objectives.terms import Terms


class PairClassification(Supervised[Classes]):
    """Classification of text pairs: cross-entropy of the classes that a scorer predicts from two vectors.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3, "classification
    objective", on natural language inference. Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741),
    section 3.3, adds 0.15 times the contrastive loss of each role (joint training). With two classes and
    ``BilinearScorer`` the loss is the binary cross-entropy of the CS224N report.

    Args:
        classes: Number of classes, or their names in the order of the outputs (ConSERT's code: contradiction,
            entailment, neutral).
        scorer: Network from two vectors to logits of the classes; None for ``ConcatenationScorer``.
        head: Train-only head on both vectors, before the scorer; None for none.
        view: Number of the view of each text that the objective reads, from 1.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: There are fewer than two classes, the head isn't train-only, or ``view`` is below 1.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> inference = PairClassification(["contradiction", "entailment", "neutral"])
        >>> inference.build(features=4)
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> pairs = Encoded(torch.eye(4), slots, torch.arange(4), target=torch.tensor([0.0, 2.0]))
        >>> inference.predict(pairs).shape
        torch.Size([2, 3])
    """

    required_roles: tuple[Role, ...] = ("anchor", "positive")

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
        """Builds the layers of the head and the scorer."""
        self.scorer.build(build_head(self.head, features), len(self._target.names))

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the local pairs and their number."""
        return self.class_terms(encoded)

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the logits of the classes for each pair, (N, classes).

        Raises:
            ValueError: The number of the scorer's outputs differs from the number of classes.
        """
        u, v = self.project_texts(encoded, self.head)
        return class_scores(self.scorer, u, v, len(self._target.names))


class PairRegression(Supervised[Scores]):
    """Regression of text pairs: compares the cosine of two texts, or their vectors, with a gold score.

    Source: Reimers & Gurevych 2019, Sentence-BERT (https://arxiv.org/abs/1908.10084), section 3, "regression
    objective". The CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings") applies a
    head before the cosine. A loss that orders pairs (``CoSENT``, ``AnglE``) compares the pairs of all ranks, with
    an exact gradient. In evaluation mode ranks do not communicate. The prediction is always the cosine.

    Args:
        loss: Loss that compares pairs with scores; None for ``CosineMSE``.
        low: Gold score of texts that have nothing in common; it is scaled to 0.
        high: Gold score of texts that mean the same; it is scaled to 1.
        head: Train-only head on both vectors, before the cosine; None for none.
        view: Number of the view of each text that the objective reads, from 1.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``low`` is not below ``high``, the head isn't train-only, or ``view`` is below 1.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> vectors = torch.tensor([[1.0, 2.0], [0.5, -1.0]])
        >>> pairs = Encoded(vectors, slots, torch.arange(2), target=torch.tensor([0.4]))
        >>> PairRegression().predict(pairs), PairRegression()(pairs).total
        (tensor([-0.6000]), tensor(1.))
    """

    required_roles: tuple[Role, ...] = ("anchor", "positive")

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
        """Builds the layers of the objective's train-only head."""
        build_head(self.head, features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum and the number of the loss terms of the local pairs.

        If the loss compares pairs with each other, there is one term of the pairs of all ranks, equal on every
        rank.
        """
        u, v = self.project_texts(encoded, self.head)
        pairs, scores = cosines(u, v), self.require_target(encoded)
        if self.loss.reads_vectors:
            pairs = torch.stack([u, v], dim=1)
        if self.loss.whole_batch and self.training:
            sizes = gather_sizes(len(pairs), pairs.device, encoded.rank_sizes)
            pairs, scores = gather_all([pairs, scores], sizes)
        terms: Tensor = self.loss.terms(pairs, scores)
        return Terms(total=terms.sum(), count=len(terms), rows={"loss": terms.detach()})

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the cosine of each pair, (N,), in at least float32."""
        return cosines(*self.project_texts(encoded, self.head))
