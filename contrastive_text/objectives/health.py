"""What to watch of compared vectors: the figures that are logged beside a loss."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.losses import cosine_similarity_matrix
from contrastive_text.losses.comparisons import Triples

_LOGGED_ROWS = 256
"""Rows that the logged figures look at: enough for two digits, and no cost beside a large batch's."""


@torch.no_grad()
def health(local: Triples, every: Triples, offset: int, by_class: bool = False) -> dict[str, Tensor]:
    """What to watch of the compared vectors, on at most some hundred local rows.

    A row meets its own positive and those that are its negatives in the loss: none that are hidden from it, nor
    others that it is pulled to.
    """
    if not len(every.anchor):
        return {}
    rows = local.map(lambda each: each[:_LOGGED_ROWS])
    anchor, positive = rows.anchor, rows.positive
    target = offset + torch.arange(len(anchor), device=anchor.device)
    ids = torch.stack([rows.anchor_ids, rows.positive_ids], dim=1)
    _, columns = every.sides(by_class)
    forbid, alike = rows.relations(ids, columns, rows.classes if by_class else None)
    unseen = forbid.mask(target)
    if alike is not None:
        unseen |= alike.mask(target).scatter_(1, target.unsqueeze(1), False)
    cosines = cosine_similarity_matrix(anchor, every.positive)
    negative = (~unseen).scatter_(1, target.unsqueeze(1), False)
    own = cosines.gather(1, target.unsqueeze(1))
    return {
        "accuracy": metrics.in_batch_accuracy(anchor, every.positive, target=target, unseen=unseen),
        "positive_similarity": own.mean(),
        "negative_similarity": cosines.masked_fill(~negative, 0.0).sum() / negative.sum().clamp(min=1),
        "alignment": metrics.alignment(anchor, positive),
        "uniformity": metrics.uniformity(torch.cat([anchor, positive])),
    }
