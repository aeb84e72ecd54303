"""Heads: small networks after the pooler, kept for inference or thrown away with training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32


class Head(nn.Module, ABC):
    """Base class of heads: a network whose input width is known when the encoder is.

    A head with ``train_only`` stands in an objective and is never part of the saved encoder; one without
    stands in the module, after the pooler, and is exported with it.

    Args:
        train_only: Whether only an objective sees the output.

    Attributes:
        takes_pooler: Whether it begins with the dense layer of the pretrained model's own pooler, where there is
            one (``take_pooler``).
        share: Heads of one name have the first linear layers in common; None for layers of its own.
        shared_layers: How many of them; None for all. See ``share_layers``.
    """

    takes_pooler: ClassVar[bool] = False
    share: str | None = None
    shared_layers: int | None = None

    def __init__(self, train_only: bool = True) -> None:
        super().__init__()
        self.train_only = train_only
        self.network: nn.Sequential | None = None

    @abstractmethod
    def layers(self, features: int) -> nn.Sequential:
        """Returns freshly initialised layers for input vectors of the given width."""

    def build(self, features: int) -> None:
        """Makes the network, once, for input vectors of width D."""
        self.network = self.layers(features)

    def take_pooler(self, pooler: nn.Linear | None) -> None:
        """Takes over the pretrained layer, or hears that there is none; asked once, with ``takes_pooler``."""

    def forward(self, embeddings: Tensor) -> Tensor:
        """Returns the projected vectors, (n, D) -> (n, D'), in at least float32."""
        if self.network is None:
            raise RuntimeError(f"{type(self).__name__}: expected build(features) before the first call")
        weight = next(self.network.parameters(), embeddings)
        return at_least_float32(self.network(embeddings.to(weight.dtype)))


class TanhHead(Head):
    """One linear layer of the same width and tanh: the MLP on [CLS] of SimCSE (and BERT's pooler).

    Initialised anew, normal with standard deviation 0.02 and zero bias, never from the checkpoint's pooler
    (Gao et al. 2021, section 6.3 "pooling"; the authors' code).

    Example:
        >>> import torch
        >>> head = TanhHead()
        >>> head.build(4)
        >>> head(torch.zeros(1, 4))
        tensor([[0., 0., 0., 0.]], grad_fn=<TanhBackward0>)
    """

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
        for name, width in (("hidden_features", hidden_features), ("out_features", out_features)):
            _check_width(f"MLPHead.{name}", width)
        _check_dropout("MLPHead", dropout)
        if share is not None and not train_only:
            raise InvalidValueError(
                f"MLPHead.share: expected a head with train_only: true, got {share!r} with false; only heads of "
                "objectives share layers: leave share out"
            )
        if shared_layers is not None and (share is None or shared_layers not in (1, 2)):
            raise InvalidValueError(
                f"MLPHead.shared_layers: expected 1 or 2 of its two linear layers and a name in share, got "
                f"{shared_layers} and share: {share}; give the heads that share them the same name"
            )
        self.hidden_features = hidden_features
        self.out_features = out_features
        self.dropout = dropout
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
        _check_width("FineTuningHead.out_features", out_features)
        _check_dropout("FineTuningHead", dropout)
        self.out_features = out_features
        self.dropout = dropout
        self.pretrained: bool | None = None

    def layers(self, features: int) -> nn.Sequential:
        """Returns Linear(D, D), tanh, dropout and Linear(D, out)."""
        pooler, last = nn.Linear(features, features), nn.Linear(features, self.out_features)
        for layer in (pooler, last):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(pooler, nn.Tanh(), nn.Dropout(self.dropout), last)

    def take_pooler(self, pooler: nn.Linear | None) -> None:
        """Takes over the pretrained layer's weights, where there is one of the same width."""
        own = None if self.network is None else self.network[0]
        self.pretrained = pooler is not None and own is not None and pooler.weight.shape == own.weight.shape
        if self.pretrained and pooler is not None and isinstance(own, nn.Linear):
            own.load_state_dict(pooler.state_dict())


def share_layers(heads: Sequence[Head]) -> None:
    """Makes heads of one ``share`` name hold the very same first linear layers.

    Called once all heads are built: in the given order, the first head of a name keeps its layers, the later
    ones take those in place of their own. What lies between the linear layers stays each head's own.

    Raises:
        ValueError: Heads of one name that differ in class, in ``shared_layers`` or in the widths of the
            shared layers, or that have fewer linear layers than they share.

    Example:
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


def _check_width(where: str, width: int | None) -> None:
    if width is not None and width < 1:
        raise InvalidValueError(f"{where}: expected a width of 1 or more, got {width}")


def _check_dropout(where: str, dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise InvalidValueError(f"{where}.dropout: expected a share from 0 to below 1, got {dropout}; 0 is none")


def _linear_layers(network: nn.Sequential) -> list[tuple[int, nn.Linear]]:
    return [(place, layer) for place, layer in enumerate(network) if isinstance(layer, nn.Linear)]


def check_train_only(head: Head | None, where: str) -> None:
    """Checks that an objective's head isn't one that inference keeps (ValueError)."""
    if head is not None and not head.train_only:
        raise InvalidValueError(
            f"{where}: expected a head with train_only: true, got {type(head).__name__} with false; a head that "
            "inference keeps stands in the module: set --model.head instead"
        )


def build_head(head: Head | None, features: int) -> int:
    """Makes a head's layers for vectors of width D and gives the width of its output; without a head D."""
    if head is None:
        return features
    head.build(features)
    training = head.training
    head.eval()
    with torch.no_grad():
        width = head(torch.zeros(1, features)).shape[1]
    head.train(training)
    return int(width)


def apply_exactly(head: Head | None, vectors: Tensor) -> Tensor:
    """Returns what a head makes of vectors (n, D), outside autocast and in at least float32.

    For results that are compared or scored right away: a cosine or a logit keeps 8 bits under bfloat16.
    """
    vectors = at_least_float32(vectors)
    if head is None:
        return vectors
    with torch.autocast(device_type=vectors.device.type, enabled=False):
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
    with torch.autocast(device_type=vectors.device.type, enabled=False):
        return F.linear(vectors, layer.weight.to(vectors.dtype), bias)
