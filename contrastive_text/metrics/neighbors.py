"""Neighborhoods of vectors: hubs, agreement of two models on the same texts, and accuracy of labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import cosine_similarity_matrix
from contrastive_text.metrics.geometry import row_blocks
from contrastive_text.metrics.similarity import check_rows

NEIGHBORS = 10
"""Neighbors of a vector in hubness: the N_10 of Radovanovic et al."""

_EVEN = 1e-8
"""Variance of k-occurrences, over their squared mean, that is rounding: one that moves gives 2 / (n k^2)."""


class Hubs(NamedTuple):
    """How unevenly vectors are neighbors of others.

    Args:
        skewness: Of the k-occurrences: 0 where all are neighbors equally often, above where few are very often.
        orphans: Share of the vectors that are no neighbor of any other, in [0, 1].

    Example:
        >>> Hubs(skewness=0.0, orphans=0.25).orphans
        0.25
    """

    skewness: float
    orphans: float


def hubness(x: Tensor, k: int = NEIGHBORS) -> Hubs:
    """Returns how much some vectors are neighbors of many, and others of none.

    The standardized third moment of the k-occurrences N_k (Radovanovic et al. 2010, "Hubs in Space", JMLR 11,
    https://jmlr.org/papers/v11/radovanovic10a.html, section 2); by cosine similarity. Where all N_k are equal it
    is 0. A search over hubs gives the same few texts for any query, and never finds an orphan.

    Args:
        x: Vectors, (n, D).
        k: Neighbors of each vector.

    Raises:
        ValueError: k isn't in 1 to n - 1.

    Example:
        >>> hubness(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.7, 0.7], [0.0, 1.0]]), k=1)
        Hubs(skewness=0.0, orphans=0.5)
    """
    return hubs(k_occurrences(x, k))


def hubs(occurrences: Tensor) -> Hubs:
    """Returns ``hubness`` from k-occurrences, (n,)."""
    mean = occurrences.mean()
    variance = (occurrences - mean).square().mean()
    third = (occurrences - mean).pow(3).mean()
    even = bool(variance <= _EVEN * mean.square())
    return Hubs(
        skewness=0.0 if even else float(third / variance.pow(1.5)),
        orphans=float((occurrences == 0).double().mean()),
    )


def k_occurrences(x: Tensor, k: int = NEIGHBORS) -> Tensor:
    """Returns for each vector among how many others' k nearest neighbors it is, by cosine similarity.

    Vectors that are equally near share what places are left: the order of the rows never counts, and of equal
    vectors all have k. Similarities within 8 units of rounding are equal. Computed in blocks of rows: memory does
    not grow with the square of n.

    Args:
        x: Vectors, (n, D).
        k: Neighbors of each vector.

    Returns:
        Numbers whose mean is k, whole where nothing is equally near, (n,).

    Raises:
        ValueError: k isn't in 1 to n - 1.

    Example:
        >>> k_occurrences(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.7, 0.7]]), k=1)
        tensor([0., 2., 1.])
    """
    check_rows("k_occurrences", x, least=2)
    if not 1 <= k < len(x):
        raise InvalidValueError(
            f"k_occurrences.k: expected 1 to {len(x) - 1} neighbors of {len(x)} vectors, got {k}"
        )
    return torch.stack([parts.sum(dim=0) for parts in neighbor_parts(x, k)]).sum(dim=0)


def neighbor_parts(x: Tensor, k: int) -> Iterator[Tensor]:
    """Yields for blocks of rows how much of every vector is among a row's k nearest others, (rows, n) in [0, 1].

    A row has k in all. Vectors that are equally near at the k-th place, but for 8 units of rounding, share what
    is left of it.
    """
    for cosines in _to_others(x):
        yield nearest_parts(cosines, k)


def nearest_parts(cosines: Tensor, k: int) -> Tensor:
    """Returns how much of every column is among a row's k nearest, as ``neighbor_parts`` does, (R, C)."""
    last = cosines.topk(k, dim=1).values[:, -1:]
    rounding = 8 * torch.finfo(cosines.dtype).eps
    nearer = cosines > last + rounding
    tied = (cosines >= last - rounding) & ~nearer
    places = (k - nearer.sum(dim=1, keepdim=True)) / tied.sum(dim=1, keepdim=True)
    return torch.where(tied, places, nearer.to(cosines.dtype))


