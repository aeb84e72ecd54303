"""Metrics of nearest neighbors: hubness, agreement of two models on the same texts, and label accuracy."""

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
"""Number of nearest neighbors of a vector for hubness: the N_10 of Radovanovic et al."""

_EVEN = 1e-8
"""Largest variance of k-occurrences, relative to their squared mean, that counts as rounding.

A change of one neighbor gives 2 / (n k^2)."""


class Hubs(NamedTuple):
    """Hubness of vectors: how unequally often vectors are nearest neighbors of other vectors.

    Args:
        skewness: Skewness of the k-occurrences. It is 0 if all vectors are neighbors equally often, and positive
            if a few vectors are neighbors very often (hubs).
        orphans: Share of the vectors that are no neighbor of any other vector, in [0, 1].

    Example:
        >>> Hubs(skewness=0.0, orphans=0.25).orphans
        0.25
    """

    skewness: float
    orphans: float


def hubness(x: Tensor, k: int = NEIGHBORS) -> Hubs:
    """Returns the hubness of vectors by cosine similarity: skewness of their k-occurrences, and share of orphans.

    The skewness is the standardized third moment of the k-occurrences N_k (Radovanovic et al. 2010, "Hubs in
    Space", JMLR 11, https://jmlr.org/papers/v11/radovanovic10a.html, section 2), or 0 if all N_k are equal. A
    search over vectors with hubs returns the same few texts for any query, and never returns orphans.

    Args:
        x: Vectors, (n, D).
        k: Number of nearest neighbors of each vector.

    Raises:
        ValueError: ``k`` is not from 1 to n - 1.

    Example:
        >>> hubness(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.7, 0.7], [0.0, 1.0]]), k=1)
        Hubs(skewness=0.0, orphans=0.5)
    """
    return hubness_from_occurrences(k_occurrences(x, k))


def hubness_from_occurrences(occurrences: Tensor) -> Hubs:
    """Returns the hubness of vectors from their k-occurrences, (n,)."""
    mean = occurrences.mean()
    variance = (occurrences - mean).square().mean()
    third = (occurrences - mean).pow(3).mean()
    is_even = bool(variance <= _EVEN * mean.square())
    return Hubs(
        skewness=0.0 if is_even else float(third / variance.pow(1.5)),
        orphans=float((occurrences == 0).double().mean()),
    )


def k_occurrences(x: Tensor, k: int = NEIGHBORS) -> Tensor:
    """Returns the k-occurrences of vectors: how many others have each vector among their k nearest neighbors.

    Neighbors are by cosine similarity. Vectors with equal similarities share the remaining places, so that the
    order of the rows doesn't matter, and vectors that are all equal have k each. Similarities within 8 units of
    rounding are equal. It is computed in blocks of rows: memory does not grow with the square of n.

    Args:
        x: Vectors, (n, D).
        k: Number of nearest neighbors of each vector.

    Returns:
        Numbers with a mean of k, (n,). They are whole numbers if no similarities are equal.

    Raises:
        ValueError: ``k`` is not from 1 to n - 1.

    Example:
        >>> k_occurrences(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.7, 0.7]]), k=1)
        tensor([0., 2., 1.])
    """
    check_rows("k_occurrences", x, least=2)
    if not 1 <= k < len(x):
        raise InvalidValueError(
            f"k_occurrences.k: expected 1 to {len(x) - 1} neighbors of {len(x)} vectors, got {k}"
        )
    return torch.stack([parts.sum(dim=0) for parts in neighbor_shares(x, k)]).sum(dim=0)


def neighbor_shares(x: Tensor, k: int) -> Iterator[Tensor]:
    """Yields for blocks of rows the share with which each vector is one of a row's k nearest neighbors.

    The result of a block is (rows, n), with values in [0, 1] and a sum of k for each row. Vectors whose
    similarities are equal to the k-th largest, within 8 units of rounding, share the remaining places.

    Args:
        x: Vectors, (n, D).
        k: Number of nearest neighbors of each vector.
    """
    for cosines in _to_others(x):
        yield nearest_shares(cosines, k)


def nearest_shares(cosines: Tensor, k: int) -> Tensor:
    """Returns the share with which each column is one of a row's k nearest columns, (R, C).

    Ties are shared as in ``neighbor_shares``.

    Args:
        cosines: Cosines of rows and columns, (R, C).
        k: Number of nearest columns of a row.
    """
    last = cosines.topk(k, dim=1).values[:, -1:]
    rounding = 8 * torch.finfo(cosines.dtype).eps
    nearer = cosines > last + rounding
    is_tied = (cosines >= last - rounding) & ~nearer
    shares = (k - nearer.sum(dim=1, keepdim=True)) / is_tied.sum(dim=1, keepdim=True)
    return torch.where(is_tied, shares, nearer.to(cosines.dtype))


