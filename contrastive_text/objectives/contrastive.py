"""The contrastive objective: which roles are compared, over all ranks, and what stays out."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.distributed import gather_rows, gather_sizes, rank
from contrastive_text.heads import Head
from contrastive_text.losses import InfoNCE, Loss, Triples, at_least_float32, cosine_similarity_matrix
from contrastive_text.objectives.base import Objective, Terms
from contrastive_text.types import Encoded, Role

_LOGGED_ROWS = 256
"""Rows that the logged figures look at: enough for two digits, and no cost beside a large batch's."""


class Contrastive(Objective):
    """Anchors against positives, the rest of the batch of all ranks as negatives.

    Several positives of an example are averaged before normalisation (Giorgi et al. 2021, DeCLUTR,
    https://arxiv.org/abs/2006.03659, section 3.2). Rows stay local, columns come from every rank with an
    exact gradient. In evaluation mode no rank talks to another.

    Differs: a text that occurs twice in a batch is a false negative, which the authors' codes keep and
    dropout hides; here its columns are left out, unless ``mask_duplicates`` is off.

    Args:
        loss: The formula; None for ``InfoNCE``.
        head: A train-only head between embeddings and loss; None for none.
        mask_duplicates: Whether texts equal to a row's own text or to its positive are no negatives of it.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: A head that isn't train-only.
    """

    reads: ClassVar[tuple[Role, ...]] = ("anchor", "positive")

    def __init__(
        self,
        loss: Loss | None = None,
        head: Head | None = None,
        mask_duplicates: bool = True,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        if head is not None and not head.train_only:
            raise ValueError(
                f"Contrastive.head: expected a head with train_only: true, got {type(head).__name__} with false; "
                "a head that inference keeps stands in the module: set --model.head instead"
            )
        self.loss = loss or InfoNCE()
        self.head = head
        self.mask_duplicates = mask_duplicates

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        if self.head is not None:
            self.head.build(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Gives the terms of the local rows; see ``Objective.forward``."""
        local, every, offset = self._gather(self._triples(encoded))
        terms = torch.cat(
            [
                self.loss.terms(block.rows, block.columns, block.target, forbid=block.forbid, own=block.own)
                for block in self.loss.comparisons(local, every, offset)
            ]
        )
        return Terms(
            total=terms.sum(),
            count=len(terms),
            reduction=self.loss.reduction,
            logs=_health(local, every, offset),
        )

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Says how many negatives an anchor meets in a step; accumulation adds none."""
        same_side = batch_size - 1 if self.loss.same_side else 0
        total = batch_size - 1 + same_side + batch_size * negatives
        parts = [f"{batch_size - 1} other positives"]
        parts += [f"{same_side} texts of its own side"] if same_side else []
        parts += [f"{batch_size * negatives} hard negatives"] if negatives else []
        return f"{total} per anchor: {', '.join(parts)}; accumulate_grad_batches adds none"

    def _triples(self, encoded: Encoded) -> Triples:
        def project(role: Role) -> Tensor:
            vectors = encoded.role(role)
            return at_least_float32(vectors if self.head is None else self.head(vectors))

        has_negatives = encoded.role("negative").shape[1] > 0
        return Triples(
            anchor=project("anchor")[:, 0],
            positive=project("positive").mean(dim=1),
            negative=project("negative") if has_negatives else None,
            anchor_ids=encoded.role_ids("anchor")[:, 0],
            positive_ids=encoded.role_ids("positive").sum(dim=1),  # one id for a set of texts, in any order
            negative_ids=encoded.role_ids("negative") if has_negatives else None,
        )

    def _gather(self, local: Triples) -> tuple[Triples, Triples, int]:
        """Gives the local triples, those of all ranks, and the place of the first local one among them."""
        n = len(local.anchor)
        sizes = gather_sizes(n, device=local.anchor.device) if self.training else [n]
        offset = sum(sizes[: rank()]) if len(sizes) > 1 else 0
        every = local.map(lambda rows: gather_rows(rows, sizes))
        if not self.mask_duplicates:
            every = Triples.distinct(every.anchor, every.positive, every.negative)
        mine = every.map(lambda rows: rows[offset : offset + n])
        mine = replace(mine, anchor=local.anchor, positive=local.positive, negative=local.negative)
        return mine, every, offset


@torch.no_grad()
def _health(local: Triples, every: Triples, offset: int) -> dict[str, Tensor]:
    """What to watch of the compared vectors, on at most some hundred local rows."""
    anchor, positive = local.anchor[:_LOGGED_ROWS], local.positive[:_LOGGED_ROWS]
    target = offset + torch.arange(len(anchor), device=anchor.device)
    cosines = cosine_similarity_matrix(anchor, every.positive)
    own = cosines.gather(1, target.unsqueeze(1))
    others = max(cosines.numel() - len(own), 1)
    return {
        "accuracy": metrics.in_batch_accuracy(anchor, every.positive, target=target),
        "positive_similarity": own.mean(),
        "negative_similarity": (cosines.sum() - own.sum()) / others,
        "alignment": metrics.alignment(anchor, positive),
        "uniformity": metrics.uniformity(torch.cat([anchor, positive])),
    }