def nearest_similarity(x: Tensor) -> Tensor:
    """Returns for each vector the cosine similarity of its nearest neighbor.

    Near 1 where a text has a near-duplicate. Computed in blocks of rows.

    Args:
        x: Vectors, (n, D), two at least.

    Returns:
        Similarities, (n,).

    Raises:
        ValueError: There are fewer than two vectors.

    Example:
        >>> nearest_similarity(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 2.0]]))
        tensor([0.8000, 0.8000, 0.6000])
    """
    check_rows("nearest_similarity", x, least=2)
    return torch.cat([cosines.amax(dim=1) for cosines in _to_others(x)])


def _to_others(x: Tensor) -> Iterator[Tensor]:
    """Yields the cosines of each block of rows with all, (rows, n); with themselves minus infinity."""
    for block in row_blocks(len(x), columns=len(x)):
        cosines = cosine_similarity_matrix(x[block], x)
        cosines.diagonal(offset=block.start).fill_(-torch.inf)
        yield cosines


def linear_cka(x: Tensor, y: Tensor, debiased: bool = False) -> Tensor:
    """Returns the linear centered kernel alignment of two models' vectors of the same texts.

    ||X'Y||^2 / (||X'X|| ||Y'Y||) in Frobenius norms, of vectors from which the mean is taken (Kornblith et al.
    2019, https://arxiv.org/abs/1905.00414, section 3). Turning, moving and scaling all vectors of a side changes
    nothing; 1 where that makes the two sides equal. Computed on the CPU in float64 from matrices of features by
    features, so that memory doesn't grow with the square of n.

    The plain value grows with D / n: for unrelated vectors it is about D / (n + D) and not 0. The debiased one
    puts the unbiased estimate of HSIC (Song et al. 2012, https://jmlr.org/papers/v13/song12a.html, equation 5) in
    place of each norm: about 0 for unrelated vectors whatever n is, and it may fall below.

    Args:
        x: One model's vectors, (n, D).
        y: The other's vectors of the same texts, (n, D').
        debiased: Whether to take the unbiased estimates; it needs four texts, the plain value two.

    Returns:
        A scalar, float64; NaN where all vectors of a side are equal and nothing can be aligned.

    Raises:
        ValueError: A shape does not fit, or a value is NaN or infinite.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
        >>> linear_cka(x, torch.cat([5 - 3 * x, x], dim=1))
        tensor(1., dtype=torch.float64)
    """
    _check("linear_cka", x, y, least=4 if debiased else 2)
    x, y = (side.detach().cpu().double() for side in (x, y))
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    own = [_hsic(side, side, debiased) for side in (x, y)]
    trace = [float(side.square().sum()) for side in (x, y)]
    # HSIC of a side with itself is at most its trace squared: far below it stands rounding alone.
    if any(value <= 1e-12 * size**2 for value, size in zip(own, trace, strict=True)):
        return torch.tensor(math.nan, dtype=torch.float64)
    return _hsic(x, y, debiased) / (own[0] * own[1]).sqrt()


