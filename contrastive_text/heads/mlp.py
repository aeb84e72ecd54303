"""Heads without a state: one layer, two, and the one that fine-tuning begins with."""

from __future__ import annotations

from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.heads.base import Head, check_width


class TanhHead(Head):
    """One linear layer of the same width and tanh: the MLP on [CLS] of SimCSE (and BERT's pooler).

    Initialised anew, normal with standard deviation 0.02 and zero bias, never from the checkpoint's pooler
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
        for name, width in (("hidden_features", hidden_features), ("out_features", out_features)):
            check_width(f"MLPHead.{name}", width)
        _check_dropout("MLPHead", dropout)
        _check_share("MLPHead", share, train_only)
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
        check_width("FineTuningHead.out_features", out_features)
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


def _check_dropout(where: str, dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise InvalidValueError(f"{where}.dropout: expected a share from 0 to below 1, got {dropout}; 0 is none")


def _check_share(where: str, share: str | None, train_only: bool) -> None:
    if share is not None and not train_only:
        raise InvalidValueError(
            f"{where}.share: expected a head with train_only: true, got {share!r} with false; only heads of "
            "objectives share layers: leave share out"
        )
