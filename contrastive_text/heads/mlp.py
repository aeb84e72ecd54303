"""Heads of linear layers: one layer, two, a classifier for fine-tuning, and a projector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contrastive_text.core import checks
from contrastive_text.core.distributed import gather_rows, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.heads.base import Head

EPSILON = 1e-5
"""Added to the variance: torch's, and that of the authors' codes."""

MOMENTUM = 0.1
"""Share of a batch's statistics in the running ones: torch's."""


class TanhHead(Head):
    """One linear layer of the same width and tanh: the MLP on [CLS] of SimCSE (and BERT's pooler).

    Freshly initialized, normal with standard deviation 0.02 and zero bias, never from the checkpoint's pooler
    (Gao et al. 2021, section 6.3 "pooling"; the authors' code).

    Args:
        train_only: Whether only an objective sees the output.
        share: Name under which objectives' heads have the layer in common; None for one of its own.

    Raises:
        ValueError: A layer shared by a head that inference keeps.

    Example:
        >>> import torch
        >>> head = TanhHead()
        >>> head.build(4)
        >>> head(torch.zeros(1, 4))
        tensor([[0., 0., 0., 0.]], grad_fn=<TanhBackward0>)
    """

    def __init__(self, train_only: bool = True, share: str | None = None) -> None:
        super().__init__(train_only=train_only)
        _check_share("TanhHead", share, train_only)
        self.share = share

    def layers(self, features: int) -> nn.Sequential:
        """Returns Linear(D, D) and tanh."""
        linear = nn.Linear(features, features)
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
        return nn.Sequential(linear, nn.Tanh())


class MLPHead(Head):
    """Linear, ReLU, linear: the projection head of SimCLR (Chen et al. 2020, section 4.2).

    With dropout before each of the two layers, and the first one shared by two tasks, it is the head of the
    CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings": hidden 768, dropout
    0.3 at each linear layer).

    Args:
        hidden_features: Width of the middle layer; None for the input's.
        out_features: Width of the result; None for the input's.
        train_only: Whether only an objective sees the output.
        dropout: Share of a layer's inputs that training sets to zero.
        share: Name under which objectives' heads have layers in common; None for layers of its own.
        shared_layers: How many of the first linear layers those heads share; None for both.

    Raises:
        ValueError: A width below 1, a dropout outside 0 .. 1, ``shared_layers`` without a name or other than
            1 and 2, or layers shared by a head that inference keeps.

    Example:
        >>> import torch
        >>> head = MLPHead(hidden_features=8, out_features=2)
        >>> head.build(4)
        >>> head(torch.zeros(1, 4)).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        hidden_features: int | None = None,
        out_features: int | None = None,
        train_only: bool = True,
        dropout: float = 0.0,
        share: str | None = None,
        shared_layers: int | None = None,
    ) -> None:
        super().__init__(train_only=train_only)
        _check_share("MLPHead", share, train_only)
        if shared_layers is not None and (share is None or shared_layers not in (1, 2)):
            raise InvalidValueError(
                f"MLPHead.shared_layers: expected 1 or 2 of its two linear layers and a name in share, got "
                f"{shared_layers} and share: {share}; give the heads that share them the same name"
            )
        self.hidden_features = checks.at_least("MLPHead.hidden_features", hidden_features, 1)
        self.out_features = checks.at_least("MLPHead.out_features", out_features, 1)
        self.dropout = checks.share("MLPHead.dropout", dropout, "0 is none", with_one=False)
        self.share = share
        self.shared_layers = shared_layers

    def layers(self, features: int) -> nn.Sequential:
        """Returns Linear(D, hidden), ReLU and Linear(hidden, out), each linear layer after its dropout."""
        hidden = self.hidden_features or features
        first, second = nn.Linear(features, hidden), nn.Linear(hidden, self.out_features or features)
        if self.dropout == 0:
            return nn.Sequential(first, nn.ReLU(), second)
        return nn.Sequential(nn.Dropout(self.dropout), first, nn.ReLU(), nn.Dropout(self.dropout), second)


