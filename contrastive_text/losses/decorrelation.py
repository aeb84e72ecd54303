"""Losses that keep features from becoming alike, in place of negatives: Barlow Twins and VICReg."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text.losses.batch import BatchLoss, check_weights

_NORM_EPSILON = 1e-5
"""Added to the variance by torch's batch normalisation, which the authors of Barlow Twins use."""

_DEVIATION_EPSILON = 1e-4
"""Added to the variance under the root by the authors of VICReg."""


class BarlowTwins(BatchLoss):
    """The correlation of the features of two views made the identity.

    ``sum_d (c_dd - 1)^2 + w * sum over d != e of c_de^2`` with ``c = n(x)^T n(y) / N``, where n normalises each
    feature over the batch: mean 0, biased variance 1, 1e-5 added to it. Source: Zbontar et al. 2021, Barlow Twins
    (https://arxiv.org/abs/2103.03230), section 2; weight 0.0051 and the rest as in the authors' code
    (facebookresearch/barlowtwins, main.py), whose statistics are those of all ranks too. A batch of fewer texts
    than features leaves c short of rank: its off-diagonal can't come to 0.

    Args:
        off_diagonal_weight: Weight w.

    Raises:
        ValueError: A weight below 0.

    Example:
        >>> x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])  # one feature twice
        >>> BarlowTwins(off_diagonal_weight=0.5)(x, x)
        tensor(1.0000)
    """

    decorrelates: ClassVar[bool] = True
    remedy: ClassVar[str] = "a larger off_diagonal_weight"

    def __init__(self, off_diagonal_weight: float = 0.0051) -> None:
        super().__init__()
        check_weights("BarlowTwins", off_diagonal_weight=off_diagonal_weight)
        self.off_diagonal_weight = off_diagonal_weight

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns both sums, a scalar."""
        correlation = _normal(anchor).T @ _normal(positive) / len(anchor)
        own = correlation.diagonal()
        return (own - 1).square().sum() + self.off_diagonal_weight * _off_diagonal_square(correlation)


class VICReg(BatchLoss):
    """Pairs alike, each feature with a spread, different features uncorrelated.

    ``i * mean (x - y)^2 + v * (V(x) + V(y)) / 2 + c * (C(x) + C(y))``: the mean over rows and features; ``V`` the
    mean over features of ``relu(1 - sqrt(variance + 1e-4))``; ``C`` the sum of the squared covariances of
    different features over D; variance and covariance unbiased. Nothing is normalised. Source: Bardes et al.
    2022, VICReg (https://arxiv.org/abs/2105.04906), section 4; weights 25, 25 and 1, the half of V and the whole
    of C as in the authors' code (facebookresearch/vicreg, main_vicreg.py). As with ``BarlowTwins``, fewer texts
    than features leave the covariance short of rank.

    Args:
        invariance_weight: Weight i.
        variance_weight: Weight v.
        covariance_weight: Weight c.

    Raises:
        ValueError: Weights below 0.

    Example:
        >>> x = torch.tensor([[2.0, 0.0], [-2.0, 0.0]])  # a second feature without a spread: 0.99
        >>> VICReg(variance_weight=1.0)(x, x)
        tensor(0.4950)
    """

    decorrelates: ClassVar[bool] = True
    remedy: ClassVar[str] = "a larger variance_weight and covariance_weight"

    def __init__(
        self, invariance_weight: float = 25.0, variance_weight: float = 25.0, covariance_weight: float = 1.0
    ) -> None:
        super().__init__()
        check_weights(
            "VICReg",
            invariance_weight=invariance_weight,
            variance_weight=variance_weight,
            covariance_weight=covariance_weight,
        )
        self.invariance_weight = invariance_weight
        self.variance_weight = variance_weight
        self.covariance_weight = covariance_weight

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the weighted sum of the three terms, a scalar."""
        centred = [side - side.mean(dim=0) for side in (anchor, positive)]
        covariances = [side.T @ side / max(len(side) - 1, 1) for side in centred]
        deviations = [(each.diagonal() + _DEVIATION_EPSILON).sqrt() for each in covariances]
        narrow = torch.stack([(1 - each).clamp(min=0).mean() for each in deviations]).mean()
        alike = torch.stack([_off_diagonal_square(each) for each in covariances]).sum() / anchor.shape[1]
        apart = (anchor - positive).square().mean()
        return self.invariance_weight * apart + self.variance_weight * narrow + self.covariance_weight * alike


def _normal(side: Tensor) -> Tensor:
    """Returns a side with each feature normalised over the batch, (N, D)."""
    centred = side - side.mean(dim=0)
    return centred * (centred.square().mean(dim=0) + _NORM_EPSILON).rsqrt()


def _off_diagonal_square(matrix: Tensor) -> Tensor:
    """Returns the sum of the squares beside the diagonal of (D, D)."""
    return matrix.square().sum() - matrix.diagonal().square().sum()
