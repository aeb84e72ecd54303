"""Supervised objectives: classification and regression of single texts and of text pairs."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.targets import Classes, Scores, Target
from contrastive_text.core.types import Role
from contrastive_text.heads import (
    ConcatenationScorer,
    Head,
    Scorer,
    apply_in_full_precision,
    build_head,
    check_train_only,
    class_scores,
    cosines,
    linear_in_full_precision,
    project_roles,
)
from contrastive_text.losses import CosineMSE, ScoreLoss
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms

_T = TypeVar("_T", bound=Target)


class Supervised(Objective, Generic[_T]):
    """Base class of objectives that compare predictions from one view of each text with a target.

    Args:
        target: Kind of target that the objective reads: classes or scores.
        head: Train-only head; None for none. This class only checks it. The subclass stores it, so that the order
            of its submodules determines the order of weights in checkpoints.
        view: Number of the view of each text that the objective reads, from 1.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: The head isn't train-only, or ``view`` is below 1.
    """

    optional_roles: tuple[Role, ...] = ()
    predicts: bool = True

    def __init__(self, target: _T, head: Head | None, view: int, task: str | None) -> None:
        super().__init__(task)
        where = type(self).__name__
        check_train_only(head, f"{where}.head")
        self.view: int = at_least(f"{where}.view", view, 1, "1 is the first view")
        self._target = target

    @property
    def target(self) -> _T:
        """Kind of target that the objective reads: classes, or scores with their bounds."""
        return self._target

    def texts(self, encoded: Encoded, role: Role) -> Tensor:
        """Returns the vectors of one view of the first text of a role, (N, D).

        Raises:
            ValueError: The role has no slot for this view.
        """
        vectors = encoded.role(role)
        if self.view > (slots := vectors.shape[1]):
            raise InvalidValueError(
                f"{type(self).__name__}.view: expected 1 to {slots}, the number of slots of {role}, got "
                f"{self.view}; set view, or the pairing's views_per_text"
            )
        return vectors[:, self.view - 1]

    def project_texts(self, encoded: Encoded, head: Head | None) -> list[Tensor]:
        """Returns the vectors of each role's first text after a head, (N, D') each, computed outside autocast."""
        texts = [self.texts(encoded, role) for role in self.required_roles]
        return project_roles(head, texts, lambda vectors: apply_in_full_precision(head, vectors))

    def require_target(self, encoded: Encoded) -> Tensor:
        """Returns the target of every example, (N,).

        Raises:
            ValueError: The batch has no target.
        """
        if encoded.target is None:
            raise InvalidValueError(
                f"{type(self).__name__}: expected a label or a score for every example, got a batch without a "
                "target; give a file with a label or score column, and a pairing that reads it"
            )
        return encoded.target

    def class_terms(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the predicted logits, their number, and the accuracy."""
        scores, number = self.predict(encoded), self.require_target(encoded).long()
        hits = (scores.detach().argmax(dim=1) == number).sum()
        rows = {} if self.training else {"loss": cross_entropy(scores.detach(), number, reduction="none")}
        return Terms(
            total=cross_entropy(scores, number, reduction="sum"),
            count=len(number),
            logs={"accuracy": hits / max(len(number), 1)},
            rows=rows,
        )


def read_classes(classes: int | list[str] | list[int], where: str) -> Classes:
    """Builds the classes from an option: their number, or names, which YAML may read as numbers."""
    return Classes.of(classes if isinstance(classes, int) else [str(name) for name in classes], where)


def build_outputs(name: str, head: Head | None, features: int, outputs: int) -> nn.Linear | None:
    """Builds the layers of an objective's head; without a head, returns one linear layer in its place.

    Args:
        name: Name of the objective, for the error.
        head: Head of the objective, or None.
        features: Number of features of the vectors.
        outputs: Number of outputs.

    Raises:
        ValueError: The head has another number of outputs.
    """
    if head is None:
        return nn.Linear(features, outputs)
    if (width := build_head(head, features)) != outputs:
        raise InvalidValueError(
            f"{name}.head: expected out_features: {outputs}, one for each "
            f"{'score' if outputs == 1 else 'class'}, got {width}; set out_features of "
            f"{type(head).__name__}, or remove the head for one linear layer"
        )
    return None


