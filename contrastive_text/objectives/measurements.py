"""Measurements of the compared vectors that are logged next to a loss, such as alignment and uniformity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.losses import cosine_similarity_matrix
from contrastive_text.losses.comparison import Comparison, ExampleVectors

LOGGED_ROWS = 256
"""Largest number of rows from which logged values are computed: enough for two digits, at little cost."""

_LOGGED_FEATURES = 512
"""Largest number of features whose correlation is logged. A projector may have thousands of features."""


@torch.no_grad()
def feature_correlation(every: ExampleVectors) -> Tensor:
    """Returns the root mean square correlation between features of the compared vectors, a scalar.

    It is computed from the first 512 features of all anchors and positives.
    """
    return metrics.off_diagonal(torch.cat([every.anchor, every.positive])[:, :_LOGGED_FEATURES])


def count_view_duplicates(ids: Tensor) -> Tensor:
    """Counts texts that a view has made equal to another text, a scalar.

    Args:
        ids: Id of each text before its views and after them, (M, 2).

    Example:
        >>> count_view_duplicates(torch.tensor([[1, 7], [1, 7], [2, 7], [3, 7], [4, 8]]))
        tensor(2)
    """
    by_first = ids[ids[:, 0].argsort()]
    first, second = by_first[by_first[:, 1].argsort(stable=True)].unbind(1)
    return ((second[1:] == second[:-1]) & (first[1:] != first[:-1])).sum()


class VectorMeasurements(NamedTuple):
    """Logged values of compared vectors, and their weights in the mean over ranks.

    Args:
        figures: Name -> value on the rows of this rank.
        weights: Name -> weight of the value in the mean over ranks.
    """

    values: dict[str, Tensor]
    weights: dict[str, Tensor]


@torch.no_grad()
def measure_vectors(
    local: ExampleVectors,
    every: ExampleVectors,
    offset: int,
    sides: Sequence[Tensor] | None = None,
) -> VectorMeasurements:
    """Returns alignment, uniformity and in-batch accuracy of the first 256 compared rows of all ranks.

    A row is compared with its positive and with its negatives in the batch, without masked columns and further
    positives. Rules that apply to one step only, such as the rule of ``MaskBatch``, are ignored. The weighted
    mean over ranks equals the value of a single process.

    Args:
        local: Rows of this rank.
        every: Columns of all ranks.
        offset: Index of the first local row among all rows.
        sides: Anchors and positives of all ranks, (N, D) each, if the columns are from a momentum encoder.

    Returns:
        Accuracy, similarities, alignment, uniformity, removed columns and guide agreement, with their weights.
    """
    if not len(every.anchor):
        return VectorMeasurements({}, {})
    # A rank without logged rows measures one row, with a weight of 0.
    most = max(LOGGED_ROWS - offset, 0)
    rows = local.map(lambda tensor: tensor[: max(most, 1)])
    rows = replace(rows, groups={name: group for name, group in rows.groups.items() if group.persists})
    anchor, positive = rows.anchor, rows.positive
    target = offset + torch.arange(len(anchor), device=anchor.device)
    _, columns = every.sides()
    block = rows.compare(rows.rows()[0], columns, target)
    mask = block.mask_matrix() | block.positive_columns().scatter_(1, target.unsqueeze(1), False)
    cosines = cosine_similarity_matrix(anchor, every.positive)
    negative = (~mask).scatter_(1, target.unsqueeze(1), False)
    logged_sides = [side[:LOGGED_ROWS] for side in (sides or (every.anchor, every.positive))]
    values = {
        "accuracy": metrics.in_batch_accuracy(anchor, every.positive, target=target, unseen=mask),
        "positive_similarity": cosines.gather(1, target.unsqueeze(1)).mean(),
        "negative_similarity": cosines.masked_fill(~negative, 0.0).sum() / negative.sum().clamp(min=1),
        "alignment": metrics.alignment(anchor, positive),
        "uniformity": metrics.uniformity(torch.cat(logged_sides)),
    }
    weights = {"negative_similarity": negative.sum() * (most > 0)}
    if "own" in block.masks:
        masks = {name: mask for name, mask in block.masks.items() if name != "own"}
        values["removed"] = (
            (block.mask_matrix() & ~replace(block, masks=masks).mask_matrix()).sum(dim=1).to(cosines).mean()
        )
    if "guide" in block.masks:
        guide_values, row_count = _measure_guide(cosines, block)
        values |= guide_values
        weights["guide_agreement"] = row_count * (most > 0)
    count = torch.full((), float(min(most, len(anchor))), device=anchor.device)
    return VectorMeasurements(values, dict.fromkeys(values, count) | weights)


def _measure_guide(cosines: Tensor, block: Comparison) -> tuple[dict[str, Tensor], Tensor]:
    """Returns the mean number of positives that a guide masks for a row, and the guide agreement on the others.

    The second result is the number of rows that have other positives.

    Args:
        cosines: The model's cosines of rows and columns, (R, C).
        block: Rows and columns, with a guide's rule among the masks.
    """
    rule = block.masks["guide"]
    masks = {name: mask for name, mask in block.masks.items() if mask is not rule}
    duplicates = replace(block, masks=masks).mask_matrix()
    removed = block.mask_matrix() & ~duplicates
    hidden = duplicates.scatter(1, block.target.unsqueeze(1), True)
    values = {
        "removed": removed.sum(dim=1).to(cosines).mean(),
        "guide_agreement": metrics.guide_agreement(cosines, rule.rows @ rule.columns.T, hidden),
    }
    return values, (~hidden.all(dim=1)).sum()
