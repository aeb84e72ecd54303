"""How evenly vectors use their space: isotropy, and hubs among nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import cosine_similarity_matrix, full_precision, unit_vectors
from contrastive_text.metrics.functional import check_rows, row_blocks

NEIGHBOURS = 10
"""Neighbours of a vector in hubness: the N_10 of Radovanovic et al."""

_EVEN = 1e-8
"""Variance of k-occurrences, over their squared mean, that is rounding: one that moves gives 2 / (n k^2)."""


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
        centred = unit - unit.mean(dim=0)
        covariance = centred.T @ centred / len(x)
    total = covariance.trace()
    rounding = 8 * torch.finfo(total.dtype).eps
    if total <= rounding**2:  # a point: what is left are rounding errors, which go in all directions
        return torch.zeros_like(total)
    return (total.square() / covariance.square().sum() - 1) / (x.shape[1] - 1)


class Hubs(NamedTuple):
    """How unevenly vectors are neighbours of others.

    Args:
        skewness: Of the k-occurrences: 0 where all are neighbours equally often, above where few are very often.
        orphans: Share of the vectors that are no neighbour of any other, in [0, 1].

    Example:
        >>> Hubs(skewness=0.0, orphans=0.25).orphans
        0.25
    """

    skewness: float
    orphans: float


def hubness(x: Tensor, k: int = NEIGHBOURS) -> Hubs:
    """Returns how much some vectors are neighbours of many, and others of none.

    The standardised third moment of the k-occurrences N_k (Radovanovic et al. 2010, "Hubs in Space", JMLR 11,
    https://jmlr.org/papers/v11/radovanovic10a.html, section 2); by cosine similarity. Where all N_k are equal it
    is 0. A search over hubs gives the same few texts for any query, and never finds an orphan.

    Args:
        x: Vectors, (n, D).
        k: Neighbours of each vector.

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


def k_occurrences(x: Tensor, k: int = NEIGHBOURS) -> Tensor:
    """Returns for each vector among how many others' k nearest neighbours it is, by cosine similarity.

    Vectors that are equally near share what places are left: the order of the rows never counts, and of equal
    vectors all have k. Similarities within 8 units of rounding are equal. Computed in blocks of rows: memory does
    not grow with the square of n.

    Args:
        x: Vectors, (n, D).
        k: Neighbours of each vector.

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
            f"k_occurrences.k: expected 1 to {len(x) - 1} neighbours of {len(x)} vectors, got {k}"
        )
    return torch.stack([parts.sum(dim=0) for parts in neighbour_parts(x, k)]).sum(dim=0)


def neighbour_parts(x: Tensor, k: int) -> Iterator[Tensor]:
    """Yields for blocks of rows how much of every vector is among a row's k nearest others, (rows, n) in [0, 1].

    A row has k in all. Vectors that are equally near at the k-th place, but for 8 units of rounding, share what
    is left of it.
    """
    for cosines in _to_others(x):
        yield nearest_parts(cosines, k)


def nearest_parts(cosines: Tensor, k: int) -> Tensor:
    """Returns how much of every column is among a row's k nearest, as ``neighbour_parts`` does, (R, C)."""
    last = cosines.topk(k, dim=1).values[:, -1:]
    rounding = 8 * torch.finfo(cosines.dtype).eps
    nearer = cosines > last + rounding
    tied = (cosines >= last - rounding) & ~nearer
    places = (k - nearer.sum(dim=1, keepdim=True)) / tied.sum(dim=1, keepdim=True)
    return torch.where(tied, places, nearer.to(cosines.dtype))


def nearest_similarity(x: Tensor) -> Tensor:
    """Returns for each vector the cosine similarity of its nearest neighbour.

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