def apply_outputs(name: str, head: Head | None, linear: nn.Linear | None, vectors: Tensor) -> Tensor:
    """Returns the outputs of a head, or of the linear layer in its place, in at least float32.

    Args:
        name: Name of the objective, for the error.
        head: Head of the objective, or None.
        linear: Layer from ``build_outputs``.
        vectors: Vectors, (N, D).
    """
    if head is not None:
        return apply_in_full_precision(head, vectors)
    if linear is None:
        raise RuntimeError(f"{name}: expected build(features) before the first call")
    return linear_in_full_precision(linear, vectors)


class _OfTexts(Supervised[_T]):
    """Base class of objectives that predict from one text with a head, or with one linear layer."""

    required_roles: tuple[Role, ...] = ("anchor",)

    def __init__(self, target: _T, outputs: int, head: Head | None, view: int, task: str | None) -> None:
        super().__init__(target, head, view, task)
        self.head = head
        self.linear: nn.Linear | None = None
        self._outputs = outputs

    def build(self, features: int) -> None:
        """Builds the layers of the head, or the linear layer.

        Raises:
            ValueError: The head has the wrong number of outputs.
        """
        self.linear = build_outputs(type(self).__name__, self.head, features, self._outputs)

    def outputs(self, encoded: Encoded) -> Tensor:
        """Returns the outputs of each text, (N, outputs), in at least float32."""
        vectors = self.texts(encoded, "anchor")
        return apply_outputs(type(self).__name__, self.head, self.linear, vectors)


class TextClassification(_OfTexts[Classes]):
    """Classification of texts: cross-entropy of the class of a text, or of two texts joined in one sequence.

    Source: the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), whose
    sentiment head is ``MLPHead(hidden_features=768, out_features=5, dropout=0.3)``. With the pairing
    ``OneSequence`` and ``FineTuningHead`` it is BERT's fine-tuning on pairs (Devlin et al. 2019,
    https://arxiv.org/abs/1810.04805).

    Args:
        classes: Number of classes, or their names in the order of the outputs.
        head: Train-only head whose outputs are the logits of the classes; None for one linear layer.
        view: Number of the view of each text that the objective reads, from 1.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: There are fewer than two classes, the head isn't train-only, or ``view`` is below 1.

    Example:
        >>> import torch
        >>> from contrastive_text.core.types import Slot
        >>> sentiment = TextClassification(["bad", "good"])
        >>> sentiment.build(features=4)
        >>> texts = Encoded(torch.eye(4), (Slot("anchor", 0),), torch.arange(4), target=torch.ones(4))
        >>> sentiment.predict(texts).shape
        torch.Size([4, 2])
    """

    def __init__(
        self,
        classes: int | list[str] | list[int],
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        target = read_classes(classes, "TextClassification.classes")
        super().__init__(target, len(target.names), head, view, task)
        self.classes = classes

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross-entropy of the local texts and their number."""
        return self.class_terms(encoded)

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the logits of the classes for each text, (N, classes)."""
        return self.outputs(encoded)


class TextRegression(_OfTexts[Scores]):
    """Regression of texts: squared error of a predicted score of a text, or of two texts joined in one sequence.

    Source: BERT's fine-tuning on STS-B (Devlin et al. 2019, https://arxiv.org/abs/1810.04805). Scores are divided
    by 5 as in RoBERTa's code (fairseq, ``examples/roberta/preprocess_GLUE_tasks.sh``).

    Args:
        low: Gold score of texts that have nothing in common; it is scaled to 0.
        high: Gold score of texts that mean the same; it is scaled to 1.
        head: Train-only head with one output; None for one linear layer.
        view: Number of the view of each text that the objective reads, from 1.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``low`` is not below ``high``, the head isn't train-only, or ``view`` is below 1.

    Example:
        >>> import torch
        >>> from contrastive_text.core.types import Slot
        >>> similarity = TextRegression()
        >>> similarity.build(features=4)
        >>> texts = Encoded(torch.eye(4), (Slot("anchor", 0),), torch.arange(4), target=torch.ones(4))
        >>> similarity.predict(texts).shape
        torch.Size([4])
    """

    def __init__(
        self,
        low: float = 0.0,
        high: float = 5.0,
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        super().__init__(Scores(low=low, high=high), 1, head, view, task)
        self.low = low
        self.high = high

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed squared errors of the local texts and their number."""
        errors = (self.predict(encoded) - self.require_target(encoded)).square()
        return Terms(total=errors.sum(), count=len(errors), rows={"loss": errors.detach()})

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the predicted score of each text, 0 for ``low`` and 1 for ``high``, (N,)."""
        return self.outputs(encoded).squeeze(1)


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
