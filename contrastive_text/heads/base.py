"""Base class of heads, and functions that build, apply and share them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, full_precision


class Head(nn.Module, ABC):
    """Base class of heads: small networks after the pooler, built when the width of the vectors is known.

    A subclass implements ``layers``. A head with ``train_only`` is part of an objective, and not of the saved
    model. A head without it comes after the pooler of the module, and is exported with the model.

    Args:
        train_only: Whether only an objective uses the head.

    Attributes:
        uses_pretrained_pooler: Whether the head starts with the dense layer of the pretrained model's pooler,
            if the model has one (``set_pooler``).
        share: Name under which heads share their first linear layers; None for separate layers.
        shared_layers: Number of linear layers that are shared; None for all. See ``share_layers``.
        together: For heads whose output for a row depends on other rows: whether the head is called once with the
            rows of all roles, or once for each slot. None for other heads. See ``project_roles``.

    Example:
        >>> class Halves(Head):
        ...     def layers(self, features):
        ...         return nn.Sequential(nn.Linear(features, features // 2))
        >>> head = Halves()
        >>> head.build(features=8)
        >>> head(torch.ones(3, 8)).shape
        torch.Size([3, 4])
    """

    uses_pretrained_pooler: ClassVar[bool] = False
    together: bool | None = None
    share: str | None = None
    shared_layers: int | None = None

    def __init__(self, train_only: bool = True) -> None:
        super().__init__()
        self.train_only = train_only
        self.network: nn.Sequential | None = None

    @abstractmethod
    def layers(self, features: int) -> nn.Sequential:
        """Returns the new layers of the head for input vectors of width ``features``."""

    def build(self, features: int) -> None:
        """Builds the head's network for input vectors of width ``features``. Called once."""
        self.network = self.layers(features)

    def set_pooler(self, pooler: nn.Linear | None) -> None:
        """Receives the encoder's pretrained pooler layer, or None. Called once, if ``uses_pretrained_pooler``
        is true."""

    def forward(self, embeddings: Tensor) -> Tensor:
        """Applies the head to vectors, (n, D) -> (n, D'), in at least float32."""
        if self.network is None:
            raise RuntimeError(f"{type(self).__name__}: expected build(features) before the first call")
        weight = next(self.network.parameters(), embeddings)
        return at_least_float32(self.network(embeddings.to(weight.dtype)))


def check_train_only(head: Head | None, where: str) -> None:
    """Checks that the head of an objective is train-only.

    Args:
        head: Head of the objective; None for none.
        where: Name of the option, for the error.

    Raises:
        ValueError: The head has ``train_only: false``.

    Example:
        >>> from contrastive_text.heads import MLPHead
        >>> check_train_only(MLPHead(train_only=False), "Contrastive.head")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: Contrastive.head: expected a head with train_only: ...
    """
    if head is not None and not head.train_only:
        raise InvalidValueError(
            f"{where}: expected a head with train_only: true, got {type(head).__name__} with false. A head that "
            "inference uses is part of the module; set --model.head instead"
        )


def build_head(head: Head | None, features: int) -> int:
    """Builds the layers of a head and returns the width of its output; without a head the input width.

    Args:
        head: Head to build; None for none.
        features: Width D of the input vectors.

    Example:
        >>> build_head(None, features=384)
        384
    """
    if head is None:
        return features
    head.build(features)
    return output_width(head, features)


def output_width(head: Head, features: int) -> int:
    """Returns the width of the output vectors of a head that is built.

    Args:
        head: Head whose ``build`` has run.
        features: Width D of the input vectors.

    Example:
        >>> from contrastive_text.heads import MLPHead
        >>> head = MLPHead()
        >>> head.build(features=8)
        >>> output_width(head, features=8)
        8
    """
    training = head.training
    head.eval()
    with torch.no_grad():
        width = head(torch.zeros(1, features)).shape[1]
    head.train(training)
    return int(width)


def apply_in_full_precision(head: Head | None, vectors: Tensor) -> Tensor:
    """Applies a head to vectors (n, D), outside autocast and in at least float32; without a head only converts.

    Use it for results that are compared or scored directly: under bfloat16 a cosine or a logit has 8 bits only.

    Example:
        >>> apply_in_full_precision(None, torch.ones(2, 3, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    vectors = at_least_float32(vectors)
    if head is None:
        return vectors
    with full_precision(vectors.device):
        projected: Tensor = head(vectors)
        return projected


def linear_in_full_precision(layer: nn.Linear, vectors: Tensor) -> Tensor:
    """Applies a linear layer to vectors, (n, D) -> (n, D'), outside autocast and in at least float32.

    Example:
        >>> layer = nn.Linear(4, 2, dtype=torch.bfloat16)
        >>> linear_in_full_precision(layer, torch.zeros(3, 4, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    vectors = at_least_float32(vectors)
    bias = None if layer.bias is None else layer.bias.to(vectors.dtype)
    with full_precision(vectors.device):
        return F.linear(vectors, layer.weight.to(vectors.dtype), bias)


def project_roles(
    head: Head | None, parts: Sequence[Tensor], project: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Applies a head to the vectors of each role that an objective reads.

    The head is called for each role. A head that normalizes over rows is called once with the rows of all roles
    (``together`` is true), or once for each slot (``together`` is false).

    Args:
        head: Head to apply; None for none.
        parts: Vectors of each role, (N, slots, D) or (N, D).
        project: Applies the head to vectors, or without a head only converts them.

    Returns:
        The projected vectors of each role, (N, slots, D') or (N, D').

    Example:
        >>> from contrastive_text.heads import ProjectorHead
        >>> def center(rows):
        ...     return rows - rows.mean(dim=0)
        >>> head, parts = ProjectorHead(together=False), torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(2, 2, 1)
        >>> [part.flatten().tolist() for part in project_roles(head, list(parts), center)]
        [[-1.0, 1.0], [-1.0, 1.0]]
        >>> head.together = True
        >>> [part.flatten().tolist() for part in project_roles(head, list(parts), center)]
        [[-3.0, -1.0], [1.0, 3.0]]
    """
    if head is None or head.together is None:
        return [project(part) for part in parts]
    if not head.together:
        return [_project_slots(part, project) for part in parts]
    rows = [part.flatten(0, -2) for part in parts]
    outputs = torch.split(project(torch.cat(rows)), [len(part_rows) for part_rows in rows])
    return [output.reshape(*part.shape[:-1], -1) for part, output in zip(parts, outputs, strict=True)]


def _project_slots(part: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
    return project(part) if part.ndim == 2 else torch.stack([project(slot) for slot in part.unbind(1)], dim=1)


def share_layers(heads: Sequence[Head]) -> None:
    """Ties the first linear layers of heads that have the same ``share`` name. Called after all heads are
    built.

    The first head of a name keeps its layers; they replace the layers of later heads. Other layers, such as
    dropout, are not shared.

    Args:
        heads: Heads of all objectives, in order.

    Raises:
        ValueError: Heads of the same name differ in class, in ``shared_layers`` or in the widths of the shared
            layers, or have fewer linear layers than they share.

    Example:
        >>> from contrastive_text.heads import MLPHead
        >>> heads = [MLPHead(out_features=size, share="pairs", shared_layers=1) for size in (2, 3)]
        >>> for head in heads:
        ...     head.build(4)
        >>> share_layers(heads)
        >>> [weight is second for weight, second in zip(*(head.parameters() for head in heads))]
        [True, True, False, False]
    """
    first: dict[str, Head] = {}
    for head in heads:
        if head.share is not None:
            _tie_layers(head, first.setdefault(head.share, head), f"share: {head.share}")


def _tie_layers(head: Head, source: Head, where: str) -> None:
    if head.network is None or source.network is None:
        raise RuntimeError("share_layers: expected heads whose build(features) has run")
    if type(head) is not type(source) or head.shared_layers != source.shared_layers:
        names = [f"{type(part).__name__} with shared_layers: {part.shared_layers}" for part in (source, head)]
        raise InvalidValueError(
            f"{where}: expected heads of the same class with the same shared_layers, got {' and '.join(names)}; "
            "set both alike, or give them different names in share"
        )
    layers, source_layers = _linear_layers(head.network), _linear_layers(source.network)
    count = max(len(layers), len(source_layers)) if head.shared_layers is None else head.shared_layers
    shapes = [
        [(layer.in_features, layer.out_features) for _, layer in part[:count]] for part in (source_layers, layers)
    ]
    if shapes[0] != shapes[1] or not 1 <= count <= len(layers):
        raise InvalidValueError(
            f"{where}: expected {count} linear layers of equal widths at the start of each head, got "
            f"{' and '.join(map(str, shapes))} (inputs, outputs); set shared_layers or the widths, or give the "
            "heads different names in share"
        )
    for (index, _), (_, layer) in zip(layers[:count], source_layers[:count], strict=True):
        head.network[index] = layer


def _linear_layers(network: nn.Sequential) -> list[tuple[int, nn.Linear]]:
    return [(index, layer) for index, layer in enumerate(network) if isinstance(layer, nn.Linear)]
