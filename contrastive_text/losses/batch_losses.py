"""Losses of a whole batch, which have one value for all pairs instead of a term for each row.

They are alignment and uniformity, global orthogonal regularization, decorrelation of features (Barlow Twins and
VICReg), and a normal distribution of the vectors (SIGReg).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.similarity import at_least_float32, full_precision, unit_vectors
from contrastive_text.losses.base import compute_in_parts

_NORM_EPSILON = 1e-5
"""Epsilon that Barlow Twins adds to the variance of a feature: the default of torch's batch normalization."""

_DEVIATION_EPSILON = 1e-4
"""Epsilon that VICReg adds to the variance of a feature before the square root, as in the authors' code."""

BLOCK_ENTRIES = 2**22
"""Largest number of entries of a matrix of cosines, or of SIGReg's cosines and sines, in memory at a time."""

MAX_SHARPNESS = 20
"""Largest sharpness t of a Gaussian potential: exp(-4 * 20), for opposite vectors, is still a float32."""

_FARTHEST, _POINTS = 3.0, 17
"""Largest point and number of points from 0 at which SIGReg compares characteristic functions.

By symmetry the points from -3 to 0 have the same values."""


class BatchLoss(nn.Module, ABC):
    """Base class of losses with one value for all pairs of a step, which is no sum over rows.

    These losses have no negatives. One term pulls the two vectors of a pair together. Another term keeps vectors
    or their features from becoming equal. A subclass implements ``value``. The objective ``WholeBatch`` gathers
    the pairs of all ranks.

    Attributes:
        decorrelates: Whether the loss decorrelates features, so that their correlation is logged.
        collapse_advice: Advice for collapsed vectors, in addition to a lower learning rate or a larger batch.
            The health check of a run prints it.

    Example:
        >>> class Invariance(BatchLoss):
        ...     def value(self, anchor, positive, ids):
        ...         return (anchor - positive).square().mean()
        >>> Invariance()(torch.eye(2), torch.zeros(2, 2))
        tensor(0.5000)
    """

    decorrelates: ClassVar[bool] = False
    collapse_advice: ClassVar[str] = "a larger weight of the term that spreads vectors"

    @abstractmethod
    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the loss of all pairs, the same on every rank. Called outside autocast.

        Args:
            anchor: Vectors of the anchors of all ranks, in at least float32, (N, D).
            positive: Vectors of their positives, (N, D).
            ids: Text ids of each anchor and its positive, (N, 2) or (N, 2, kinds). Texts are duplicates if their
                ids of any kind are equal.

        Returns:
            A scalar.
        """

    def forward(self, anchor: Tensor, positive: Tensor, ids: Tensor | None = None) -> Tensor:
        """Returns the loss of N pairs.

        Args:
            anchor: Vectors of the anchors, (N, D).
            positive: Vectors of their positives, (N, D).
            ids: Text ids as in ``value``, (N, 2) or (N, 2, kinds); None if all texts differ.

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: The shapes don't fit together.
        """
        if ids is None:
            ids = torch.arange(2 * len(anchor), device=anchor.device).reshape(2, -1).T
        if anchor.ndim != 2 or anchor.shape != positive.shape or ids.shape[:2] != (len(anchor), 2):
            raise InvalidValueError(
                f"{type(self).__name__}: expected anchor and positive of one shape (N, D) and ids (N, 2), got "
                f"{tuple(anchor.shape)}, {tuple(positive.shape)} and {tuple(ids.shape)}; give one vector per text"
            )
        with full_precision(anchor.device):
            return self.value(at_least_float32(anchor), at_least_float32(positive), ids)


class AlignmentUniformity(BatchLoss):
    """Alignment of pairs plus uniformity of the anchors and of the positives, on the unit sphere.

    ``a * mean |x_i - y_i|^alpha + u * (U(x) + U(y)) / 2`` with ``U(x) = log mean over i < j of
    exp(-t |x_i - x_j|^2)``. InfoNCE approaches these two terms as the number of negatives grows. Every
    contrastive objective logs them. Source: Wang and Isola 2020 (https://arxiv.org/abs/2005.10242), section 4.1.
    Weights of 1 and the mean of U(x) and U(y) are from the authors' code (SsnL/align_uniform,
    examples/stl10/main.py).

    Differs: uniformity excludes pairs of duplicates, and is 0 if all texts are duplicates. The authors' code
    pushes duplicates apart, although views of one text should have similar vectors.

    Args:
        alpha: Exponent of the distance within a pair, 1 or more.
        t: Sharpness of the Gaussian potential, above 0 and up to 20.
        alignment_weight: Weight a.
        uniformity_weight: Weight u.

    Raises:
        ValueError: Alpha is below 1, t is not above 0 or is above 20, or a weight is below 0.

    Example:
        >>> x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[2.0, 0.0], [-1.0, 0.0]])
        >>> AlignmentUniformity()(x, y)  # (0 + 2) / 2 + (-4 - 8) / 2
        tensor(-5.)
    """

    collapse_advice: ClassVar[str] = "a larger uniformity_weight"

    def __init__(
        self,
        alpha: float = 2.0,
        t: float = 2.0,
        alignment_weight: float = 1.0,
        uniformity_weight: float = 1.0,
    ) -> None:
        super().__init__()
        if not (1 <= alpha < math.inf and 0 < t <= MAX_SHARPNESS):
            raise InvalidValueError(
                f"AlignmentUniformity: expected alpha of 1 or more and t from above 0 to {MAX_SHARPNESS}, got "
                f"{alpha} and {t}; the paper has 2 and 2"
            )
        self.alpha = alpha
        self.t = t
        self.alignment_weight = at_least("AlignmentUniformity.alignment_weight", alignment_weight, 0)
        self.uniformity_weight = at_least("AlignmentUniformity.uniformity_weight", uniformity_weight, 0)

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the weighted sum of alignment and uniformity, a scalar."""
        x, y = unit_vectors(anchor), unit_vectors(positive)
        distances: Tensor = torch.linalg.vector_norm(x - y, dim=1)
        uniformity = text_uniformity(x, ids[:, 0], self.t) + text_uniformity(y, ids[:, 1], self.t)
        alignment = distances.pow(self.alpha).mean()
        return self.alignment_weight * alignment + self.uniformity_weight * uniformity / 2


