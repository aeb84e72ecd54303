"""Head of a list of layers, such as the layers after the pooler of an embedding model's folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.heads.base import Head

_NAME = "name"
ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: vars(nn)[name]
    for name in nn.modules.activation.__all__
    if name not in ("MultiheadAttention", "Threshold")  # these need arguments
} | {"Identity": nn.Identity}
"""Name of an activation of torch whose constructor needs no arguments -> its class."""


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
