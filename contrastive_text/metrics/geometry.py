"""Alignment, uniformity, spectrum and isotropy of vectors, as pure functions and torchmetrics classes.

Functions normalize vectors in at least float32, outside autocast. A zero vector remains zero: its similarity to
every vector is 0, and no result is NaN.
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

from contrastive_text.core.errors import InvalidValueError, above
from contrastive_text.core.similarity import (
    EPSILON,
    at_least_float32,
    cosine_similarity_matrix,
    full_precision,
    unit_vectors,
)
from contrastive_text.metrics.similarity import ScoredPairMetric, check_pairs, check_rows

_BLOCK_VALUES = 2**24
"""Number of entries of a block of a similarity matrix: 64 MiB in float32."""
COLLAPSED = 0.99
"""Smallest mean cosine at which vectors count as collapsed: texts differ by less than 8 degrees on average."""
FEW_DIRECTIONS = 0.05
"""Largest effective rank of a partial collapse, as a share of the largest possible rank.

Encoders without training of sentence vectors have a share of about 0.5."""


def alignment(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """Returns the alignment of pairs: the mean power of the distance of their vectors on the unit sphere.

    mean over i of ||x_i - y_i||^alpha (Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section 4.1.1).
    With alpha 2 it is 0 if the vectors of every pair are equal, 2 at right angles, and 4 if they are opposite.

    Args:
        x: Vectors, (n, D).
        y: Vectors of their partners, (n, D).
        alpha: Exponent of the distance, above 0.

    Returns:
        A scalar.

    Raises:
        ValueError: The shapes differ or have no rows, or ``alpha`` is not above 0.

    Example:
        >>> alignment(torch.tensor([[1.0, 0.0]]), torch.tensor([[-3.0, 0.0]]))
        tensor(4.)
    """
    above("alignment.alpha", alpha, advice="the papers use 2")
    check_pairs("alignment", x, y)
    distances: Tensor = torch.linalg.vector_norm(_unit(x) - _unit(y), dim=1)
    return distances.pow(alpha).mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """Returns the uniformity of vectors: the log of the mean Gaussian potential on the unit sphere.

    log mean over i < j of exp(-t ||x_i - x_j||^2) (Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section
    4.1.2). With t = 2 it is 0 if all vectors are equal, -4 for two vectors at right angles, and -8 for two
    opposite vectors. It is computed in blocks of rows: memory does not grow with the square of n.

    Args:
        x: Vectors, (n, D), at least two.
        t: Sharpness of the potential, above 0.

    Returns:
        A scalar.

    Raises:
        ValueError: There are fewer than two vectors, or ``t`` is not above 0.

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
        is_pair = torch.ones_like(distances, dtype=torch.bool).triu()  # row i is paired with later columns only
        potentials.append((-t * distances).masked_fill(~is_pair, -torch.inf).flatten().logsumexp(dim=0))
    pairs = len(x) * (len(x) - 1) // 2
    return torch.stack(potentials).logsumexp(dim=0) - math.log(pairs)


