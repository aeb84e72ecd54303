"""Formulas of the metrics: pure functions on tensors, under torch's name for such a module.

Vectors are normalised inside, in float32 at least, and never under autocast. A vector of zeros stays one: its
similarity to everything is 0 and no result is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import EPSILON, at_least_float32, cosine_similarity_matrix

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
    check_positive("alignment.alpha", alpha)
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
    check_positive("uniformity.t", t)
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
    papers we do not centre them. Vectors that are all zero give 1.

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

    How much each direction carries; ``effective_rank`` is exp of their entropy. Not centred: the first share is
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
    centred = at_least_float32(x) - at_least_float32(x).mean(dim=0)
    unit = F.normalize(centred, dim=0, eps=EPSILON)
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


def answer_ranks(rows: Tensor, columns: Tensor, target: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Returns for each row the rank of its column among all columns, by cosine similarity.

    1 + the number of other columns whose similarity is not smaller: ties count against the row, so that
    collapsed vectors, all equal, come last and not first. Similarities within 8 units of rounding are ties.

    Args:
        rows: Vectors that ask, (R, D).
        columns: Vectors to choose from, (C, D).
        target: For each row the index of its column, (R,).
        unseen: True for a column that a row doesn't meet, (R, C), never its own; None where rows meet all.

    Returns:
        Ranks from 1 to C, (R,), int64.

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> rows, columns = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 1.0]])
        >>> answer_ranks(rows, columns, target=torch.tensor([0]))
        tensor([2])
    """
    check_rows("answer_ranks", rows, least=1)
    check_rows("answer_ranks", columns, least=1)
    if rows.shape[1] != columns.shape[1] or target.shape != rows.shape[:1]:
        raise InvalidValueError(
            f"answer_ranks: expected (R, D), (C, D) and (R,), got {tuple(rows.shape)}, "
            f"{tuple(columns.shape)} and {tuple(target.shape)}; give one target per row"
        )
    ranks = []
    for block in row_blocks(len(rows), columns=len(columns)):
        cosines = cosine_similarity_matrix(rows[block], columns)
        own = cosines.gather(1, target[block, None])
        rounding = 8 * torch.finfo(cosines.dtype).eps
        nearer = cosines >= own - rounding  # the answer itself is the 1
        ranks.append((nearer if unseen is None else nearer & ~unseen[block]).sum(dim=1))
    return torch.cat(ranks)


def in_batch_accuracy(rows: Tensor, columns: Tensor, target: Tensor, unseen: Tensor | None = None) -> Tensor:
    """Returns the share of rows whose own column is the most similar one.

    Ties count against the row (see ``answer_ranks``): collapsed vectors score 0.

    Args:
        rows: Vectors that ask, (R, D).
        columns: Vectors to choose from, (C, D).
        target: For each row the index of its column, (R,).
        unseen: As for ``answer_ranks``.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> in_batch_accuracy(torch.eye(2), torch.eye(2), target=torch.tensor([0, 0]))
        tensor(0.5000)
    """
    return (answer_ranks(rows, columns, target, unseen) == 1).float().mean()


def check_positive(name: str, value: float) -> None:
    """Checks that a number is positive and finite (ValueError)."""
    if not 0 < value < math.inf:
        raise InvalidValueError(f"{name}: expected a positive number, got {value}; the papers use 2")


def check_pairs(name: str, x: Tensor, y: Tensor) -> None:
    """Checks that tensors are as many paired vectors of one width (ValueError)."""
    check_rows(name, x, least=1)
    if x.shape != y.shape:
        raise InvalidValueError(
            f"{name}: expected paired vectors of one shape (n, D), got {tuple(x.shape)} and "
            f"{tuple(y.shape)}; row i of the second argument is the partner of row i of the first"
        )


def check_rows(name: str, x: Tensor, least: int) -> None:
    """Checks that there are so many vectors, (n, D), or more (ValueError)."""
    if x.ndim != 2 or len(x) < least:
        raise InvalidValueError(
            f"{name}: expected vectors (n, D) with n >= {least}, got {tuple(x.shape)}; give one row per text"
        )


def _unit(x: Tensor) -> Tensor:
    return F.normalize(at_least_float32(x), dim=1, eps=EPSILON)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Returns the rows in blocks whose similarities to so many columns fit into memory."""
    size = max(1, _BLOCK_VALUES // columns)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
