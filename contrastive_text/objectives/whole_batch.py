"""Objectives of the pairs of a whole batch without negatives: losses such as VICReg, and consistency."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.similarity import full_precision, unit_vectors
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, build_head, check_train_only
from contrastive_text.losses import BatchLoss
from contrastive_text.losses.base import check_temperature, streamed_terms
from contrastive_text.losses.comparison import ExampleVectors
from contrastive_text.losses.ranking import jensen_shannon_terms
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.column_rules import build_sibling_group
from contrastive_text.objectives.columns import (
    Between,
    BetweenTexts,
    gather_triples,
    read_vectors,
    resolve_between,
)
from contrastive_text.objectives.terms import Terms, check_several_examples, feature_correlation, measure_vectors


class WholeBatch(Objective):
    """Applies a loss of the whole batch to all pairs: alignment and uniformity, Barlow Twins, VICReg or SIGReg.

    Anchors and positives of all ranks are gathered with an exact gradient, and each rank computes the same value.
    In evaluation mode ranks do not communicate. There are no negatives, and hard negatives are not read. Pairs
    are formed as in ``Contrastive``: several positives are averaged. If there are several comparisons, such as
    one for each role between ``views``, their values are added.

    It logs the same values as ``Contrastive``; ``negative_similarity`` is the mean cosine of texts of
    different examples. If the loss decorrelates features, ``off_diagonal`` (``metrics.off_diagonal``) is their
    correlation.

    Args:
        loss: Loss of the whole batch.
        head: Train-only head between embeddings and loss, such as ``ProjectorHead``; None for none.
        between: ``texts`` to pair the texts of an example, ``views`` to pair views of the same text, or a
            ``Between``.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: The head isn't train-only, or ``between`` is unknown.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.losses import AlignmentUniformity
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 2.0], [2.0, 0.0], [-1.0, 0.0]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> terms = WholeBatch(AlignmentUniformity())(Encoded(vectors, slots, text_ids=torch.arange(4)))
        >>> terms.total, terms.count
        (tensor(-5.), 1)
    """

    has_negatives = False

    def __init__(
        self,
        loss: BatchLoss,
        head: Head | None = None,
        between: Between | Literal["texts", "views"] = "texts",
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        check_train_only(head, "WholeBatch.head")
        self.loss = loss
        self.head = head
        self.between = between
        self._between = resolve_between(between, "WholeBatch")
        self.required_roles = self._between.reads
        self.optional_roles: tuple[Role, ...] = tuple(role for role in self._between.takes if role != "negative")
        self.collapse_advice = (loss.collapse_advice,)
        self._features = 0

    def build(self, features: int) -> None:
        """Builds the layers of the objective's train-only head."""
        self._features = build_head(self.head, features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the loss of the pairs of all ranks, the same on every rank.

        Raises:
            ValueError: A role lacks its two views.
        """
        vectors = read_vectors(encoded, (*self.required_roles, *self.optional_roles), self.head)
        local = list(self._between.arrange(encoded, vectors).values())
        gathered, offset = gather_triples(local, self.training, encoded.rank_sizes)
        local_rows = slice(offset, offset + len(local[0].anchor))
        return Terms.sum([self._terms(triples, local_rows, encoded.logged) for triples in gathered])

    def _terms(self, examples: ExampleVectors, local_rows: slice, logged: bool) -> Terms:
        ids = torch.stack([examples.anchor_ids, examples.positive_ids], dim=1)
        value = self.loss(examples.anchor, examples.positive, ids)
        if not logged:
            return Terms(total=value, count=1)
        # Siblings of a row are excluded from its negative similarity.
        examples = replace(examples, groups={"siblings": build_sibling_group(examples, effect="mask")})
        logs, weights = measure_vectors(examples.map(lambda rows: rows[local_rows]), examples, local_rows.start)
        if self.loss.decorrelates:
            logs["off_diagonal"] = feature_correlation(examples)
        return Terms(total=value, count=1, logs=logs, log_weights=weights)

    def check_examples(self, examples: int, negatives: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks that a step has two or more examples (ValueError). One example has no statistics."""
        check_several_examples(f"WholeBatch with {type(self.loss).__name__}", examples)

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Returns a note that there are no negatives, with a warning if there are fewer pairs than features."""
        text = f"none: {type(self.loss).__name__} is one value of the {batch_size} pairs of a step"
        text += "; hard negatives are not read" if negatives else ""
        if self.loss.decorrelates and batch_size <= self._features:
            text += (
                f"; the correlation matrix of {self._features} features has a rank of at most {batch_size - 1}, "
                "so that the features can't all be uncorrelated"
            )
        return f"{text}; accumulate_grad_batches doesn't add pairs"


class Consistency(Objective):
    """Jensen-Shannon divergence between an anchor's softmax over positives and its positive's over anchors.

    ``mean_i JS( softmax_j(cos(a_i, p_j) / T) || softmax_j(cos(p_i, a_j) / T) )``, over the columns of all ranks
    with an exact gradient. Anchors and positives are the two views of ``SameText``, or pairs. The value is 0 if
    all vectors are equal, so use this objective together with ``Contrastive``. Above 2^22 matrix entries the loss
    is streamed.

    Source: Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726), ranking consistency.

    Differs: the community code of RankCSE (perceptiveshawty/RankCSE) bounds the logarithm of the mean
    distribution below by 1e-7, which is above every logarithm of a probability. The remaining value is minus the
    mean entropy of the two softmaxes (-0.2600 on vectors whose divergence is 0.4167). It flattens both
    distributions and compares nothing. Results of that code are results of that other loss.

    Args:
        temperature: Divisor of the cosines.
        head: Train-only head before the cosines; None for none.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: The temperature is 0 or less, or the head isn't train-only.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> import torch
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
        >>> other = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [1.0, 0.0]])
        >>> [Consistency()(Encoded(vectors, slots, torch.arange(4))).total for vectors in (same, other)]
        [tensor(0.), tensor(0.6031)]
    """

    required_roles = ("anchor", "positive")
    optional_roles = ()
    has_negatives = False
    collapse_advice = ("a Contrastive objective in addition to Consistency",)

    def __init__(self, temperature: float = 0.05, head: Head | None = None, task: str | None = None) -> None:
        super().__init__(task)
        check_temperature(temperature)
        check_train_only(head, "Consistency.head")
        self.temperature = temperature
        self.head = head

    def check_examples(self, examples: int, negatives: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks that a step has two or more examples (ValueError). One example has a divergence of 0."""
        check_several_examples("Consistency", examples)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum of the divergences of the local rows and their number; see ``Objective.forward``."""
        local = BetweenTexts().arrange(encoded, read_vectors(encoded, self.required_roles, self.head))["texts"]
        (gathered,), _ = gather_triples([local], self.training, encoded.rank_sizes)
        anchor, positive, anchors, positives = (
            unit_vectors(vectors)
            for vectors in (local.anchor, local.positive, gathered.anchor, gathered.positive)
        )

        def divergences(rows: slice) -> Tensor:
            with full_precision(anchor.device):
                forwards = anchor[rows] @ positives.T / self.temperature
                backwards = positive[rows] @ anchors.T / self.temperature
                return jensen_shannon_terms(forwards, backwards)

        terms = streamed_terms(divergences, len(anchor), len(anchors))
        return Terms(total=terms.sum(), count=len(terms), rows={"loss": terms.detach()})