def nearest_similarity(x: Tensor) -> Tensor:
    """Returns the cosine similarity of each vector with its nearest neighbor.

    It is near 1 for a text with a near-duplicate. It is computed in blocks of rows.

    Args:
        x: Vectors, (n, D), at least two.

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
    """Yields the cosines of blocks of rows with all vectors, (rows, n), with -inf for a row and itself."""
    for block in row_blocks(len(x), columns=len(x)):
        cosines = cosine_similarity_matrix(x[block], x)
        cosines.diagonal(offset=block.start).fill_(-torch.inf)
        yield cosines


def linear_cka(x: Tensor, y: Tensor, debiased: bool = False) -> Tensor:
    """Returns the linear centered kernel alignment (CKA) of two models' vectors of the same texts.

    ||X'Y||^2 / (||X'X|| ||Y'Y||) in Frobenius norms of centered vectors (Kornblith et al. 2019,
    https://arxiv.org/abs/1905.00414, section 3). It doesn't change if the vectors of a model are rotated, shifted
    or scaled, and is 1 if this makes both models equal. It is computed on the CPU in float64 from matrices of
    features by features, so that memory doesn't grow with the square of n.

    The plain value grows with D / n: for unrelated vectors it is about D / (n + D) and not 0. The debiased value
    replaces each norm by the unbiased estimate of HSIC (Song et al. 2012,
    https://jmlr.org/papers/v13/song12a.html, equation 5). It is about 0 for unrelated vectors, and may be
    negative.

    Args:
        x: Vectors of the first model, (n, D).
        y: Vectors of the second model for the same texts, (n, D').
        debiased: Whether to use unbiased estimates. They need four texts, the plain value two.

    Returns:
        A scalar, float64; NaN if all vectors of a model are equal.

    Raises:
        ValueError: The shapes don't fit together, or a value is NaN or infinite.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
        >>> linear_cka(x, torch.cat([5 - 3 * x, x], dim=1))
        tensor(1., dtype=torch.float64)
    """
    _check("linear_cka", x, y, least=4 if debiased else 2)
    x, y = (side.detach().cpu().double() for side in (x, y))
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    norms = [_hsic(side, side, debiased) for side in (x, y)]
    traces = [float(side.square().sum()) for side in (x, y)]
    # HSIC of a side with itself is at most its squared trace. Much smaller values are rounding errors.
    if any(value <= 1e-12 * trace**2 for value, trace in zip(norms, traces, strict=True)):
        return torch.tensor(math.nan, dtype=torch.float64)
    return _hsic(x, y, debiased) / (norms[0] * norms[1]).sqrt()


def _hsic(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """Returns HSIC of centered vectors under linear kernels, without a constant factor that cancels in CKA."""
    value = (x.T @ y).square().sum()
    if not debiased:
        return value
    n = len(x)
    k, m = (side.square().sum(dim=1) for side in (x, y))  # the kernels' diagonals
    return value - n / (n - 2) * (k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2))


def neighbor_overlap(x: Tensor, y: Tensor, k: int = 10) -> Tensor:
    """Returns the mean share of a text's k nearest neighbors that are the same for two models.

    Neighbors are other texts, by cosine similarity. With k = 10 it is the measure of Wendlandt et al. 2018,
    https://aclanthology.org/N18-1190, section 2, for one pair of models. It is 1 if all neighbors are the same;
    unrelated models have k / (n - 1).

    If similarities tie at the k-th place, the tied texts share the remaining places, and the smaller of a text's
    two shares is counted. The result therefore doesn't depend on the order of the texts, and equal vectors give
    1. Similarities within 8 units of rounding are ties. It is computed in blocks of rows: memory does not grow
    with the square of n.

    Args:
        x: Vectors of the first model, (n, D).
        y: Vectors of the second model for the same texts, (n, D').
        k: Number of neighbors of a text, below n.

    Returns:
        A scalar in [0, 1], float64.

    Raises:
        ValueError: The shapes don't fit together, a value is NaN or infinite, or ``k`` is not from 1 to n - 1.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> neighbor_overlap(x, x[[0, 2, 1, 3]], k=1)  # the neighbor of text 0 is 1 for x, and 2 for the other
        tensor(0., dtype=torch.float64)
    """
    _check("neighbor_overlap", x, y, least=2)
    x, y = x.detach().cpu(), y.detach().cpu()
    if not 1 <= k < len(x):
        raise InvalidValueError(
            f"neighbor_overlap.k: expected 1 to {len(x) - 1} neighbors of {len(x)} texts, got {k}; give more "
            "texts"
        )
    total = torch.zeros((), dtype=torch.float64)
    for first, second in zip(neighbor_shares(x, k), neighbor_shares(y, k), strict=True):
        total += torch.minimum(first, second).sum(dtype=torch.float64)
    return total / (k * len(x))


def guide_agreement(cosines: Tensor, guide: Tensor, hidden: Tensor) -> Tensor:
    """Returns the share of rows whose nearest column is the same for a model and its guide.

    It is ``neighbor_overlap`` with k = 1, including its ties, for rows and columns. In training, the columns are
    of an objective without a row's positive and its duplicates. Rows without a column are excluded.
    Unrelated models have 1 / number of columns, so that the value is lower in larger batches.

    Args:
        cosines: The model's cosines of rows and columns, (R, C).
        guide: The guide's cosines of the same texts, (R, C).
        hidden: True where a column is excluded for a row, (R, C).

    Returns:
        A scalar in [0, 1]; 0 if no row has a column.

    Example:
        >>> cosines = torch.tensor([[0.9, 0.8, 0.1], [0.9, 0.8, 0.1]])
        >>> guide = torch.tensor([[0.1, 0.3, 0.2], [0.1, 0.2, 0.3]])
        >>> guide_agreement(cosines, guide, hidden=torch.tensor([[True, False, False], [True, False, False]]))
        tensor(0.5000)
    """
    has_columns = ~hidden.all(dim=1)
    if not hidden.shape[1]:
        return cosines.new_zeros(())
    nearest = [nearest_shares(matrix.masked_fill(hidden, -torch.inf), 1) for matrix in (cosines, guide)]
    overlap = torch.minimum(nearest[0], nearest[1]).sum(dim=1) * has_columns
    return overlap.sum() / has_columns.sum().clamp(min=1)


def _check(name: str, x: Tensor, y: Tensor, least: int) -> None:
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or len(x) < least:
        raise InvalidValueError(
            f"{name}: expected two models' vectors (n, D) and (n, D') of the same n >= {least} texts, got "
            f"{tuple(x.shape)} and {tuple(y.shape)}; give one row per text for both models"
        )
    for argument, side in (("first", x), ("second", y)):
        if not bool(side.isfinite().all()):
            raise InvalidValueError(
                f"{name}: expected finite vectors, got NaN or infinity in the {argument} argument; check that "
                "training has not diverged"
            )


_TEMPERATURE = 0.07
"""Divisor of the cosine in the weight of a neighbor's vote (Wu et al. 2018, section 3.4)."""
_BLOCK = 1024
"""Number of rows whose cosines to all vectors are in memory at a time."""


def nearest_neighbor_accuracy(vectors: Tensor, labels: Tensor, k: int = 10) -> float:
    """Returns the accuracy of a weighted k-nearest-neighbor classifier on the texts themselves, times 100.

    Neighbors are other texts, by cosine similarity. Each votes for its class with a weight of exp(cosine / 0.07)
    (Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance Discrimination",
    https://arxiv.org/abs/1805.01978, section 3.4; here leave-one-out).

    Args:
        vectors: Vectors of the texts, (N, D).
        labels: Class number of each text, from 0, (N,), integers.
        k: Number of neighbors; all other texts if there are fewer.

    Returns:
        A number from 0 to 100.

    Raises:
        ValueError: There are fewer than two texts, the number of labels differs, or ``k`` is below 1.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> nearest_neighbor_accuracy(vectors, torch.tensor([0, 0, 1, 1]), k=1)
        100.0
        >>> nearest_neighbor_accuracy(vectors, torch.tensor([0, 1, 0, 1]), k=1)
        0.0
    """
    if vectors.ndim != 2 or len(vectors) < 2 or labels.shape != (len(vectors),) or k < 1:
        raise InvalidValueError(
            "nearest_neighbor_accuracy: expected vectors (N, D) of two or more texts, N labels and a k of 1 or "
            f"more, got {tuple(vectors.shape)}, {tuple(labels.shape)} and {k}; give a label for each vector"
        )
    unit, labels = normalize(vectors, dim=1), labels.to(vectors.device).long()
    classes, hits = int(labels.max()) + 1, 0
    for start in range(0, len(unit), _BLOCK):
        rows = torch.arange(start, min(start + _BLOCK, len(unit)), device=unit.device)
        cosines = unit[rows] @ unit.T
        cosines[torch.arange(len(rows), device=unit.device), rows] = -torch.inf
        near = cosines.topk(min(k, len(unit) - 1), dim=1)
        votes = (near.values / _TEMPERATURE).exp()[:, :, None] * one_hot(labels[near.indices], classes)
        hits += int((votes.sum(dim=1).argmax(dim=1) == labels[rows]).sum())
    return 100 * hits / len(unit)
