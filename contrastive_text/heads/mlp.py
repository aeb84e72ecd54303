"""Heads of layers: of a fixed form, such as two linear layers, or listed, as those of a model folder are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.distributed import gather_rows, world_size
from contrastive_text.core.errors import InvalidValueError, at_least, fraction
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.heads.base import Head

EPSILON = 1e-5
"""Epsilon that batch normalization adds to the variance: torch's default, as in the authors' codes."""

MOMENTUM = 0.1
"""Weight of a batch's statistics in the update of running statistics: torch's default."""
_NAME = "name"
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: vars(nn)[name]
    for name in nn.modules.activation.__all__
    if name not in ("MultiheadAttention", "Threshold")  # these need arguments
} | {"Identity": nn.Identity}
"""Name of an activation of torch whose constructor needs no arguments -> its class."""


class TanhHead(Head):
    """Linear layer of the same width, then tanh: the MLP on [CLS] of SimCSE, in the form of BERT's pooler.

    Weights are initialized from a normal distribution of standard deviation 0.02, the bias is 0. They are never
    taken from the checkpoint's pooler (Gao et al. 2021, section 6.3 "pooling"; the authors' code).

    Args:
        train_only: Whether only an objective uses the head.
        share: Name under which heads of objectives share the layer; None for a separate layer.

    Raises:
        ValueError: ``share`` is set with ``train_only: false``.

    Example:
        >>> import torch
        >>> head = TanhHead()
        >>> head.build(4)
        >>> head(torch.zeros(1, 4))
        tensor([[0., 0., 0., 0.]], grad_fn=<TanhBackward0>)
    """

    def __init__(self, train_only: bool = True, share: str | None = None) -> None:
        _check_share("TanhHead", share, train_only)
        super().__init__(train_only=train_only)
        self.share = share

    def layers(self, features: int) -> nn.Sequential:
        """Returns new layers Linear(D, D) and tanh for D features."""
        linear = nn.Linear(features, features)
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
        return nn.Sequential(linear, nn.Tanh())


class MLPHead(Head):
    """Linear, ReLU, linear: the projection head of SimCLR (Chen et al. 2020, section 4.2).

    With dropout before each linear layer, and the first layer shared by two tasks, it is the head of the CS224N
    report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings": hidden 768, dropout 0.3).

    Args:
        hidden_features: Width of the hidden layer; None for the width of the input.
        out_features: Width of the output; None for the width of the input.
        train_only: Whether only an objective uses the head.
        dropout: Dropout rate of the inputs of each linear layer.
        share: Name under which heads of objectives share their layers; None for separate layers.
        shared_layers: Number of linear layers that are shared, 1 or 2; None for both.

    Raises:
        ValueError: A width is below 1, or ``dropout`` is not from 0 to below 1. ``shared_layers`` is not 1 or 2,
            or set without ``share``. ``share`` is set with ``train_only: false``.

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
        _check_share("MLPHead", share, train_only)
        super().__init__(train_only=train_only)
        if shared_layers is not None and (share is None or shared_layers not in (1, 2)):
            raise InvalidValueError(
                f"MLPHead.shared_layers: expected 1 or 2 with a name in share, got {shared_layers} with share: "
                f"{share}; give the heads that share layers the same name"
            )
        self.hidden_features = at_least("MLPHead.hidden_features", hidden_features, 1)
        self.out_features = at_least("MLPHead.out_features", out_features, 1)
        self.dropout = fraction("MLPHead.dropout", dropout, "0 is none", with_one=False)
        self.share = share
        self.shared_layers = shared_layers

    def layers(self, features: int) -> nn.Sequential:
        """Returns new layers Linear(D, hidden), ReLU and Linear(hidden, out), with dropout if set."""
        hidden = self.hidden_features or features
        first, second = nn.Linear(features, hidden), nn.Linear(hidden, self.out_features or features)
        if self.dropout == 0:
            return nn.Sequential(first, nn.ReLU(), second)
        return nn.Sequential(nn.Dropout(self.dropout), first, nn.ReLU(), nn.Dropout(self.dropout), second)


