"""Value of an objective on one rank, divided over all ranks in one place, and values that are logged with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses import Reduction, cosine_similarity_matrix, reduce_terms
from contrastive_text.losses.comparison import Comparison, ExampleVectors


def check_several_examples(objective: str, examples: int) -> None:
    """Checks that a step has two or more examples, for an objective that compares examples with each other.

    Args:
        objective: Name of the objective, for the error.
        examples: Number of examples of a step, over all ranks.

    Raises:
        ValueError: There is only one example.
    """
    if examples < 2:
        raise InvalidValueError(
            f"data.batch_size: expected 2 or more examples in a step for {objective}, which compares examples "
            f"with each other, got {examples}; raise data.batch_size"
        )


def add_rows(parts: Sequence[Terms], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Returns the weighted sum of several formulas' loss terms of the same examples, as ``Terms.rows``.

    Args:
        parts: Values over the same examples.
        weights: Weight of each formula. Default: 1.

    Returns:
        The terms as ``loss``; empty if a formula has no terms of examples, or another number of terms.
    """
    terms = [part.rows["loss"] for part in parts if "loss" in part.rows]
    if len(terms) < len(parts) or len({len(part) for part in terms}) != 1:
        return {}
    scaled = [weight * part for weight, part in zip(weights or [1.0] * len(terms), terms, strict=True)]
    return {"loss": torch.stack(scaled).sum(dim=0)}


@dataclass(frozen=True, slots=True)
class Terms:
    """Value of an objective on one rank: the sum and the number of its loss terms.

    Args:
        total: Sum of the loss terms of the local rows, a scalar with a gradient.
        count: Number of local rows: a number, or a scalar tensor if it is computed on the device.
        reduction: How the totals and counts of all ranks are combined into the loss; see ``losses.reduce_terms``.
        logs: Name -> value to log next to the loss, a scalar without a gradient.
        log_weights: Name of a logged value -> its weight in the mean over ranks. Default: ``count``.
        rows: Name of a held-out score -> its value for each local example, (N,), without a gradient. ``loss`` are
            the loss terms: (k N,) for k sides of an example, one side after another. Validation also reports the
            other scores, times 100. Empty if the loss isn't a sum over examples.
    """

    total: Tensor
    count: int | Tensor
    reduction: Reduction = "mean"
    logs: Mapping[str, Tensor] = field(default_factory=dict)
    log_weights: Mapping[str, Tensor] = field(default_factory=dict)
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def sum(cls, parts: Sequence[Terms]) -> Terms:
        """Adds the losses of several formulas over the same rows, and averages their logged values.

        Args:
            parts: Values with equal counts.
        """
        if len(parts) == 1:
            return parts[0]
        total = torch.stack([part.total for part in parts]).sum()
        logs, log_weights = {}, {}
        for name in parts[0].logs:
            values = torch.stack([part.logs[name] for part in parts])
            weights = torch.stack([part.weight(name).to(values) for part in parts])
            log_weights[name] = weights.sum()
            shares = weights / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
            logs[name] = torch.where(weights.sum() > 0, (values * shares).sum(), values.mean())
        return replace(parts[0], total=total, logs=logs, log_weights=log_weights, rows=add_rows(parts))

    def weight(self, name: str) -> Tensor:
        """Returns the weight of a logged value in the mean over ranks."""
        return self.log_weights[name] if name in self.log_weights else self._count()

    def _count(self) -> Tensor:
        """Returns the number of local rows as a float32 scalar on the device of the total."""
        if isinstance(self.count, Tensor):
            return self.count.to(torch.float32)
        return torch.full((), float(self.count), device=self.total.device)

    def loss(self) -> Tensor:
        """Returns this rank's part of the loss of an objective.

        The mean over ranks is the loss of the whole batch.

        Example:
            >>> Terms(total=torch.tensor(6.0), count=4).loss()
            tensor(1.5000)
        """
        (loss,) = self.losses([self])
        return loss

    @staticmethod
    def losses(objective_terms: Sequence[Terms]) -> list[Tensor]:
        """Returns this rank's part of the loss of several objectives, with one collective operation."""
        counts = sum_over_ranks(torch.stack([terms._count() for terms in objective_terms])).clamp(min=1)
        return [
            reduce_terms(terms.total * world_size(), count, terms.reduction)
            for terms, count in zip(objective_terms, counts.unbind(), strict=True)
        ]


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


@torch.no_grad()
def measure_vectors(
    local: ExampleVectors,
    every: ExampleVectors,
    offset: int,
    sides: Sequence[Tensor] | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
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
        return {}, {}
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
    return values, dict.fromkeys(values, count) | weights


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
