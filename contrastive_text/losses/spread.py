"""Losses that spread vectors over the sphere, pair by pair: uniformity, and orthogonality on average."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.losses.batch import BatchLoss, check_weights
from contrastive_text.losses.by_rows import in_parts

BLOCK_ENTRIES = 2**22
"""Most entries of a matrix of cosines that is held at once."""


MOST_SHARP = 20
"""Largest sharpness of a Gaussian potential: exp(-4 * 20), of two antipodal vectors, is still a float32."""


class AlignmentUniformity(BatchLoss):
    """Alignment of the pairs plus uniformity of each side, on the unit sphere.

    ``a * mean |x_i - y_i|^alpha + u * (U(x) + U(y)) / 2`` with ``U(x) = log mean over i < j of
    exp(-t |x_i - x_j|^2)``. What InfoNCE comes to with ever more negatives, taken apart; the two figures that are
    logged of every contrastive objective. Source: Wang and Isola 2020 (https://arxiv.org/abs/2005.10242), section
    4.1; weights of 1 and the mean of the two sides as in the authors' code (SsnL/align_uniform,
    examples/stl10/main.py).

    Differs: pairs of equal texts, which the authors' code pushes apart though views of one text ought to lie
    together, are left out of uniformity; 0 where no two texts differ.

    Args:
        alpha: Power of a pair's distance, 1 or more.
        t: Sharpness of the potential.
        alignment_weight: Weight a.
        uniformity_weight: Weight u.

    Raises:
        ValueError: A power below 1, a sharpness that isn't positive or above 20, or weights below 0.

    Example:
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[2.0, 0.0], [-1.0, 0.0]])
        >>> AlignmentUniformity()(x, y)  # (0 + 2) / 2 + (-4 - 8) / 2
        tensor(-5.)
    """

    remedy: ClassVar[str] = "a larger uniformity_weight"

    def __init__(
        self,
        alpha: float = 2.0,
        t: float = 2.0,
        alignment_weight: float = 1.0,
        uniformity_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if not (1 <= alpha < math.inf and 0 < t <= MOST_SHARP):
            raise InvalidValueError(
                f"AlignmentUniformity: expected alpha of 1 or more and t from above 0 to {MOST_SHARP}, got "
                f"{alpha} and {t}; the paper has 2 and 2"
            )
        check_weights(
            "AlignmentUniformity", alignment_weight=alignment_weight, uniformity_weight=uniformity_weight
        )
        self.alpha = alpha
        self.t = t
        self.alignment_weight = alignment_weight
        self.uniformity_weight = uniformity_weight

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the weighted sum, a scalar."""
        x, y = unit_vectors(anchor), unit_vectors(positive)
        distances: Tensor = torch.linalg.vector_norm(x - y, dim=1)
        sides = [uniformity_of(side, of, self.t) for side, of in ((x, ids[:, 0]), (y, ids[:, 1]))]
        aligned = distances.pow(self.alpha).mean()
        return self.alignment_weight * aligned + self.uniformity_weight * (sides[0] + sides[1]) / 2


class GlobalOrthogonalRegularization(BatchLoss):
    """Global orthogonal regularization (GOR): cosines of different texts as if directions were drawn at random.

    ``m * (mean cos)^2 + s * relu(mean cos^2 - 1 / D)`` over pairs of one side, the mean of the two sides: of
    directions drawn uniformly the mean is 0 and the mean square 1 / D. Nothing pulls pairs together: it stands
    beside another objective. Source: Zhang et al. 2017, "Learning Spread-out Local Feature Descriptors"
    (https://arxiv.org/abs/1708.06320), section 3, there of pairs that don't belong together; of each side as in
    sentence-transformers' ``GlobalOrthogonalRegularizationLoss``, whose weights of 1 are the defaults.

    Differs: pairs of equal texts are left out.

    Args:
        mean_weight: Weight m.
        second_moment_weight: Weight s.

    Raises:
        ValueError: Weights below 0.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> GlobalOrthogonalRegularization()(x, x)  # 1 + (1 - 1 / 2)
        tensor(1.5000)
    """

    remedy: ClassVar[str] = "a larger weight of this objective"

    def __init__(self, mean_weight: float = 1.0, second_moment_weight: float = 1.0) -> None:
        super().__init__()
        check_weights(
            "GlobalOrthogonalRegularization", mean_weight=mean_weight, second_moment_weight=second_moment_weight
        )
        self.mean_weight = mean_weight
        self.second_moment_weight = second_moment_weight

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the mean of the two sides' sums, a scalar."""
        sides = (anchor, ids[:, 0]), (positive, ids[:, 1])
        return torch.stack([self._of_side(unit_vectors(side), of) for side, of in sides]).mean()

    def _of_side(self, unit: Tensor, ids: Tensor) -> Tensor:
        mean, square = pair_means(unit, ids, lambda cosines: torch.stack([cosines, cosines.square()]))
        excess = (square - 1 / unit.shape[1]).clamp(min=0)
        total: Tensor = self.mean_weight * mean.square() + self.second_moment_weight * excess
        return total


def uniformity_of(unit: Tensor, ids: Tensor, t: float) -> Tensor:
    """Returns the log of the mean Gaussian potential between different texts; 0 where there are none.

    Args:
        unit: Vectors of length 1, (N, D).
        ids: Of their texts, (N,) or (N, kinds).
        t: Sharpness of the potential.
    """

    def potential(cosines: Tensor) -> Tensor:
        return (2 * t * (cosines - 1).clamp(max=0)).exp().unsqueeze(0)

    mean = pair_means(unit, ids, potential).squeeze(0)
    return torch.where(mean > 0, mean, 1.0).log()


def pair_means(unit: Tensor, ids: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns means, over the pairs i < j of different texts, of functions of their cosine; of no pairs 0.

    Rows come in blocks, each against all later ones; of several blocks each is computed anew in the backward
    pass. A matrix of all pairs is never held: at 16,384 rows it would take 1 GiB for each step of the formula.

    Args:
        unit: Vectors of length 1, (N, D).
        ids: Of their texts, (N,) or (N, kinds); texts that agree in a kind are equal.
        of: From cosines (r, c) to the values of F functions, (F, r, c).

    Returns:
        (F,)

    Example:
        >>> unit, ids = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([7, 8, 9])
        >>> pair_means(unit, ids, lambda cosines: cosines.unsqueeze(0))
        tensor([0.3333])
    """
    size = max(1, BLOCK_ENTRIES // max(len(unit), 1))
    kinds = ids.unsqueeze(1) if ids.ndim == 1 else ids

    def block(start: int) -> tuple[Tensor, Tensor]:
        rows, later = slice(start, start + size), slice(start + 1, None)
        equal = (kinds[rows, None] == kinds[None, later]).any(dim=2)
        counted = (~equal).triu_()  # row i meets the columns after it only
        return of(unit[rows] @ unit[later].T).masked_fill(~counted, 0.0).sum(dim=(1, 2)), counted.sum()

    sums, counts = zip(*in_parts(block, range(0, len(unit), size)), strict=True)
    return torch.stack(sums).sum(dim=0) / torch.stack(counts).sum().clamp(min=1)