class FineTuningHead(Head):
    """Linear, tanh, dropout, linear: BERT's pooler and the classification layer that is fine-tuned after it.

    With ``CLSPooler`` it is the head of Devlin et al. 2019, BERT (https://arxiv.org/abs/1810.04805, section 4.1).
    The first layer is the pooler of the checkpoint if it has one, as BERT's checkpoints have from next sentence
    prediction. Otherwise it is randomly initialized, as in RoBERTa (Liu et al. 2019,
    https://arxiv.org/abs/1907.11692). The run's summary says which. Random weights have a normal distribution of
    standard deviation 0.02, biases are 0, as in BERT.

    Differs: RoBERTa's class in Transformers also has dropout before the first layer.

    Args:
        out_features: Width of the output: the number of classes, or 1 for a score.
        dropout: Dropout rate of the inputs of the last layer.

    Attributes:
        pretrained: Whether the first layer is from the checkpoint; None before ``set_pooler``.

    Raises:
        ValueError: ``out_features`` is below 1, or ``dropout`` is not from 0 to below 1.

    Example:
        >>> import torch
        >>> head = FineTuningHead(out_features=2)
        >>> head.build(4)
        >>> head(torch.zeros(1, 4)).shape
        torch.Size([1, 2])
    """

    uses_pretrained_pooler = True

    def __init__(self, out_features: int, dropout: float = 0.1) -> None:
        super().__init__(train_only=True)
        self.out_features = at_least("FineTuningHead.out_features", out_features, 1)
        self.dropout = fraction("FineTuningHead.dropout", dropout, "0 is none", with_one=False)
        self.pretrained: bool | None = None

    def layers(self, features: int) -> nn.Sequential:
        """Returns new layers Linear(D, D), tanh, dropout and Linear(D, out)."""
        pooler, last = nn.Linear(features, features), nn.Linear(features, self.out_features)
        for layer in (pooler, last):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(pooler, nn.Tanh(), nn.Dropout(self.dropout), last)

    def set_pooler(self, pooler: nn.Linear | None) -> None:
        """Copies the weights of the pretrained pooler layer if it has the same width."""
        first = None if self.network is None else self.network[0]
        self.pretrained = pooler is not None and first is not None and pooler.weight.shape == first.weight.shape
        if self.pretrained and pooler is not None and isinstance(first, nn.Linear):
            first.load_state_dict(pooler.state_dict())


