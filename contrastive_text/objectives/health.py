"""Figures of compared vectors that are logged next to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.losses import cosine_similarity_matrix
from contrastive_text.losses.comparison import Comparison, Triples

LOGGED_ROWS = 256
"""Rows that the logged figures are computed from: enough for two digits, at no cost next to a large batch."""

_LOGGED_FEATURES = 512
"""Features whose correlation is logged: a projector may have thousands."""


@torch.no_grad()
def features_alike(every: Triples) -> Tensor:
    """Returns the correlation of the first 512 features of all anchors and positives, a scalar."""
    return metrics.off_diagonal(torch.cat([every.anchor, every.positive])[:, :_LOGGED_FEATURES])


def count_alike(ids: Tensor) -> Tensor:
    """Returns the number of further texts that agree with another one in the second of two ids alone, a scalar.

    Args:
        ids: Two ids of each text, (M, 2).

    Example:
        >>> count_alike(torch.tensor([[1, 7], [1, 7], [2, 7], [3, 7], [4, 8]]))  # 2 and 3 with 1
        tensor(2)
    """
    ordered = ids[ids[:, 0].argsort()]
    first, second = ordered[ordered[:, 1].argsort(stable=True)].unbind(1)
    return ((second[1:] == second[:-1]) & (first[1:] != first[:-1])).sum()


class Health(NamedTuple):
    """Logged figures of compared vectors.

    Args:
        figures: Name -> value on the rows of this rank.
        weights: Name -> weight of that value in the mean over ranks.
    """

    figures: dict[str, Tensor]
    weights: dict[str, Tensor]


@torch.no_grad()
def health(
    local: Triples,
    every: Triples,
    offset: int,
    sides: Sequence[Tensor] | None = None,
) -> Health:
    """Measures the compared vectors, on the first some hundred rows of all ranks.

    A row is compared with its own positive and with its negatives in the batch: no masked columns and no further
    positives. Rules that do not last, such as that of ``MaskBatch``, are ignored. The weighted means over ranks
    are the figures of one process.

    Args:
        local: Rows of this rank.
        every: Columns of all ranks.
        offset: Place of the first local row among all.
        sides: Anchors and positives of all ranks, (N, D) each, where the columns come from another network.
    """
    if not len(every.anchor):
        return Health({}, {})
    # A rank beyond the first rows measures one row, which weighs nothing.
    most = max(LOGGED_ROWS - offset, 0)
    rows = local.map(lambda each: each[: max(most, 1)])
    rows = replace(rows, groups={name: group for name, group in rows.groups.items() if group.lasts})
    anchor, positive = rows.anchor, rows.positive
    target = offset + torch.arange(len(anchor), device=anchor.device)
    _, columns = every.sides()
    block = rows.compare(rows.rows()[0], columns, target)
    unseen = block.masked() | block.positive_columns().scatter_(1, target.unsqueeze(1), False)
    cosines = cosine_similarity_matrix(anchor, every.positive)
    negative = (~unseen).scatter_(1, target.unsqueeze(1), False)
    own = cosines.gather(1, target.unsqueeze(1))
    whole = [side[:LOGGED_ROWS] for side in (sides or (every.anchor, every.positive))]
    figures = {
        "accuracy": metrics.in_batch_accuracy(anchor, every.positive, target=target, unseen=unseen),
        "positive_similarity": own.mean(),
        "negative_similarity": cosines.masked_fill(~negative, 0.0).sum() / negative.sum().clamp(min=1),
        "alignment": metrics.alignment(anchor, positive),
        "uniformity": metrics.uniformity(torch.cat(whole)),
    }
    weights = {"negative_similarity": negative.sum() * (most > 0)}
    if "guide" in block.masks:
        guided, compared = _by_guide(cosines, block)
        figures |= guided
        weights["guide_agreement"] = compared * (most > 0)
    measured = torch.full((), float(min(most, len(anchor))), device=anchor.device)
    return Health(figures, dict.fromkeys(figures, measured) | weights)


def _by_guide(cosines: Tensor, block: Comparison) -> tuple[dict[str, Tensor], Tensor]:
    """Returns how many positives of others a guide takes from a row, and ``metrics.guide_agreement`` on these.

    The second value is the number of rows that have such columns.

    Args:
        cosines: Of the model, (R, C).
        block: Rows and columns, with a guide among the masks.
    """
    near = block.masks["guide"]
    equal = replace(block, masks={name: rule for name, rule in block.masks.items() if rule is not near}).masked()
    removed = block.masked() & ~equal
    hidden = equal.scatter(1, block.target.unsqueeze(1), True)
    figures = {
        "removed": removed.sum(dim=1).to(cosines).mean(),
        "guide_agreement": metrics.guide_agreement(cosines, near.rows @ near.columns.T, hidden),
    }
    return figures, (~hidden.all(dim=1)).sum()