class GlobalOrthogonalRegularization(BatchLoss):
    """Global orthogonal regularization (GOR): makes different texts as dissimilar as random directions.

    ``m * (mean cos)^2 + s * relu(mean cos^2 - 1 / D)`` over pairs of anchors and over pairs of positives; the
    loss is the mean of both. Uniform random directions have a mean cosine of 0 and a mean square of 1 / D. No
    term pulls pairs together: add another objective. Source: Zhang et al. 2017, "Learning Spread-out Local
    Feature Descriptors" (https://arxiv.org/abs/1708.06320), section 3, there for pairs of different classes.
    Pairs of anchors and of positives, and weights of 1, are from sentence-transformers'
    ``GlobalOrthogonalRegularizationLoss``.

    Differs: pairs of duplicates are excluded.

    Args:
        mean_weight: Weight m.
        second_moment_weight: Weight s.

    Raises:
        ValueError: A weight is below 0.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
        >>> GlobalOrthogonalRegularization()(x, x)  # 1 + (1 - 1 / 2)
        tensor(1.5000)
    """

    collapse_advice: ClassVar[str] = "a larger weight of this objective"

    def __init__(self, mean_weight: float = 1.0, second_moment_weight: float = 1.0) -> None:
        super().__init__()
        self.mean_weight = at_least("GlobalOrthogonalRegularization.mean_weight", mean_weight, 0)
        self.second_moment_weight = at_least(
            "GlobalOrthogonalRegularization.second_moment_weight", second_moment_weight, 0
        )

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the mean of the regularization of the anchors and of the positives, a scalar."""
        sides = (anchor, ids[:, 0]), (positive, ids[:, 1])
        return torch.stack([self._side_value(unit_vectors(side), side_ids) for side, side_ids in sides]).mean()

    def _side_value(self, unit: Tensor, ids: Tensor) -> Tensor:
        mean, square = pair_means(unit, ids, lambda cosines: torch.stack([cosines, cosines.square()]))
        excess = (square - 1 / unit.shape[1]).clamp(min=0)
        total: Tensor = self.mean_weight * mean.square() + self.second_moment_weight * excess
        return total


def text_uniformity(unit: Tensor, ids: Tensor, t: float) -> Tensor:
    """Returns the logarithm of the mean Gaussian potential of pairs of different texts, a scalar.

    The result is 0 if all texts are duplicates.

    Args:
        unit: Vectors of length 1, (N, D).
        ids: Ids of the texts, (N,) or (N, kinds).
        t: Sharpness of the potential.
    """

    def potential(cosines: Tensor) -> Tensor:
        return (2 * t * (cosines - 1).clamp(max=0)).exp().unsqueeze(0)

    mean = pair_means(unit, ids, potential).squeeze(0)
    return torch.where(mean > 0, mean, 1.0).log()


def pair_means(unit: Tensor, ids: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the means of functions of the cosine over all pairs i < j of different texts, (F,).

    Blocks of rows are compared with all later rows. If there are several blocks, the backward pass computes each
    block again. The matrix of all pairs is never in memory: 16,384 rows would take 1 GiB for each operation.

    Args:
        unit: Vectors of length 1, (N, D).
        ids: Ids of the texts, (N,) or (N, kinds). Texts are duplicates if their ids of any kind are equal.
        function: Maps cosines (r, c) to the values of F functions, (F, r, c).

    Returns:
        Mean of each function, (F,); 0 without pairs.

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
        is_pair = (~equal).triu_()  # row i is paired with later columns only
        return function(unit[rows] @ unit[later].T).masked_fill(~is_pair, 0.0).sum(dim=(1, 2)), is_pair.sum()

    sums, counts = zip(*compute_in_parts(block, range(0, len(unit), size)), strict=True)
    return torch.stack(sums).sum(dim=0) / torch.stack(counts).sum().clamp(min=1)


class BarlowTwins(BatchLoss):
    """Barlow Twins: makes the correlation matrix between features of anchors and of positives the identity.

    ``sum_d (c_dd - 1)^2 + w * sum over d != e of c_de^2`` with ``c = n(x)^T n(y) / N``, where n normalizes each
    feature over the batch: mean 0, biased variance plus 1e-5 of 1. Source: Zbontar et al. 2021, Barlow Twins
    (https://arxiv.org/abs/2103.03230), section 2; weight 0.0051 and details as in the authors' code
    (facebookresearch/barlowtwins, main.py), which also takes statistics over all ranks. If a batch has fewer
    texts than features, c has a lower rank and its off-diagonal entries can't all be 0.

    Args:
        off_diagonal_weight: Weight w.

    Raises:
        ValueError: The weight is below 0.

    Example:
        >>> x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])  # one feature twice
        >>> BarlowTwins(off_diagonal_weight=0.5)(x, x)
        tensor(1.0000)
    """

    decorrelates: ClassVar[bool] = True
    collapse_advice: ClassVar[str] = "a larger off_diagonal_weight"

    def __init__(self, off_diagonal_weight: float = 0.0051) -> None:
        super().__init__()
        self.off_diagonal_weight = at_least("BarlowTwins.off_diagonal_weight", off_diagonal_weight, 0)

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the weighted sum of diagonal and off-diagonal terms of a cross-correlation matrix, a scalar."""
        correlation = _normal(anchor).T @ _normal(positive) / len(anchor)
        diagonal = correlation.diagonal()
        return (diagonal - 1).square().sum() + self.off_diagonal_weight * _off_diagonal_square(correlation)