class WholeBatchNorm(nn.Module):
    """Batch normalization with the statistics of the rows of all ranks, and their exact gradient.

    ``(x - mean) / sqrt(variance + 1e-5)`` for each feature, with the biased variance, then a scale and a shift
    (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1). It equals ``torch.nn.BatchNorm1d`` on
    one process with all rows, and ``torch.nn.SyncBatchNorm``, which doesn't run on a CPU, on several. Ranks may
    have different numbers of rows.

    Evaluation mode uses running statistics. Every call in training mode updates them, as in torch. They are
    buffers, the same on every rank.

    Args:
        features: Width D of the vectors.
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
        """Normalizes the rows by the statistics of all ranks, (..., D) -> (..., D), in at least float32."""
        rows = at_least_float32(rows)
        mean, variance = self._moments(rows) if self.training else (self.running_mean, self.running_variance)
        normal: Tensor = (rows - mean) * (variance + EPSILON).rsqrt()
        if self.weight is None or self.bias is None:
            return normal
        return (normal * self.weight + self.bias).to(self.weight.dtype)  # the next layer's, under bf16-true too

    def _moments(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and variance of the rows of all ranks, (D,) each, and updates the running statistics."""
        local = rows.flatten(0, -2)
        mean = local.sum(dim=0) / max(len(local), 1)
        count = torch.full((1,), len(local), dtype=mean.dtype, device=mean.device)
        moments = torch.cat([mean, (local - mean).square().sum(dim=0), count]).unsqueeze(0)
        # Sums of squares about the mean of each rank are combined as by Chan, Golub and LeVeque 1979. Squares
        # about zero would lose digits if the mean is large compared with the deviation.
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
    """Projector of linear layers with batch normalization and ReLU, as in Barlow Twins, VICReg and DiffCSE.

    ``Linear, BN, ReLU`` for each width except the last, then ``Linear``. Layers have no bias. Barlow Twins
    (Zbontar et al. 2021, https://arxiv.org/abs/2103.03230; facebookresearch/barlowtwins, main.py) and VICReg
    (Bardes et al. 2022, https://arxiv.org/abs/2105.04906) have widths [8192, 8192, 8192]. With ``last_norm``,
    batch normalization without scale and shift follows, as in DiffCSE (Chuang et al. 2022,
    https://arxiv.org/abs/2204.10298; voidism/DiffCSE, ``--batchnorm``). DiffCSE's widths are the default: twice
    the input width, then the input width.

    The head is train-only, because the output of a row depends on the other rows of the batch. Statistics are
    over all ranks (see ``WholeBatchNorm``).

    Differs: DiffCSE's code takes statistics over the rows of one process. VICReg's hidden layers have biases,
    which the normalization cancels.

    Args:
        widths: Output widths of the linear layers, in order; None for twice the input width, then the input
            width.
        last_norm: Whether the outputs are normalized too, without scale and shift.
        together: Whether rows of all roles and views are normalized in one batch, as in DiffCSE and LeJEPA. If
            false, each slot is normalized separately (anchors, positives), as in Barlow Twins and VICReg.

    Raises:
        ValueError: ``widths`` is empty, or a width is below 1.

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
                "ProjectorHead.widths: expected a width for each linear layer, got []; remove widths for twice "
                "the input width, then the input width"
            )
        for width in widths or ():
            at_least("ProjectorHead.widths", width, 1)
        self.widths = widths
        self.last_norm = last_norm
        self.together = together

    def layers(self, features: int) -> nn.Sequential:
        """Returns new linear layers, each except the last with batch normalization and ReLU."""
        *hidden, out = self.widths or [2 * features, features]
        modules: list[nn.Module] = []
        for width in hidden:
            modules += [nn.Linear(features, width, bias=False), WholeBatchNorm(width), nn.ReLU()]
            features = width
        modules.append(nn.Linear(features, out, bias=False))
        return nn.Sequential(*modules, *([WholeBatchNorm(out, affine=False)] if self.last_norm else []))


def _check_share(where: str, share: str | None, train_only: bool) -> None:
    if share is not None and not train_only:
        raise InvalidValueError(
            f"{where}.share: expected null with train_only: false, got {share!r}. Only heads of objectives share "
            "layers; remove share"
        )


class UnitLength(nn.Module):
    """Scales each vector to length 1 (sentence-transformers' ``Normalize``).

    Example:
        >>> import torch
        >>> UnitLength()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the vectors scaled to length 1, in at least float32, (n, D)."""
        return F.normalize(at_least_float32(vectors), dim=-1)


class FirstFeatures(nn.Module):
    """Truncates each vector to its first features (sentence-transformers' ``truncate_dim``).

    Args:
        out_features: Number of features to keep.

    Example:
        >>> import torch
        >>> FirstFeatures(2)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[1., 2.]])
    """

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the first features of each vector, (n, D) -> (n, D')."""
        return vectors[..., : self.out_features]


