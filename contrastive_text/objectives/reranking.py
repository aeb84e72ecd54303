"""Objective of a reranker, which scores a query and a text in one sequence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError, above
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, check_train_only
from contrastive_text.losses import RankLoss
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.supervised import apply_outputs, build_outputs
from contrastive_text.objectives.terms import Terms


class Reranking(Objective):
    """Trains a reranker: one score for a query and a text in one sequence, for a positive and hard negatives.

    The pairing is ``OneSequence``, and a row has a query, a positive and hard negatives of a first stage. Without
    a loss each score is the log-odds that the text is relevant, and the loss is binary cross-entropy over all
    texts: monoBERT (Nogueira and Cho 2019, https://arxiv.org/abs/1901.04085, section 2). A ``RankLoss`` compares
    the scores with the teacher scores of the data: ``MarginMSE`` (Hofstätter et al. 2020,
    https://arxiv.org/abs/2010.02666, section 4), ``KLDivergence``, ``ListNet`` or ``ListMLE``.

    It logs ``ndcg@10`` and ``mrr@10`` of the order of each row's own texts, also for held-out rows. Equal scores
    count against the positive.

    Args:
        loss: Loss that compares the scores with teacher scores; None for binary cross-entropy with hard labels.
        positive_weight: Weight of a positive in the cross-entropy, such as the number of negatives of a row.
        head: Train-only head with one output; None for one linear layer.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``positive_weight`` is not above 0, it is set with a loss that doesn't read it, or the head
            isn't train-only.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> rows = Encoded(torch.eye(2), (Slot("anchor", 0), Slot("negative", 0)), torch.arange(2))
        >>> objective = Reranking()
        >>> objective.build(features=2)
        >>> objective.scores(rows).shape
        torch.Size([1, 2])
    """

    required_roles: tuple[Role, ...] = ("anchor", "negative")
    optional_roles: tuple[Role, ...] = ()

    def __init__(
        self,
        loss: RankLoss | None = None,
        positive_weight: float = 1.0,
        head: Head | None = None,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        check_train_only(head, "Reranking.head")
        self.loss = loss
        self.positive_weight = above("Reranking.positive_weight", positive_weight, advice="1 is usual")
        if loss is not None and positive_weight != 1:
            raise InvalidValueError(
                f"Reranking.positive_weight: expected 1 with {type(loss).__name__}, which has no labels, got "
                f"{positive_weight}; remove positive_weight, or the loss"
            )
        self.head = head
        self.linear: nn.Linear | None = None
        self.reads_scores = loss is not None

    def build(self, features: int) -> None:
        """Builds the layers of the head, or the linear layer.

        Raises:
            ValueError: The head has several outputs.
        """
        self.linear = build_outputs("Reranking", self.head, features, outputs=1)

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that rows have hard negatives (ValueError). The order of one text is constant."""
        if not negatives:
            raise InvalidValueError(
                f"data.train: expected hard negatives for Reranking, got {examples} rows a step without any; "
                "write them with contrastive-text mine --form tuples"
            )

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str | None:  # noqa: ARG002  # the base's signature
        """Returns the number of hard negatives of a row, for the run's summary."""
        return f"{negatives} per anchor: {negatives} hard negatives of the row"

    def scores(self, encoded: Encoded) -> Tensor:
        """Returns the scores of each row's positive and hard negatives, (N, 1 + K), in at least float32."""
        negatives = encoded.role("negative")
        vectors = torch.cat([encoded.role("anchor")[:, :1], negatives], dim=1)
        outputs = apply_outputs("Reranking", self.head, self.linear, vectors.flatten(0, 1))
        return outputs.reshape(vectors.shape[:2])

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum and the number of the loss terms of the local rows; see ``Objective.forward``.

        A term of the cross-entropy is the mean over a row's texts.

        Raises:
            ValueError: The loss reads teacher scores, and the batch has none.
        """
        scores = self.scores(encoded)
        ids = encoded.role_ids("negative")
        ids = ids if ids.ndim == 2 else ids[..., 0]
        missing = torch.cat([ids.new_zeros(len(ids), 1, dtype=torch.bool), ids == MASKED_ID], dim=1)
        terms = self._terms(scores, missing, encoded.scores)
        orders = _order(scores.detach(), missing) if encoded.logged else {}
        logs = {name: values.mean() for name, values in orders.items()}
        if self.loss is not None and encoded.scores is not None and encoded.logged:
            logs |= self.loss.target_figures(encoded.scores.nan_to_num(nan=0.0).to(scores), missing)
        return Terms(total=terms.sum(), count=len(terms), logs=logs, rows={**orders, "loss": terms.detach()})

    def _terms(self, scores: Tensor, missing: Tensor, teacher: Tensor | None) -> Tensor:
        """Returns the loss term of each row, (N,)."""
        if self.loss is None:
            labels, weights = torch.zeros_like(scores), torch.ones_like(scores)
            labels[:, 0], weights[:, 0] = 1.0, self.positive_weight
            losses = binary_cross_entropy_with_logits(scores, labels, weights, reduction="none")
            return losses.masked_fill(missing, 0.0).sum(dim=1) / (~missing).sum(dim=1)
        if teacher is None:
            raise InvalidValueError(
                "Reranking: expected teacher scores for each row, got a batch without scores; give a file with a "
                "column of scores, as contrastive-text score writes it"
            )
        target = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return self.loss.terms(scores, teacher.nan_to_num(nan=0.0).to(scores), target, missing)


def _order(scores: Tensor, missing: Tensor) -> Mapping[str, Tensor]:
    """Returns the metrics of the order of each row's texts, (N,). The first text is the only relevant one."""
    others = scores[:, 1:].masked_fill(missing[:, 1:], -torch.inf)
    ranks = 1 + (others >= scores[:, :1]).sum(dim=1).float()  # as an answer's rank: ties count against it
    is_near = ranks <= 10
    values = {"ndcg@10": 1 / (1 + ranks).log2(), "mrr@10": 1 / ranks}
    return {name: value * is_near for name, value in values.items()}
