"""Alignment, uniformity, spectrum and isotropy of vectors: pure functions, and torchmetrics classes over them.

Functions normalize vectors in at least float32, and never under autocast. A zero vector stays zero: its
similarity to every vector is 0, and no result is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from contrastive_text.core.checks import above
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import (
    EPSILON,
    at_least_float32,
    cosine_similarity_matrix,
    full_precision,
    unit_vectors,
)
from contrastive_text.metrics.similarity import OfScoredPairs, check_pairs, check_rows

_BLOCK_VALUES = 2**24
"""Values of one block of a similarity matrix: 64 MiB in float32."""


def alignment(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """Returns the mean distance of paired vectors on the unit sphere, to a power.

    mean over i of ||x_i - y_i||^alpha (Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section 4.1.1).
    0 where every pair coincides, 2 (with alpha 2) at right angles, 4 where every pair is antipodal.

    Args:
        x: Vectors, (n, D).
        y: Their partners, (n, D).
        alpha: Power of the distance, positive.

    Returns:
        A scalar.

    Raises:
        ValueError: The shapes differ or hold no rows, or alpha is not positive.

    Example:
        >>> alignment(torch.tensor([[1.0, 0.0]]), torch.tensor([[-3.0, 0.0]]))
        tensor(4.)
    """
    above("alignment.alpha", alpha, advice="the papers use 2")
    check_pairs("alignment", x, y)
    distances: Tensor = torch.linalg.vector_norm(_unit(x) - _unit(y), dim=1)
    return distances.pow(alpha).mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """Returns the log of the mean Gaussian potential between the vectors on the unit sphere.

    log mean over i < j of exp(-t ||x_i - x_j||^2) (Wang and Isola 2020, https://arxiv.org/abs/2005.10242,
    section 4.1.2). With t = 2: 0 where all vectors are equal, -4 for two at right angles, -8 for two
    antipodal ones. Computed in blocks of rows: memory does not grow with the square of n.

    Args:
        x: Vectors, (n, D), two at least.
        t: Sharpness of the potential, positive.

    Returns:
        A scalar.

    Raises:
        ValueError: There are fewer than two vectors, or t is not positive.

    Example:
        >>> uniformity(torch.tensor([[2.0, 0.0], [-1.0, 0.0]]))
        tensor(-8.)
    """
    above("uniformity.t", t, advice="the papers use 2")
    check_rows("uniformity", x, least=2)
    squares = _unit(x).square().sum(dim=1)  # 1, but 0 for a vector of zeros
    potentials = []
    for block in row_blocks(len(x) - 1, columns=len(x)):
        later = slice(block.start + 1, None)
        cosines = cosine_similarity_matrix(x[block], x[later])
        distances = (squares[block, None] + squares[later] - 2 * cosines).clamp_min(0)
        own = torch.ones_like(distances, dtype=torch.bool).triu()  # row i meets the columns after i only
        potentials.append((-t * distances).masked_fill(~own, -torch.inf).flatten().logsumexp(dim=0))
    pairs = len(x) * (len(x) - 1) // 2
    return torch.stack(potentials).logsumexp(dim=0) - math.log(pairs)


def effective_rank(x: Tensor) -> Tensor:
    """Returns the number of directions that the unit vectors fill.

    exp of the entropy of the singular values divided by their sum (Roy and Vetterli 2007, "The effective
    rank", section 2; Garrido et al. 2023, https://arxiv.org/abs/2210.02885, predict downstream scores with
    it). Between 1, all vectors on one line, and min(n, D).

    Differs: rows are first put on the unit sphere, because cosine similarity ignores their length; like the
    papers we do not center them. Vectors that are all zero give 1.

    Args:
        x: Vectors, (n, D).

    Returns:
        A scalar.

    Raises:
        ValueError: There are no vectors.

    Example:
        >>> effective_rank(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
        tensor(2.)
    """
    check_rows("effective_rank", x, least=1)
    entropy: Tensor = torch.special.entr(spectrum(x)).sum()
    return entropy.exp()


def spectrum(x: Tensor) -> Tensor:
    """Returns the singular values of the unit vectors as shares of their sum, largest first.

    How much each direction carries; ``effective_rank`` is exp of their entropy. Not centered: the first share is
    large where all vectors have a direction in common. Vectors that are all zero give zeros.

    Args:
        x: Vectors, (n, D).

    Returns:
        Shares that sum to 1, (min(n, D),).

    Raises:
        ValueError: There are no vectors.

    Example:
        >>> spectrum(torch.tensor([[3.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 2.0]]))
        tensor([0.5000, 0.5000])
    """
    check_rows("spectrum", x, least=1)
    values: Tensor = torch.linalg.svdvals(_unit(x))
    return values / values.sum().clamp_min(EPSILON)


def mean_cosine(x: Tensor) -> Tensor:
    """Returns the mean cosine similarity of two different vectors, exactly.

    (||sum u_i||^2 - sum ||u_i||^2) / (n (n - 1)) over unit vectors u_i: every pair counts, none is drawn. 0 where
    directions cancel out, 1 where all vectors are equal: the anisotropy of Ethayarajh 2019,
    https://arxiv.org/abs/1909.00512, section 3.3, which samples it.

    Args:
        x: Vectors, (n, D), two at least.

    Returns:
        A scalar in [-1 / (n - 1), 1].

    Raises:
        ValueError: There are fewer than two vectors.

    Example:
        >>> mean_cosine(torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]))
        tensor(-0.3333)
    """
    check_rows("mean_cosine", x, least=2)
    unit = _unit(x)
    pairs = unit.sum(dim=0).square().sum() - unit.square().sum()
    return pairs / (len(x) * (len(x) - 1))


def iso_score(x: Tensor) -> Tensor:
    """Returns how evenly the directions of the space are used around the mean (IsoScore).

    Rudman et al. 2022, "IsoScore: Measuring the Uniformity of Embedding Space Utilization",
    https://aclanthology.org/2022.findings-acl.262, section 4. With the variances l_1, ..., l_D along the
    principal axes the paper's steps come to ((sum l)^2 / sum l^2 - 1) / (D - 1): 1 where all are equal, 0 where
    the vectors lie on a line or in a point, and (d - 1) / (D - 1) where d of D directions are used alike. The
    mean is taken off first: a direction that all vectors have in common is the business of ``mean_cosine``.

    It is low for want of vectors too: n of them have at most n - 1 directions.

    Differs: rows are first put on the unit sphere, because cosine similarity ignores their length.

    Args:
        x: Vectors, (n, D), two at least, of two features or more.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: There are fewer than two vectors or features.

    Example:
        >>> iso_score(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        tensor(1.)
    """
    check_rows("iso_score", x, least=2)
    if x.shape[1] < 2:
        raise InvalidValueError(f"iso_score: expected vectors of 2 features or more, got {tuple(x.shape)}")
    with full_precision(x.device):
        unit = unit_vectors(x)
        centered = unit - unit.mean(dim=0)
        covariance = centered.T @ centered / len(x)
    total = covariance.trace()
    rounding = 8 * torch.finfo(total.dtype).eps
    if total <= rounding**2:  # a point: what is left are rounding errors, which go in all directions
        return torch.zeros_like(total)
    return (total.square() / covariance.square().sum() - 1) / (x.shape[1] - 1)


def off_diagonal(x: Tensor) -> Tensor:
    """Returns the root mean square of the correlation of two different features.

    0 where no two features say the same, 1 where all do. Features that fill r directions alike have some
    1 / sqrt(r), and n rows never much less than 1 / sqrt(n - 1). What Barlow Twins and VICReg bring down, here
    whatever the scale (Zbontar et al. 2021, https://arxiv.org/abs/2103.03230). A feature without a spread has
    correlation 0 with all others.

    Args:
        x: Vectors, (n, D).

    Returns:
        A scalar in [0, 1]; 0 of one feature alone.

    Raises:
        ValueError: There are no vectors.

    Example:
        >>> round(float(off_diagonal(torch.tensor([[1.0, 2.0], [-1.0, -2.0], [3.0, 6.0]]))), 4)
        1.0
    """
    check_rows("off_diagonal", x, least=1)
    features = x.shape[1]
    centered = at_least_float32(x) - at_least_float32(x).mean(dim=0)
    unit = F.normalize(centered, dim=0, eps=EPSILON)
    squares = (unit.T @ unit).square()
    mean = (squares.sum() - squares.diagonal().sum()) / max(features * (features - 1), 1)
    return mean.clamp(0, 1).sqrt()


def positive_pairs(target: Tensor) -> Tensor:
    """Returns which scored pairs count as positives: those above four fifths of the largest score.

    On the scale of STS-B from 0 to 5 these are the pairs above 4, over which the alignment of SimCSE's plots is
    (Gao et al. 2021, https://arxiv.org/abs/2104.08821, section 5 and figure 3); of labels 0 and 1 it is the ones.

    Args:
        target: Gold scores, (n,), one at least.

    Returns:
        True on positives, (n,); none is where no score is above 0.

    Example:
        >>> positive_pairs(torch.tensor([5.0, 4.2, 4.0, 0.0]))
        tensor([ True,  True, False, False])
    """
    return (target > 0.8 * target.max()) & (target > 0)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(at_least_float32(x), dim=1, eps=EPSILON)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Returns the rows in blocks whose similarities to so many columns fit into memory."""
    size = max(1, _BLOCK_VALUES // columns)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


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
        above("Alignment.alpha", alpha, advice="the papers use 2")
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
        above("Uniformity.t", t, advice="the papers use 2")
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
