"""Do two models see the same texts alike? Measures that need no gold score, and no equal number of features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.metrics.spread import nearest_parts, neighbour_parts


def linear_cka(x: Tensor, y: Tensor, debiased: bool = False) -> Tensor:
    """Returns the linear centred kernel alignment of two models' vectors of the same texts.

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
    """Returns HSIC of centred vectors under linear kernels, but for a factor that CKA divides out."""
    value = (x.T @ y).square().sum()
    if not debiased:
        return value
    n = len(x)
    k, m = (side.square().sum(dim=1) for side in (x, y))  # the kernels' diagonals
    return value - n / (n - 2) * (k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2))


def neighbour_overlap(x: Tensor, y: Tensor, k: int = 10) -> Tensor:
    """Returns the share of each text's k nearest neighbours that two models have in common, on average.

    Neighbours by cosine similarity, the text itself left out. With k = 10 it is the measure of Wendlandt et al.
    2018, https://aclanthology.org/N18-1190, section 2, of one pair of models. 1 where all neighbourhoods are
    equal; unrelated models have k / (n - 1).

    Where similarities tie at the k-th place, the places left are divided among the tied texts, and two models
    share of a text the smaller of its two parts: the result doesn't depend on the order of the texts, and equal
    vectors give 1. Similarities within 8 units of rounding are ties. Computed in blocks of rows: memory does not
    grow with the square of n.

    Args:
        x: One model's vectors, (n, D).
        y: The other's vectors of the same texts, (n, D').
        k: Neighbours of a text, fewer than texts.

    Returns:
        A scalar in [0, 1], float64.

    Raises:
        ValueError: A shape does not fit, a value is NaN or infinite, or k is below 1 or not below n.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> neighbour_overlap(x, x[[0, 2, 1, 3]], k=1)  # 0 lies beside 1 here and beside 2 there, and so on
        tensor(0., dtype=torch.float64)
    """
    _check("neighbour_overlap", x, y, least=2)
    x, y = x.detach().cpu(), y.detach().cpu()
    if not 1 <= k < len(x):
        raise InvalidValueError(
            f"neighbour_overlap.k: expected 1 to {len(x) - 1} neighbours of {len(x)} texts, got {k}; give more "
            "texts"
        )
    shared = torch.zeros((), dtype=torch.float64)
    for own, other in zip(neighbour_parts(x, k), neighbour_parts(y, k), strict=True):
        shared += torch.minimum(own, other).sum(dtype=torch.float64)
    return shared / (k * len(x))


def guide_agreement(cosines: Tensor, guide: Tensor, hidden: Tensor) -> Tensor:
    """Returns the share of rows whose nearest column is the same by a model and by its guide.

    It is ``neighbour_overlap`` with k = 1, ties included, of rows and columns. In training the columns are what
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
