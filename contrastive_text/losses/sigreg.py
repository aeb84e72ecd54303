"""SIGReg: vectors held against a normal distribution along random directions."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses.batch import BatchLoss, check_weights
from contrastive_text.losses.by_rows import in_parts

_FARTHEST, _POINTS = 3.0, 17
"""Where characteristic functions are compared: 17 points from 0 to 3, by symmetry those of -3 to 3."""

_BLOCK_ENTRIES = 2**22
"""Most values of cosines and of sines that are held at once, of rows x directions x points."""


class SIGReg(BatchLoss):
    """LeJEPA: pairs alike, and the vectors of each side like draws of a standard normal distribution.

    ``mean over views, rows and features of (z - c)^2 + w * S``, c the mean of a pair's two views. S is the mean
    over random directions of the statistic of Epps and Pulley of the N projections u along each: ``N * integral
    of phi(t) * ((mean cos(t u) - phi(t))^2 + (mean sin(t u))^2) dt`` from -3 to 3, ``phi(t) = exp(-t^2 / 2)``, by
    the trapezium rule. Source: Balestriero and LeCun 2025, LeJEPA (https://arxiv.org/abs/2511.08544); 17 points,
    1024 directions and weight 0.02 as in galilai-group/stable-pretraining (methods/lejepa.py), where the vectors
    come from a projector with batch normalisation. They aren't brought to length 1.

    S grows with N where vectors aren't normal: a weight belongs to a size of the batch.

    Differs: S is the mean of that of each side, which is what the docstring of that code says. The code itself
    puts both views into one sample (``pooled``), though two views of a text are no independent draws, and the
    statistic of twice as many rows is larger. Directions are a function of ``seed`` and the ids of the texts, the
    same on every rank and in every pass of a step; there they are drawn from the step's number, and each rank
    takes the statistic of its own rows, here that of all.

    Args:
        weight: Weight w.
        directions: How many there are.
        pooled: Whether both sides make one sample.
        seed: Of the directions.

    Raises:
        ValueError: A weight below 0, or no direction.

    Example:
        >>> x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
        >>> loss = SIGReg(weight=1.0, directions=16)
        >>> bool(loss(x, x) < 5), bool(loss(3 * x, 3 * x) > 50)
        (True, True)
    """

    decorrelates: ClassVar[bool] = True
    remedy: ClassVar[str] = "a larger weight of SIGReg"

    def __init__(self, weight: float = 0.02, directions: int = 1024, pooled: bool = False, seed: int = 0) -> None:
        super().__init__()
        check_weights("SIGReg", weight=weight)
        if directions < 1:
            raise InvalidValueError(
                f"SIGReg.directions: expected 1 or more, got {directions}; the authors' code has 1024"
            )
        self.weight = weight
        self.directions = directions
        self.pooled = pooled
        self.seed = seed

    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the distance within pairs and the weighted statistic, a scalar."""
        along = self._draw(anchor, ids)
        samples = [torch.cat([anchor, positive])] if self.pooled else [anchor, positive]
        statistic = torch.stack([epps_pulley(rows, along).mean() for rows in samples]).mean()
        # Two views lie half their difference from their mean.
        return (anchor - positive).square().mean() / 4 + self.weight * statistic

    def _draw(self, like: Tensor, ids: Tensor) -> Tensor:
        """Returns directions of length 1, (D, S)."""
        # A sum has no order; ids are hashes of texts, so that other texts have another sum.
        key = (int(ids.sum()) + self.seed) % 2**63
        noise = torch.Generator(like.device).manual_seed(key)
        drawn = torch.randn(like.shape[1], self.directions, generator=noise, device=like.device)
        return F.normalize(drawn.to(like.dtype), dim=0)


def epps_pulley(rows: Tensor, directions: Tensor) -> Tensor:
    """Returns how far the projections of rows along each direction are from a standard normal distribution.

    The statistic of Epps and Pulley 1983, over [-3, 3] in 33 points. Many rows are projected on some directions
    at a time, whose cosines and sines are computed anew in the backward pass.

    Args:
        rows: (N, D).
        directions: (D, S).

    Returns:
        (S,)

    Example:
        >>> epps_pulley(torch.tensor([[0.5], [-0.5]]), torch.ones(1, 1)).shape
        torch.Size([1])
    """
    size = max(1, _BLOCK_ENTRIES // max(_POINTS * len(rows), 1))
    return torch.cat(in_parts(partial(_statistics, rows), torch.split(directions, size, dim=1)))


def _statistics(rows: Tensor, directions: Tensor) -> Tensor:
    points = torch.linspace(0.0, _FARTHEST, _POINTS, dtype=rows.dtype, device=rows.device)
    step = _FARTHEST / (_POINTS - 1)
    normal = torch.exp(-points.square() / 2)
    widths = torch.full_like(points, 2 * step)  # a point other than 0 stands for two
    widths[0] = widths[-1] = step
    angles = points.view(-1, 1, 1) * (rows @ directions)
    real = angles.cos().mean(dim=1) - normal.unsqueeze(1)
    distances: Tensor = real.square() + angles.sin().mean(dim=1).square()
    return len(rows) * (normal * widths) @ distances
