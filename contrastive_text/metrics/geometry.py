"""Where the vectors lie on the unit sphere: close to their partners, and spread out?"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from contrastive_text.core.similarity import unit_vectors
from contrastive_text.metrics.functional import (
    alignment,
    check_pairs,
    check_positive,
    effective_rank,
    mean_cosine,
    positive_pairs,
    uniformity,
)
from contrastive_text.metrics.similarity import OfScoredPairs
from contrastive_text.metrics.spread import iso_score


@final
class Alignment(Metric):
    """Mean distance of paired vectors on the unit sphere, to a power; lower is better.

    Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section 4.1.1; see ``functional.alignment``.

    Args:
        alpha: Power of the distance, positive.

    Raises:
        ValueError: alpha is not positive.

    Example:
        >>> metric = Alignment()
        >>> metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([[-3.0, 0.0]]))
        >>> metric.compute()
        tensor(4.)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, alpha: float = 2.0) -> None:
        super().__init__()
        check_positive("Alignment.alpha", alpha)
        self.alpha = alpha
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, x: Tensor, y: Tensor) -> None:
        """Adds vectors and their partners, (n, D) each."""
        self.total = self.total + alignment(x.detach(), y.detach(), alpha=self.alpha) * len(x)
        self.count = self.count + len(x)

    def compute(self) -> Tensor:
        """Returns the mean over all pairs so far, a scalar."""
        return self.total / self.count


@final
class PositiveAlignment(OfScoredPairs):
    """Alignment of those scored pairs that count as positives; lower is better.

    See ``functional.positive_pairs`` for which do, and ``functional.alignment``, with the power 2.

    Example:
        >>> metric = PositiveAlignment()
        >>> u, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[-3.0, 0.0], [0.0, 1.0]])
        >>> metric.update(u, v, target=torch.tensor([5.0, 0.0]))
        >>> metric.compute()
        tensor(4.)
    """

    higher_is_better = False

    def update(self, u: Tensor, v: Tensor, target: Tensor) -> None:
        """Adds pairs of vectors, (n, D) each, and their gold scores, (n,)."""
        check_pairs("PositiveAlignment", u, v)
        self.values.append((unit_vectors(u.detach()) - unit_vectors(v.detach())).square().sum(dim=1))
        self.targets.append(target.detach())

    def compute(self) -> Tensor:
        """Returns the mean over all positives so far, a scalar; NaN where no pair is one."""
        return dim_zero_cat(self.values)[positive_pairs(dim_zero_cat(self.targets))].mean()


class _OfVectors(Metric):
    """Keeps all vectors until ``compute``, because every pair of them counts; ``figure`` is the formula."""

    is_differentiable = False
    full_state_update = False
    figure: Callable[[Tensor], Tensor]
    vectors: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("vectors", default=[], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        """Adds vectors, (n, D)."""
        self.vectors.append(x.detach())

    def compute(self) -> Tensor:
        """Returns the figure of all vectors so far, a scalar; it refuses too few."""
        return self.figure(dim_zero_cat(self.vectors))


@final
class Uniformity(_OfVectors):
    """Log of the mean Gaussian potential between all vectors; lower is better.

    Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section 4.1.2; see ``functional.uniformity``.

    Args:
        t: Sharpness of the potential, positive.

    Raises:
        ValueError: t is not positive.

    Example:
        >>> metric = Uniformity()
        >>> metric.update(torch.tensor([[2.0, 0.0], [-1.0, 0.0]]))
        >>> metric.compute()
        tensor(-8.)
    """

    higher_is_better = False

    def __init__(self, t: float = 2.0) -> None:
        super().__init__()
        check_positive("Uniformity.t", t)
        self.t = t

    def compute(self) -> Tensor:
        """Returns the uniformity of all vectors so far, a scalar; it refuses fewer than two."""
        return uniformity(dim_zero_cat(self.vectors), t=self.t)


@final
class EffectiveRank(_OfVectors):
    """Number of directions that all vectors fill; near 1 they have collapsed.

    Roy and Vetterli 2007, "The effective rank", section 2; see ``functional.effective_rank``. The vectors' Gram
    matrix would be smaller to keep, but in float32 its roots drown in rounding.

    Example:
        >>> metric = EffectiveRank()
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        >>> metric.compute()
        tensor(2.)
    """

    higher_is_better = True
    figure = staticmethod(effective_rank)


@final
class MeanCosine(_OfVectors):
    """Mean cosine similarity of two different vectors; near 1 they have collapsed.

    Every pair counts, none is drawn; see ``functional.mean_cosine``.

    Example:
        >>> metric = MeanCosine()
        >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        >>> metric.compute()
        tensor(-0.3333)
    """

    higher_is_better = False
    figure = staticmethod(mean_cosine)


@final
class IsoScore(_OfVectors):
    """How evenly all vectors use the directions of their space, from 0 to 1.

    Rudman et al. 2022, https://aclanthology.org/2022.findings-acl.262; see ``spread.iso_score``.

    Example:
        >>> metric = IsoScore()
        >>> metric.update(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = True
    figure = staticmethod(iso_score)
