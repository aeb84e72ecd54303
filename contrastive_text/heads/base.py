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
    """Base class of heads: a network whose input width is known when the encoder is.

    A head with ``train_only`` is part of an objective and never of the saved encoder. A head without it is part
    of the module, after the pooler, and is exported with it.

    Args:
        train_only: Whether only an objective sees the output.

    Attributes:
        takes_pooler: Whether it begins with the dense layer of the pretrained model's own pooler, where there is
            one (``take_pooler``).
        share: Heads of one name have the first linear layers in common; None for layers of its own.
        shared_layers: How many of them; None for all. See ``share_layers``.
        together: Of a head whose output for a row depends on other rows: whether it gets the rows of all roles in
            one call, or those of each slot by themselves. None for all other heads. See ``project_parts``.

    Example:
        >>> class Halves(Head):
        ...     def layers(self, features):
        ...         return nn.Sequential(nn.Linear(features, features // 2))
        >>> head = Halves()
        >>> head.build(features=8)
        >>> head(torch.ones(3, 8)).shape
        torch.Size([3, 4])
    """

    takes_pooler: ClassVar[bool] = False
    together: bool | None = None
    share: str | None = None
    shared_layers: int | None = None

    def __init__(self, train_only: bool = True) -> None:
        super().__init__()
        self.train_only = train_only
        self.network: nn.Sequential | None = None

    @abstractmethod
    def layers(self, features: int) -> nn.Sequential:
        """Returns freshly initialized layers for input vectors of the given width."""

    def build(self, features: int) -> None:
        """Makes the network, once, for input vectors of width D."""
        self.network = self.layers(features)

    def take_pooler(self, pooler: nn.Linear | None) -> None:
        """Receives the encoder's pretrained pooler layer, or None; called once, if ``takes_pooler`` is true."""

    def forward(self, embeddings: Tensor) -> Tensor:
        """Returns the projected vectors, (n, D) -> (n, D'), in at least float32."""
        if self.network is None:
            raise RuntimeError(f"{type(self).__name__}: expected build(features) before the first call")
        weight = next(self.network.parameters(), embeddings)
        return at_least_float32(self.network(embeddings.to(weight.dtype)))


def check_train_only(head: Head | None, where: str) -> None:
    """Checks that an objective's head isn't one that inference keeps (ValueError).

    Example:
        >>> from contrastive_text.heads import MLPHead
        >>> check_train_only(MLPHead(train_only=False), "Contrastive.head")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: Contrastive.head: expected a head with train_only: ...
    """
    if head is not None and not head.train_only:
        raise InvalidValueError(
            f"{where}: expected a head with train_only: true, got {type(head).__name__} with false; a head that "
            "inference keeps stands in the module: set --model.head instead"
        )


def build_head(head: Head | None, features: int) -> int:
    """Makes a head's layers for vectors of width D and returns the width of its output; without a head D.

    Example:
        >>> build_head(None, features=384)
        384
    """
    if head is None:
        return features
    head.build(features)
    return output_width(head, features)