def _hsic(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Returns HSIC of centered vectors under linear kernels, but for a factor that CKA divides out."""
    value = (x.T @ y).square().sum()
    if not debiased:
        return value
    n = len(x)
    k, m = (side.square().sum(dim=1) for side in (x, y))  # the kernels' diagonals
    return value - n / (n - 2) * (k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2))


def neighbor_overlap(x: Tensor, y: Tensor, k: int = 10) -> Tensor:
    """Returns the share of each text's k nearest neighbors that two models have in common, on average.

    Neighbors by cosine similarity, the text itself left out. With k = 10 it is the measure of Wendlandt et al.
    2018, https://aclanthology.org/N18-1190, section 2, of one pair of models. 1 where all neighborhoods are
    equal; unrelated models have k / (n - 1).

    Where similarities tie at the k-th place, the places left are divided among the tied texts, and two models
    share of a text the smaller of its two parts: the result doesn't depend on the order of the texts, and equal
    vectors give 1. Similarities within 8 units of rounding are ties. Computed in blocks of rows: memory does not
    grow with the square of n.

    Args:
        x: One model's vectors, (n, D).
        y: The other's vectors of the same texts, (n, D').
        k: Neighbors of a text, fewer than texts.

    Returns:
        A scalar in [0, 1], float64.

    Raises:
        ValueError: A shape does not fit, a value is NaN or infinite, or k is below 1 or not below n.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> neighbor_overlap(x, x[[0, 2, 1, 3]], k=1)  # 0 lies beside 1 here and beside 2 there, and so on
        tensor(0., dtype=torch.float64)
    """
    _check("neighbor_overlap", x, y, least=2)
    x, y = x.detach().cpu(), y.detach().cpu()
    if not 1 <= k < len(x):
        raise InvalidValueError(
            f"neighbor_overlap.k: expected 1 to {len(x) - 1} neighbors of {len(x)} texts, got {k}; give more "
            "texts"
        )
    shared = torch.zeros((), dtype=torch.float64)
    for own, other in zip(neighbor_parts(x, k), neighbor_parts(y, k), strict=True):
        shared += torch.minimum(own, other).sum(dtype=torch.float64)
    return shared / (k * len(x))


def guide_agreement(cosines: Tensor, guide: Tensor, hidden: Tensor) -> Tensor:
    """Returns the share of rows whose nearest column is the same by a model and by its guide.

    It is ``neighbor_overlap`` with k = 1, ties included, of rows and columns. In training the columns are what
    an objective holds rows against, but for a row's positive and texts equal to its own. Rows without a column
    don't count. Unrelated models have one over the number of columns, so it is lower in larger batches.

    Args:
        cosines: The model's, (R, C).
        guide: The guide's of the same texts, (R, C).
        hidden: True where a column doesn't count for a row, (R, C).

    Returns:
        A scalar in [0, 1]; 0 where no row has a column.

    Example:
        >>> cosines = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1]])
        >>> guide = torch.tensor([[0.1, 0.3, 0.2], [0.1, 0.2, 0.3]])
        >>> guide_agreement(cosines, guide, hidden=torch.tensor([[True, False, False], [True, False, False]]))
        tensor(0.5000)
    """
    some = ~hidden.all(dim=1)
    if not hidden.shape[1]:
        return cosines.new_zeros(())
    own, theirs = (nearest_parts(each.masked_fill(hidden, -torch.inf), 1) for each in (cosines, guide))
    shared = torch.minimum(own, theirs).sum(dim=1) * some
    return shared.sum() / some.sum().clamp(min=1)


def _check(name: str, x: Tensor, y: Tensor, least: int) -> None:
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or len(x) < least:
        raise InvalidValueError(
            f"{name}: expected two models' vectors (n, D) and (n, D') of the same n >= {least} texts, got "
            f"{tuple(x.shape)} and {tuple(y.shape)}; give one row per text on both sides"
        )
    for place, side in (("first", x), ("second", y)):
        if not bool(side.isfinite().all()):
            raise InvalidValueError(
                f"{name}: expected finite vectors, got NaN or infinity in the {place} argument; check that "
                "training has not diverged"
            )


_TEMPERATURE = 0.07
"""Wu et al. 2018, section 3.4."""
_BLOCK = 1024


def nearest_neighbor_accuracy(vectors: Tensor, labels: Tensor, k: int = 10) -> float:
    """Returns how often the k nearest others of a text vote for its class, times 100.

    Neighbors are by cosine, and each votes for its class with the weight exp(cosine / 0.07); a text is no
    neighbor of itself (Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance
    Discrimination", https://arxiv.org/abs/1805.01978, section 3.4, here leaving one out).

    Args:
        vectors: (N, D).
        labels: Number of each text's class, from 0, (N,), integers.
        k: Neighbors; all others where there are fewer.

    Raises:
        ValueError: Fewer than two texts, as many labels as there aren't texts, or a k below 1.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> nearest_neighbor_accuracy(vectors, torch.tensor([0, 0, 1, 1]), k=1)
        100.0
        >>> nearest_neighbor_accuracy(vectors, torch.tensor([0, 1, 0, 1]), k=1)
        0.0
    """
    if vectors.ndim != 2 or len(vectors) < 2 or labels.shape != (len(vectors),) or k < 1:
        raise InvalidValueError(
            "nearest_neighbor_accuracy: expected vectors (N, D) of two texts or more, N labels and a k of 1 or "
            f"more, got {tuple(vectors.shape)}, {tuple(labels.shape)} and {k}; give a label for each vector"
        )
    unit, labels = normalize(vectors, dim=1), labels.to(vectors.device).long()
    classes, right = int(labels.max()) + 1, 0
    for start in range(0, len(unit), _BLOCK):
        rows = torch.arange(start, min(start + _BLOCK, len(unit)), device=unit.device)
        cosines = unit[rows] @ unit.T
        cosines[torch.arange(len(rows), device=unit.device), rows] = -torch.inf
        near = cosines.topk(min(k, len(unit) - 1), dim=1)
        votes = (near.values / _TEMPERATURE).exp()[:, :, None] * one_hot(labels[near.indices], classes)
        right += int((votes.sum(dim=1).argmax(dim=1) == labels[rows]).sum())
    return 100 * right / len(unit)
