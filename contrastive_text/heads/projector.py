"""Projectors: heads that normalise each feature over the rows of the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contrastive_text.core.distributed import gather_rows, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.heads.base import Head, check_width

EPSILON = 1e-5
"""Added to the variance: torch's, and that of the authors' codes."""

MOMENTUM = 0.1
"""Share of a batch's statistics in the running ones: torch's."""


class WholeBatchNorm(nn.Module):
    """Batch normalisation with the statistics of all rows of all ranks, and their exact gradient.

    ``(x - mean) / sqrt(variance + 1e-5)`` of each feature, the variance biased, then a scale and a shift (Ioffe
    and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1). What ``torch.nn.BatchNorm1d`` gives one
    process that has all rows; ``torch.nn.SyncBatchNorm``, which doesn't run on a CPU, gives it several. Ranks may
    hold different numbers of rows.

    Running statistics, which stand in for the batch's in evaluation mode, follow every call in training mode, as
    torch's do; they are buffers, the same on every rank.

    Args:
        features: Width D.
        affine: Whether each feature has a trained scale and shift.

    Example:
        >>> norm = WholeBatchNorm(features=1)
        >>> norm(torch.tensor([[1.0], [3.0]])).flatten().tolist()
        [-0.9999949932098389, 0.9999949932098389]
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, features: int, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_variance", torch.ones(features))

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the normalised rows, (..., D) -> (..., D), in the weights' precision, or at least float32."""
        rows = at_least_float32(rows)
        mean, variance = self._moments(rows) if self.training else (self.running_mean, self.running_variance)
        normal: Tensor = (rows - mean) * (variance + EPSILON).rsqrt()
        if self.weight is None or self.bias is None:
            return normal
        return (normal * self.weight + self.bias).to(self.weight.dtype)  # the next layer's, under bf16-true too

    def _moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and variance over all ranks, (D,) each, and lets the running ones follow."""
        local = rows.flatten(0, -2)
        mean = local.sum(dim=0) / max(len(local), 1)
        count = torch.full((1,), len(local), dtype=mean.dtype, device=mean.device)
        moments = torch.cat([mean, (local - mean).square().sum(dim=0), count]).unsqueeze(0)
        # Sums of squares about each rank's own mean are put together as by Chan, Golub and LeVeque 1979: squares
        # about zero would lose the digits of a mean that is large beside the spread.
        gathered = gather_rows(moments, [1] * world_size())
        means, squares = gathered[:, :-1].chunk(2, dim=1)
        counts = gathered[:, -1:].detach()
        total = counts.sum().clamp(min=1)
        mean = (counts * means).sum(dim=0) / total
        variance = (squares + counts * (means - mean).square()).sum(dim=0) / total
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean), MOMENTUM)
            unbiased = variance * total / (total - 1).clamp(min=1)
            self.running_variance.lerp_(unbiased.to(self.running_variance), MOMENTUM)
        return mean, variance


class ProjectorHead(Head):
    """Linear layers with batch normalisation and ReLU between them: the projector of methods that need it.

    ``Linear, BN, ReLU`` for each width but the last, then ``Linear``; no layer has a bias. So the projectors of
    Barlow Twins (Zbontar et al. 2021, https://arxiv.org/abs/2103.03230: [8192, 8192, 8192]; facebookresearch/
    barlowtwins, main.py) and VICReg (Bardes et al. 2022, https://arxiv.org/abs/2105.04906: the same widths). With
    ``last_norm`` another BN without scale and shift comes last: that of DiffCSE (Chuang et al. 2022,
    https://arxiv.org/abs/2204.10298; voidism/DiffCSE, ``--batchnorm``), whose widths are twice the input's and
    the input's, the default here.

    A row's output depends on the other rows of the batch, so it is thrown away after training.
    Statistics are those of all ranks (see ``WholeBatchNorm``).

    Differs: DiffCSE's code takes the statistics of each process's own rows. VICReg's hidden layers have biases,
    which the normalisation takes away again.

    Args:
        widths: Of the outputs of the linear layers, in order; None for twice the input's and the input's.
        last_norm: Whether the outputs are normalised too, without scale and shift.
        together: Whether rows of all roles and views are normalised in one batch, as in DiffCSE and LeJEPA; else
            those of each slot by themselves, anchors and positives apart, as in Barlow Twins and VICReg.

    Raises:
        ValueError: No width, or one below 1.

    Example:
        >>> head = ProjectorHead(widths=[8, 2])
        >>> head.build(4)
        >>> head(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, widths: list[int] | None = None, last_norm: bool = False, together: bool = True) -> None:
        super().__init__(train_only=True)
        if widths is not None and not widths:
            raise InvalidValueError(
                "ProjectorHead.widths: expected a width for each linear layer, got none; leave it out for "
                "twice the input's and the input's"
            )
        for width in widths or ():
            check_width("ProjectorHead.widths", width)
        self.widths = widths
        self.last_norm = last_norm
        self.together = together

    def layers(self, features: int) -> nn.Sequential:
        """Returns the linear layers, each but the last with its normalisation and ReLU."""
        *hidden, out = self.widths or [2 * features, features]
        made: list[nn.Module] = []
        for width in hidden:
            made += [nn.Linear(features, width, bias=False), WholeBatchNorm(width), nn.ReLU()]
            features = width
        made.append(nn.Linear(features, out, bias=False))
        return nn.Sequential(*made, *([WholeBatchNorm(out, affine=False)] if self.last_norm else []))