class StackHead(Head):
    """Head of a list of layers that inference uses, such as the layers after the pooler of an embedding model.

    A run that starts from the folder of an embedding model has this head. It starts with the weights of the
    folder and is trained.

    Args:
        stack: Layers in order, each with its ``name`` and arguments: ``Linear`` (``out_features``, ``bias``),
            ``LayerNorm``, ``Dropout`` (``p``), an activation of ``torch.nn``, ``UnitLength``, and
            ``FirstFeatures`` (``out_features``).
        weights: Folder or hub name of the model whose weights the layers start with; None for random weights.

    Raises:
        ValueError: The name of a layer is unknown, or its arguments are wrong.

    Example:
        >>> import torch
        >>> head = StackHead([{"name": "Linear", "out_features": 2}, {"name": "Tanh"}, {"name": "UnitLength"}])
        >>> head.build(features=4)
        >>> head(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(
        self, stack: list[dict[str, Any]], weights: str | None = None
    ) -> None:  # Any: a layer's arguments
        super().__init__(train_only=False)
        self.stack = stack
        self.weights = weights
        with torch.device("meta"):  # checks the layers without allocating weights
            self.layers(features=1)

    def layers(self, features: int) -> nn.Sequential:
        """Returns the layers of the stack, built for input vectors of width ``features``."""
        modules: list[nn.Module] = []
        for number, layer in enumerate(self.stack):
            modules.append(_build_layer(layer, features, where=f"StackHead.stack[{number}]"))
            features = int(layer.get("out_features", features))
        return nn.Sequential(*modules)

    def encoder_arguments(self) -> tuple[nn.Sequential | None, bool, int | None]:
        """Returns layers, ``normalize`` and ``truncate_dim`` of the head, as arguments of ``SentenceEncoder``."""
        assert self.network is not None
        layers, width, normalize = [*self.network], None, False
        if layers and isinstance(layers[-1], FirstFeatures):
            width = layers.pop().out_features
        if layers and isinstance(layers[-1], UnitLength):
            normalize = bool(layers.pop())
        return nn.Sequential(*layers) if layers else None, normalize, width


def describe_stack(
    layers: Iterable[nn.Module], normalize: bool = False, truncate_dim: int | None = None
) -> list[dict[str, Any]]:  # Any: a layer's arguments
    """Returns the ``stack`` argument of ``StackHead`` for the layers of a model.

    Args:
        layers: Layers after the pooler.
        normalize: Whether vectors are scaled to unit length after the layers.
        truncate_dim: Number of features to keep at the end; None for all.

    Raises:
        ValueError: A layer is of a type that ``StackHead`` doesn't support.

    Example:
        >>> describe_stack([nn.Linear(4, 2), nn.Tanh()], normalize=True)
        [{'name': 'Linear', 'out_features': 2, 'bias': True}, {'name': 'Tanh'}, {'name': 'UnitLength'}]
    """
    stack: list[dict[str, Any]] = []
    for layer in layers:
        name = type(layer).__name__
        if isinstance(layer, nn.Linear):
            stack.append({_NAME: name, "out_features": layer.out_features, "bias": layer.bias is not None})
        elif isinstance(layer, nn.Dropout):
            stack.append({_NAME: name, "p": layer.p})
        elif isinstance(layer, nn.LayerNorm | UnitLength) or name in ACTIVATIONS:
            stack.append({_NAME: name})
        else:
            names = ", ".join(_EXPECTED)
            raise InvalidValueError(f"model.head: expected layers of {names}, got {name}; give --model.head")
    stack += [{_NAME: "UnitLength"}] if normalize else []
    return [*stack, {_NAME: "FirstFeatures", "out_features": truncate_dim}] if truncate_dim else stack


_OTHERS: dict[str, tuple[type[nn.Module], set[str]]] = {
    "Linear": (nn.Linear, {"out_features", "bias"}),
    "LayerNorm": (nn.LayerNorm, set()),
    "Dropout": (nn.Dropout, {"p"}),
    "UnitLength": (UnitLength, set()),
    "FirstFeatures": (FirstFeatures, {"out_features"}),
}
"""Name of a layer -> its class and the names of its arguments."""
_EXPECTED = (*_OTHERS, "an activation of torch.nn")


def _build_layer(layer: Mapping[str, Any], features: int, where: str) -> nn.Module:  # Any: a layer's arguments
    """Builds a layer of a stack for vectors of width ``features``."""
    name = layer.get(_NAME)
    cls, names = _OTHERS.get(str(name), (ACTIVATIONS.get(str(name)), set()))
    arguments = {key: value for key, value in layer.items() if key != _NAME}
    if cls is None:
        raise InvalidValueError(
            f"{where}.name: expected one of {', '.join(_EXPECTED)}, got {name!r}; use one of these"
        )
    if not set(arguments) <= names or (
        "out_features" in names and type(arguments.get("out_features")) is not int
    ):
        raise InvalidValueError(
            f"{where}: expected {name} with {', '.join(sorted(names)) or 'no arguments'}, got {arguments}; give "
            "these arguments"
        )
    width = [features] if cls in (nn.Linear, nn.LayerNorm) else []
    module: nn.Module = cls(*width, **arguments)
    return module