def effective_rank(x: Tensor) -> Tensor:
    """Returns the effective rank of vectors, which is the number of directions that they fill.

    It is exp of the entropy of the singular values divided by their sum (Roy and Vetterli 2007, "The effective
    rank", section 2; Garrido et al. 2023, https://arxiv.org/abs/2210.02885, predict downstream scores with it).
    It is between 1, for vectors on a line, and min(n, D).

    Differs: rows are first scaled to unit length, because cosine similarity ignores their length. As in the
    papers, they are not centered. Vectors that are all zero give 1.

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
    """Returns the singular values of vectors scaled to unit length, as shares of their sum, largest first.

    ``effective_rank`` is exp of their entropy. Vectors are not centered: the first share is large if all vectors
    have a common direction. Vectors that are all zero give zeros.

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
    """Returns the exact mean cosine similarity over all pairs of different vectors.

    (||sum u_i||^2 - sum ||u_i||^2) / (n (n - 1)) over unit vectors u_i. It is 0 if directions cancel out, and 1
    if all vectors are equal. Ethayarajh 2019, https://arxiv.org/abs/1909.00512, section 3.3, estimates this
    anisotropy from samples.

    Args:
        x: Vectors, (n, D), at least two.

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
    """Returns the IsoScore of vectors: how evenly their variance is distributed over the directions of the space.

    Source: Rudman et al. 2022, "IsoScore: Measuring the Uniformity of Embedding Space Utilization",
    https://aclanthology.org/2022.findings-acl.262, section 4. With variances l_1, ..., l_D along the principal
    axes the score is ((sum l)^2 / sum l^2 - 1) / (D - 1). It is 1 if all variances are equal, 0 for vectors on a
    line or in a point, and (d - 1) / (D - 1) if d of D directions have equal variances. The mean is subtracted
    first; ``mean_cosine`` measures a common direction of all vectors.

    The score is also low if there are few vectors, because n vectors have at most n - 1 directions.

    Differs: rows are first scaled to unit length, because cosine similarity ignores their length.

    Args:
        x: Vectors, (n, D), at least two, with at least two features.

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
    if total <= rounding**2:  # equal vectors: the variances are rounding errors in all directions
        return torch.zeros_like(total)
    return (total.square() / covariance.square().sum() - 1) / (x.shape[1] - 1)