def output_width(head: Head, features: int) -> int:
    """Returns the width of what a head, whose layers are made, gives for vectors of width D.

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


def apply_exactly(head: Head | None, vectors: Tensor) -> Tensor:
    """Returns vectors (n, D) after a head, computed outside autocast and in at least float32.

    For results that are compared or scored right away: a cosine or a logit keeps 8 bits under bfloat16.

    Example:
        >>> apply_exactly(None, torch.ones(2, 3, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    vectors = at_least_float32(vectors)
    if head is None:
        return vectors
    with full_precision(vectors.device):
        projected: Tensor = head(vectors)
        return projected


def linear_exactly(layer: nn.Linear, vectors: Tensor) -> Tensor:
    """Returns a linear layer's output, (n, D) -> (n, D'), outside autocast and in at least float32.

    Example:
        >>> layer = nn.Linear(4, 2, dtype=torch.bfloat16)
        >>> linear_exactly(layer, torch.zeros(3, 4, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    vectors = at_least_float32(vectors)
    bias = None if layer.bias is None else layer.bias.to(vectors.dtype)
    with full_precision(vectors.device):
        return F.linear(vectors, layer.weight.to(vectors.dtype), bias)


def project_parts(
    head: Head | None, parts: Sequence[Tensor], project: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Returns the vectors of each role that an objective reads, after a head.

    The head is called for each role. A head that normalizes over rows is called once with the rows of all roles,
    or once for each slot, by its ``together``.

    Args:
        head: None for none.
        parts: Vectors of each role, (N, slots, D), or of one slot of each, (N, D).
        project: Applies the head to such vectors, or returns them as they are.

    Example:
        >>> from contrastive_text.heads import ProjectorHead
        >>> def centre(rows):
        ...     return rows - rows.mean(dim=0)
        >>> head, parts = ProjectorHead(together=False), torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(2, 2, 1)
        >>> [part.flatten().tolist() for part in project_parts(head, list(parts), centre)]
        [[-1.0, 1.0], [-1.0, 1.0]]
        >>> head.together = True
        >>> [part.flatten().tolist() for part in project_parts(head, list(parts), centre)]
        [[-3.0, -1.0], [1.0, 3.0]]
    """
    if head is None or head.together is None:
        return [project(part) for part in parts]
    if not head.together:
        return [_by_slot(part, project) for part in parts]
    rows = [part.flatten(0, -2) for part in parts]
    projected = torch.split(project(torch.cat(rows)), [len(each) for each in rows])
    return [each.reshape(*part.shape[:-1], -1) for part, each in zip(parts, projected, strict=True)]


def _by_slot(part: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
    return project(part) if part.ndim == 2 else torch.stack([project(slot) for slot in part.unbind(1)], dim=1)


def share_layers(heads: Sequence[Head]) -> None:
    """Makes heads of one ``share`` name hold the very same first linear layers.

    Called once all heads are built: in the given order, the first head of a name keeps its layers, the later
    ones take those in place of their own. What lies between the linear layers stays each head's own.

    Raises:
        ValueError: Heads of one name that differ in class, in ``shared_layers`` or in the widths of the
            shared layers, or that have fewer linear layers than they share.

    Example:
        >>> from contrastive_text.heads import MLPHead
        >>> heads = [MLPHead(out_features=size, share="pairs", shared_layers=1) for size in (2, 3)]
        >>> for head in heads:
        ...     head.build(4)
        >>> share_layers(heads)
        >>> [one is other for one, other in zip(*(head.parameters() for head in heads))]
        [True, True, False, False]
    """
    first: dict[str, Head] = {}
    for head in heads:
        if head.share is not None:
            _take_layers(head, first.setdefault(head.share, head), f"share: {head.share}")


def _take_layers(head: Head, lender: Head, where: str) -> None:
    if head.network is None or lender.network is None:
        raise RuntimeError("share_layers: expected heads whose build(features) has run")
    if type(head) is not type(lender) or head.shared_layers != lender.shared_layers:
        described = [f"{type(one).__name__} with shared_layers: {one.shared_layers}" for one in (lender, head)]
        raise InvalidValueError(
            f"{where}: expected heads of one class that share as many layers, got {' and '.join(described)}; "
            "make them alike, or give them different names"
        )
    own, lent = _linear_layers(head.network), _linear_layers(lender.network)
    count = max(len(own), len(lent)) if head.shared_layers is None else head.shared_layers
    shapes = [[(layer.in_features, layer.out_features) for _, layer in one[:count]] for one in (lent, own)]
    if shapes[0] != shapes[1] or not 1 <= count <= len(own):
        raise InvalidValueError(
            f"{where}: expected {count} linear layers of equal widths at the start of each head, got "
            f"{' and '.join(map(str, shapes))} (inputs, outputs); set shared_layers or the widths, or give the "
            "heads different names"
        )
    for (place, _), (_, layer) in zip(own[:count], lent[:count], strict=True):
        head.network[place] = layer


def _linear_layers(network: nn.Sequential) -> list[tuple[int, nn.Linear]]:
    return [(place, layer) for place, layer in enumerate(network) if isinstance(layer, nn.Linear)]
