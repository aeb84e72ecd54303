"""The objective of losses over the whole batch: which texts belong together, of all ranks, and no negatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, build_head, check_train_only
from contrastive_text.losses import BatchLoss
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import Between, named_between, read_vectors
from contrastive_text.objectives.column_rules import sibling_group
from contrastive_text.objectives.columns import gather_triples
from contrastive_text.objectives.health import features_alike, health
from contrastive_text.objectives.terms import Terms, check_compared


class WholeBatch(Objective):
    """One value of all pairs of a step: alignment and uniformity, Barlow Twins, VICReg, SIGReg.

    Anchors and positives of all ranks are gathered with an exact gradient, and each rank computes the same value.
    In evaluation mode no rank talks to another. Nothing is a negative: hard negatives take no part. What belongs
    together is as in ``Contrastive``, the mean over several positives too; where that is several things, as the
    two roles between ``views``, their values are added.

    Logged beside the loss are the figures of ``Contrastive``, where ``negative_similarity`` is that of texts that
    don't belong together; of a loss that asks features to differ, also ``off_diagonal``, their correlation
    (``metrics.off_diagonal``).

    Args:
        loss: The formula.
        head: A train-only head between embeddings and loss, such as ``ProjectorHead``; None for none.
        between: What belongs together: ``texts`` of an example, ``views`` of each of its texts, or a ``Between``.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: A head that isn't train-only, or an unknown ``between``.

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
        self._between = named_between(between, "WholeBatch")
        self.reads = self._between.reads
        self.takes: tuple[Role, ...] = tuple(role for role in self._between.takes if role != "negative")
        self.remedies = (loss.remedy,)
        self._features = 0

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        self._features = build_head(self.head, features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the value of all ranks' pairs, the same on every rank.

        Raises:
            ValueError: A role without its two views.
        """
        vectors = read_vectors(encoded, (*self.reads, *self.takes), self.head)
        local = list(self._between.triples(encoded, vectors).values())
        every, offset = gather_triples(local, self.training, encoded.shares)
        own = slice(offset, offset + len(local[0].anchor))
        return Terms.added([self._terms(each, own, encoded.logged) for each in every])

    def _terms(self, every: Triples, own: slice, logged: bool) -> Terms:
        ids = torch.stack([every.anchor_ids, every.positive_ids], dim=1)
        value = self.loss(every.anchor, every.positive, ids)
        if not logged:
            return Terms(total=value, count=1)
        # Other positives of a row's query don't count as texts that it should be unlike.
        every = replace(every, groups={"siblings": sibling_group(every, effect="mask")})
        logs, weights = health(every.map(lambda rows: rows[own]), every, own.start)
        if self.loss.decorrelates:
            logs["off_diagonal"] = features_alike(every)
        return Terms(total=value, count=1, logs=logs, log_weights=weights)

    def check_examples(self, examples: int, negatives: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks that a step has two examples or more: one alone has no statistics."""
        check_compared(f"WholeBatch with {type(self.loss).__name__}", examples)

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Returns that there are none, and whether there are fewer pairs than features that should differ."""
        said = f"none: {type(self.loss).__name__} is one value of the {batch_size} pairs of a step"
        said += "; hard negatives take no part" if negatives else ""
        if self.loss.decorrelates and batch_size <= self._features:
            said += (
                f"; the correlation of {self._features} features has a rank of {batch_size - 1} at most, and "
                "can't become that of independent ones"
            )
        return f"{said}; accumulate_grad_batches makes it no larger"