def off_diagonal(x: Tensor) -> Tensor:
    """Returns the root mean square correlation between different features of vectors.

    It is 0 if features are uncorrelated, and 1 if all are equal up to scale. Features that fill r directions
    evenly have about 1 / sqrt(r), and n rows rarely less than 1 / sqrt(n - 1). Barlow Twins and VICReg reduce it
    (Zbontar et al. 2021, https://arxiv.org/abs/2103.03230). A constant feature has correlation 0 with all others.

    Args:
        x: Vectors, (n, D).

    Returns:
        A scalar in [0, 1]; 0 for a single feature.

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
    """Returns a mask of the pairs that count as positives: with a gold score above 80 % of the largest score.

    On the scale of STS-B from 0 to 5, positives have scores above 4. SimCSE's plots show the alignment of these
    pairs (Gao et al. 2021, https://arxiv.org/abs/2104.08821, section 5 and figure 3). For labels 0 and 1,
    positives have 1.

    Args:
        target: Gold scores, (n,), at least one.

    Returns:
        True for positives, (n,); False for all pairs if no score is above 0.

    Example:
        >>> positive_pairs(torch.tensor([5.0, 4.2, 4.0, 0.0]))
        tensor([ True,  True, False, False])
    """
    return (target > 0.8 * target.max()) & (target > 0)


def describe_collapse(mean_cosine: float, effective_rank: float, most: int) -> str | None:
    """Returns a message if vectors have collapsed, completely or partially; None if they have not.

    Args:
        mean_cosine: Mean cosine of two different texts.
        effective_rank: Effective rank of all vectors.
        most: Largest possible effective rank: the smaller of the number of texts and the number of features.

    Example:
        >>> describe_collapse(mean_cosine=0.999, effective_rank=1.2, most=384)
        'the space has collapsed: two texts have cosine 0.999 on average, so similarities say nothing'
        >>> describe_collapse(mean_cosine=0.2, effective_rank=180.0, most=384)
    """
    if mean_cosine >= COLLAPSED:
        return (
            f"the space has collapsed: two texts have cosine {mean_cosine:.3f} on average, so similarities say "
            "nothing"
        )
    if effective_rank < FEW_DIRECTIONS * most:
        return (
            f"the vectors fill {effective_rank:.1f} of {most} directions: a partial collapse, in which different "
            "texts have similar vectors"
        )
    return None


def _unit(x: Tensor) -> Tensor:
    return F.normalize(at_least_float32(x), dim=1, eps=EPSILON)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Returns ranges of rows whose similarities to a number of columns have a bounded size in memory."""
    size = max(1, _BLOCK_VALUES // columns)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


@final
class Alignment(Metric):
    """Torchmetrics class of the alignment of pairs: mean power of the distance within a pair, lower is better.

    See ``alignment``. Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section 4.1.1.

    Args:
        alpha: Exponent of the distance, above 0.

    Raises:
        ValueError: ``alpha`` is not above 0.

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
        """Adds a batch of pairs: vectors and the vectors of their partners, (n, D) each."""
        self.total = self.total + alignment(x.detach(), y.detach(), alpha=self.alpha) * len(x)
        self.count = self.count + len(x)

    def compute(self) -> Tensor:
        """Returns the alignment of all pairs that were added, a scalar."""
        return self.total / self.count


@final
class PositiveAlignment(ScoredPairMetric):
    """Torchmetrics class of the alignment of pairs with high gold scores, lower is better.

    See ``positive_pairs`` for the selection of pairs, and ``alignment`` with an exponent of 2.

    Example:
        >>> metric = PositiveAlignment()
        >>> u, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[-3.0, 0.0], [0.0, 1.0]])
        >>> metric.update(u, v, target=torch.tensor([5.0, 0.0]))
        >>> metric.compute()
        tensor(4.)
    """

    higher_is_better = False

    def update(self, u: Tensor, v: Tensor, target: Tensor) -> None:
        """Adds a batch of pairs of vectors, (n, D) each, and their gold scores, (n,)."""
        check_pairs("PositiveAlignment", u, v)
        self.values.append((unit_vectors(u.detach()) - unit_vectors(v.detach())).square().sum(dim=1))
        self.targets.append(target.detach())

    def compute(self) -> Tensor:
        """Returns the alignment of all positives that were added, a scalar; NaN without positives."""
        return dim_zero_cat(self.values)[positive_pairs(dim_zero_cat(self.targets))].mean()


class _OfVectors(Metric):
    """Base class of metrics of all vectors together. It stores the vectors; ``figure`` computes the metric."""

    is_differentiable = False
    full_state_update = False
    figure: Callable[[Tensor], Tensor]
    vectors: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("vectors", default=[], dist_reduce_fx="cat")

    def update(self, x: Tensor) -> None:
        """Adds a batch of vectors, (n, D), to the metric."""
        self.vectors.append(x.detach())

    def compute(self) -> Tensor:
        """Returns the metric of all vectors that were added, a scalar. Raises ValueError if there are too few."""
        return self.figure(dim_zero_cat(self.vectors))


@final
class Uniformity(_OfVectors):
    """Torchmetrics class of uniformity: log of the mean Gaussian potential of vectors, lower is better.

    See ``uniformity``. Source: Wang and Isola 2020, https://arxiv.org/abs/2005.10242, section 4.1.2.

    Args:
        t: Sharpness of the potential, above 0.

    Raises:
        ValueError: ``t`` is not above 0.

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
        """Returns the uniformity of all vectors that were added, a scalar. Raises ValueError for one vector."""
        return uniformity(dim_zero_cat(self.vectors), t=self.t)


@final
class EffectiveRank(_OfVectors):
    """Torchmetrics class of the effective rank: number of directions that vectors fill, near 1 if collapsed.

    See ``effective_rank``. Source: Roy and Vetterli 2007, "The effective rank", section 2. Vectors are stored
    instead of their smaller Gram matrix, whose square roots are too inexact in float32.

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
    """Torchmetrics class of the mean cosine similarity of different vectors, near 1 if collapsed.

    It is exact over all pairs; see ``mean_cosine``.

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
    """Torchmetrics class of the IsoScore: how evenly vectors use the directions of their space, from 0 to 1.

    See ``iso_score``. Source: Rudman et al. 2022, https://aclanthology.org/2022.findings-acl.262.

    Example:
        >>> metric = IsoScore()
        >>> metric.update(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = True
    figure = staticmethod(iso_score)