class VICReg(BatchLoss):
    """VICReg: pulls pairs together, keeps the variance of each feature up, and decorrelates features.

    ``i * mean (x - y)^2 + v * (V(x) + V(y)) / 2 + c * (C(x) + C(y))``. The mean is over rows and features. ``V``
    is the mean over features of ``relu(1 - sqrt(variance + 1e-4))``. ``C`` is the sum of the squared covariances
    of different features, divided by D. Variance and covariance are unbiased. Vectors are not normalized. Source:
    Bardes et al. 2022, VICReg (https://arxiv.org/abs/2105.04906), section 4. Weights 25, 25 and 1, half of V and
    the whole of C are from the authors' code (facebookresearch/vicreg, main_vicreg.py). As with ``BarlowTwins``,
    a batch of fewer texts than features lowers the rank of the covariance.

    Args:
        invariance_weight: Weight i.
        variance_weight: Weight v.
        covariance_weight: Weight c.

    Raises:
        ValueError: A weight is below 0.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])  # the second feature is constant: 0.99
        >>> VICReg(variance_weight=1.0)(x, x)
        tensor(0.4950)
    """

    decorrelates: ClassVar[bool] = True
    collapse_advice: ClassVar[str] = "a larger variance_weight and covariance_weight"

    def __init__(
        self, invariance_weight: float = 25.0, variance_weight: float = 25.0, covariance_weight: float = 1.0
    ) -> None:
        super().__init__()
        self.invariance_weight = at_least("VICReg.invariance_weight", invariance_weight, 0)
        self.variance_weight = at_least("VICReg.variance_weight", variance_weight, 0)
        self.covariance_weight = at_least("VICReg.covariance_weight", covariance_weight, 0)

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the weighted sum of the three terms, a scalar."""
        centered = [side - side.mean(dim=0) for side in (anchor, positive)]
        covariances = [side.T @ side / max(len(side) - 1, 1) for side in centered]
        deviations = [(matrix.diagonal() + _DEVIATION_EPSILON).sqrt() for matrix in covariances]
        variance = torch.stack([(1 - deviation).clamp(min=0).mean() for deviation in deviations]).mean()
        covariance = torch.stack([_off_diagonal_square(matrix) for matrix in covariances]).sum() / anchor.shape[1]
        total = self.invariance_weight * (anchor - positive).square().mean() + self.variance_weight * variance
        return total + self.covariance_weight * covariance


def _normal(side: Tensor) -> Tensor:
    """Returns vectors with each feature normalized over the batch, (N, D)."""
    centered = side - side.mean(dim=0)
    return centered * (centered.square().mean(dim=0) + _NORM_EPSILON).rsqrt()


def _off_diagonal_square(matrix: Tensor) -> Tensor:
    """Returns the sum of the squared off-diagonal entries of a matrix (D, D)."""
    return matrix.square().sum() - matrix.diagonal().square().sum()


class SIGReg(BatchLoss):
    """SIGReg (LeJEPA): pulls pairs together and makes vectors follow a standard normal distribution.

    ``mean over views, rows and features of (z - c)^2 + w * S``, where c is the mean of a pair's two vectors. S is
    the mean over random directions of the statistic of Epps and Pulley. For the N projections u on a direction
    the statistic is ``N * integral of phi(t) * ((mean cos(t u) - phi(t))^2 + (mean sin(t u))^2) dt`` from -3 to 3
    with ``phi(t) = exp(-t^2 / 2)``, by the trapezoidal rule. Source: Balestriero and LeCun 2025, LeJEPA
    (https://arxiv.org/abs/2511.08544). The 17 points, 1024 directions and weight of 0.02 are from
    galilai-group/stable-pretraining (methods/lejepa.py), where the vectors come from a projector with batch
    normalization. Vectors are not scaled to length 1.

    S grows with N if the vectors aren't normal, so a weight fits one batch size.

    Differs: S is the mean of the statistic of the anchors and the statistic of the positives, as the docstring of
    that code says. The code itself takes the statistic of both as one sample (``pooled``). Two views of a text
    are not independent, however, and twice as many rows have a larger statistic. Directions depend on ``seed``
    and the ids of the texts, and are the same on every rank and in every pass of a step. In that code they depend
    on the number of the step. Here the statistic is over the rows of all ranks, and there over those of a rank.

    Args:
        weight: Weight w.
        directions: Number of random directions.
        pooled: Whether anchors and positives are one sample.
        seed: Seed of the directions.

    Raises:
        ValueError: The weight is below 0, or ``directions`` is below 1.

    Example:
        >>> x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
        >>> loss = SIGReg(weight=1.0, directions=16)
        >>> bool(loss(x, x) < 5), bool(loss(3 * x, 3 * x) > 50)
        (True, True)
    """

    decorrelates: ClassVar[bool] = True
    collapse_advice: ClassVar[str] = "a larger weight of SIGReg"

    def __init__(self, weight: float = 0.02, directions: int = 1024, pooled: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.weight = at_least("SIGReg.weight", weight, 0)
        self.directions = at_least("SIGReg.directions", directions, 1, "the authors' code has 1024")
        self.pooled = pooled
        self.seed = seed

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the mean distance within pairs plus the weighted Epps-Pulley statistic, a scalar."""
        directions = self._draw_directions(anchor, ids)
        samples = [torch.cat([anchor, positive])] if self.pooled else [anchor, positive]
        statistic = torch.stack([epps_pulley(rows, directions).mean() for rows in samples]).mean()
        # Each vector of a pair differs from the mean of the pair by half their difference.
        return (anchor - positive).square().mean() / 4 + self.weight * statistic

    def _draw_directions(self, like: Tensor, ids: Tensor) -> Tensor:
        """Returns random directions of length 1 for vectors of a width, device and dtype, (D, S)."""
        # The sum of the ids doesn't depend on their order. Ids are hashes, so other texts have another sum.
        key = (int(ids.sum()) + self.seed) % 2**63
        noise = torch.Generator(like.device).manual_seed(key)
        directions = torch.randn(like.shape[1], self.directions, generator=noise, device=like.device)
        return F.normalize(directions.to(like.dtype), dim=0)


def epps_pulley(rows: Tensor, directions: Tensor) -> Tensor:
    """Returns the Epps-Pulley statistic of each direction: the distance of projections from normal ones.

    The statistic of Epps and Pulley 1983 is integrated over [-3, 3] with 33 points. Many rows are projected on a
    few directions at a time. The backward pass computes their cosines and sines again.

    Args:
        rows: Vectors, (N, D).
        directions: Directions of length 1, (D, S).

    Returns:
        (S,)

    Example:
        >>> epps_pulley(torch.tensor([[0.5], [-0.5]]), torch.ones(1, 1)).shape
        torch.Size([1])
    """
    size = max(1, BLOCK_ENTRIES // max(_POINTS * len(rows), 1))
    return torch.cat(compute_in_parts(partial(_statistics, rows), torch.split(directions, size, dim=1)))


def _statistics(rows: Tensor, directions: Tensor) -> Tensor:
    points = torch.linspace(0.0, _FARTHEST, _POINTS, dtype=rows.dtype, device=rows.device)
    step = _FARTHEST / (_POINTS - 1)
    normal = torch.exp(-points.square() / 2)
    widths = torch.full_like(points, 2 * step)  # a point t other than 0 also counts for -t
    widths[0] = widths[-1] = step
    angles = points.view(-1, 1, 1) * (rows @ directions)
    real = angles.cos().mean(dim=1) - normal.unsqueeze(1)
    distances: Tensor = real.square() + angles.sin().mean(dim=1).square()
    return len(rows) * (normal * widths) @ distances
