"""Head of layers that are listed one by one, such as those of an embedding model's folder."""

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
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    name: vars(nn)[name]
    for name in nn.modules.activation.__all__
    if name not in ("MultiheadAttention", "Threshold")  # these need arguments
} | {"Identity": nn.Identity}


class UnitLength(nn.Module):
    """Scales each vector to length 1 (sentence-transformers' ``Normalize``).

    Example:
        >>> import torch
        >>> UnitLength()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the vectors in at least float32, (n, D)."""
        return F.normalize(at_least_float32(vectors), dim=-1)


class FirstFeatures(nn.Module):
    """Keeps the first features of each vector (sentence-transformers' ``truncate_dim``).

    Args:
        out_features: How many.

    Example:
        >>> import torch
        >>> FirstFeatures(2)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[1., 2.]])
    """

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the first features, (n, D')."""
        return vectors[..., : self.out_features]


class StackHead(Head):
    """Layers that inference keeps, listed one by one: those after the pooler of an embedding model.

    A run that starts from such a model's folder has this head; its weights are those of the folder, and are
    trained.

    Args:
        stack: The layers in order, each by its ``name`` and arguments: ``Linear`` (``out_features``, ``bias``),
            ``LayerNorm``, ``Dropout`` (``p``), an activation of ``torch.nn``, ``UnitLength``, and
            ``FirstFeatures`` (``out_features``).
        weights: Folder or hub name of the model whose weights the layers start from; None for random ones.

    Raises:
        ValueError: A layer of another name, or one with other arguments.

    Example:
        >>> import torch
        >>> head = StackHead([{"name": "Linear", "out_features": 2}, {"name": "Tanh"}, {"name": "UnitLength"}])
        >>> head.build(features=4)
        >>> head(torch.ones(3, 4)).shape
        torch.Size([3, 2])
    """

    def __init__(self, stack: list[dict[str, Any]], weights: str | None = None) -> None:  # Any: of each its own
        super().__init__(train_only=False)
        self.stack = stack
        self.weights = weights
        with torch.device("meta"):  # checks the layers without drawing weights
            self.layers(features=1)

    def layers(self, features: int) -> nn.Sequential:
        """Returns the layers for input vectors of the given width."""
        made: list[nn.Module] = []
        for number, layer in enumerate(self.stack):
            made.append(_make(layer, features, where=f"StackHead.stack[{number}]"))
            features = int(layer.get("out_features", features))
        return nn.Sequential(*made)

    def in_use(self) -> tuple[nn.Sequential | None, bool, int | None]:
        """Returns the layers, unit length and features kept, as ``SentenceEncoder`` takes them."""
        assert self.network is not None
        layers, kept, normalize = [*self.network], None, False
        if layers and isinstance(layers[-1], FirstFeatures):
            kept = layers.pop().out_features
        if layers and isinstance(layers[-1], UnitLength):
            normalize = bool(layers.pop())
        return nn.Sequential(*layers) if layers else None, normalize, kept


def stack_of(
    layers: Iterable[nn.Module], normalize: bool = False, truncate_dim: int | None = None
) -> list[dict[str, Any]]:  # Any: of each its own
    """Lists the layers of a model in use, as ``StackHead`` takes them.

    Args:
        layers: After the pooler.
        normalize: Whether vectors get unit length after them.
        truncate_dim: Features that are kept in the end; None for all.

    Raises:
        ValueError: A layer that ``StackHead`` doesn't have.

    Example:
        >>> stack_of([nn.Linear(4, 2), nn.Tanh()], normalize=True)
        [{'name': 'Linear', 'out_features': 2, 'bias': True}, {'name': 'Tanh'}, {'name': 'UnitLength'}]
    """
    stack: list[dict[str, Any]] = []
    for layer in layers:
        name = type(layer).__name__
        if isinstance(layer, nn.Linear):
            stack.append({_NAME: name, "out_features": layer.out_features, "bias": layer.bias is not None})
        elif isinstance(layer, nn.Dropout):
            stack.append({_NAME: name, "p": layer.p})
        elif isinstance(layer, nn.LayerNorm | UnitLength) or name in _ACTIVATIONS:
            stack.append({_NAME: name})
        else:
            listed = ", ".join(_EXPECTED)
            raise InvalidValueError(f"model.head: expected layers of {listed}, got {name}; give --model.head")
    stack += [{_NAME: "UnitLength"}] if normalize else []
    return [*stack, {_NAME: "FirstFeatures", "out_features": truncate_dim}] if truncate_dim else stack


_OTHERS: dict[str, tuple[type[nn.Module], set[str]]] = {
    "Linear": (nn.Linear, {"out_features", "bias"}),
    "LayerNorm": (nn.LayerNorm, set()),
    "Dropout": (nn.Dropout, {"p"}),
    "UnitLength": (UnitLength, set()),
    "FirstFeatures": (FirstFeatures, {"out_features"}),
}
"""Name of a layer -> its class and arguments."""
_EXPECTED = (*_OTHERS, "an activation of torch.nn")


def _make(layer: Mapping[str, Any], features: int, where: str) -> nn.Module:  # Any: of each its own
    """Makes a layer for vectors of width D."""
    name = layer.get(_NAME)
    cls, known = _OTHERS.get(str(name), (_ACTIVATIONS.get(str(name)), set()))
    given = {key: value for key, value in layer.items() if key != _NAME}
    if cls is None:
        raise InvalidValueError(
            f"{where}.name: expected one of {', '.join(_EXPECTED)}, got {name!r}; name one of these"
        )
    if not set(given) <= known or ("out_features" in known and type(given.get("out_features")) is not int):
        raise InvalidValueError(
            f"{where}: expected {name} with {', '.join(sorted(known)) or 'no arguments'}, got {given}; give "
            "these arguments"
        )
    width = [features] if cls in (nn.Linear, nn.LayerNorm) else []
    made: nn.Module = cls(*width, **given)
    return made