class FineTuningHead(Head):
    """Linear, tanh, dropout, linear: BERT's pooler, and the layer that is fine-tuned after it.

    Over ``CLSPooler`` it is the head of Devlin et al. 2019, BERT (https://arxiv.org/abs/1810.04805, section 4.1).
    The first layer is that of the checkpoint's own pooler where it has one, which BERT's have from predicting the
    next sentence; else it starts at random, as in RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692).
    The run's summary says which. Random weights are normal with standard deviation 0.02, biases zero, as in BERT.

    Differs: RoBERTa's class in Transformers has dropout before the first layer too.

    Args:
        out_features: Width of the result: the number of classes, 1 for a score.
        dropout: Share of the last layer's inputs that training sets to zero.

    Attributes:
        pretrained: Whether the first layer came from the checkpoint; None before anyone has looked.

    Raises:
        ValueError: A width below 1, or a dropout outside 0 .. 1.

    Example:
        >>> import torch
        >>> head = FineTuningHead(out_features=2)
        >>> head.build(4)
        >>> head(torch.zeros(1, 4)).shape
        torch.Size([1, 2])
    """

    takes_pooler = True

    def __init__(self, out_features: int, dropout: float = 0.1) -> None:
        super().__init__(train_only=True)
        self.out_features = checks.at_least("FineTuningHead.out_features", out_features, 1)
        self.dropout = checks.share("FineTuningHead.dropout", dropout, "0 is none", with_one=False)
        self.pretrained: bool | None = None

    def layers(self, features: int) -> nn.Sequential:
        """Returns Linear(D, D), tanh, dropout and Linear(D, out)."""
        pooler, last = nn.Linear(features, features), nn.Linear(features, self.out_features)
        for layer in (pooler, last):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(pooler, nn.Tanh(), nn.Dropout(self.dropout), last)

    def take_pooler(self, pooler: nn.Linear | None) -> None:
        """Copies the weights of the pretrained layer if it has the same width."""
        own = None if self.network is None else self.network[0]
        self.pretrained = pooler is not None and own is not None and pooler.weight.shape == own.weight.shape
        if self.pretrained and pooler is not None and isinstance(own, nn.Linear):
            own.load_state_dict(pooler.state_dict())


class WholeBatchNorm(nn.Module):
    """Batch normalization with the statistics of all rows of all ranks, and their exact gradient.

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
        """Returns the normalized rows, (..., D) -> (..., D), in the weights' precision, or at least float32."""
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
    """Linear layers with batch normalization and ReLU between them: the projector of methods that need it.

    ``Linear, BN, ReLU`` for each width but the last, then ``Linear``; no layer has a bias. So the projectors of
    Barlow Twins (Zbontar et al. 2021, https://arxiv.org/abs/2103.03230: [8192, 8192, 8192]; facebookresearch/
    barlowtwins, main.py) and VICReg (Bardes et al. 2022, https://arxiv.org/abs/2105.04906: the same widths). With
    ``last_norm`` another BN without scale and shift comes last: that of DiffCSE (Chuang et al. 2022,
    https://arxiv.org/abs/2204.10298; voidism/DiffCSE, ``--batchnorm``), whose widths are twice the input's and
    the input's, the default here.

    A row's output depends on the other rows of the batch, so it is thrown away after training.
    Statistics are those of all ranks (see ``WholeBatchNorm``).

    Differs: DiffCSE's code takes the statistics of each process's own rows. VICReg's hidden layers have biases,
    which the normalization takes away again.

    Args:
        widths: Of the outputs of the linear layers, in order; None for twice the input's and the input's.
        last_norm: Whether the outputs are normalized too, without scale and shift.
        together: Whether rows of all roles and views are normalized in one batch, as in DiffCSE and LeJEPA; else
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
            checks.at_least("ProjectorHead.widths", width, 1)
        self.widths = widths
        self.last_norm = last_norm
        self.together = together

    def layers(self, features: int) -> nn.Sequential:
        """Returns the linear layers, each but the last with its normalization and ReLU."""
        *hidden, out = self.widths or [2 * features, features]
        made: list[nn.Module] = []
        for width in hidden:
            made += [nn.Linear(features, width, bias=False), WholeBatchNorm(width), nn.ReLU()]
            features = width
        made.append(nn.Linear(features, out, bias=False))
        return nn.Sequential(*made, *([WholeBatchNorm(out, affine=False)] if self.last_norm else []))


def _check_share(where: str, share: str | None, train_only: bool) -> None:
    if share is not None and not train_only:
        raise InvalidValueError(
            f"{where}.share: expected a head with train_only: true, got {share!r} with false; only heads of "
            "objectives share layers: leave share out"
        )
