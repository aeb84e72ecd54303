"""Heads: small networks behind the pooler, kept for inference or thrown away with training."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from contrastive_text.losses import at_least_float32


class Head(nn.Module, ABC):
    """Base class of heads: a network whose input width is known when the encoder is.

    A head with ``train_only`` stands in an objective and is never part of the saved encoder; one without
    stands in the module, behind the pooler, and is exported with it.

    Args:
        train_only: Whether only an objective sees the output.
    """

    def __init__(self, train_only: bool = True) -> None:
        super().__init__()
        self.train_only = train_only
        self.network: nn.Sequential | None = None

    @abstractmethod
    def layers(self, features: int) -> nn.Sequential:
        """Gives freshly initialised layers for input vectors of the given width."""

    def build(self, features: int) -> None:
        """Makes the network, once, for input vectors of width D."""
        self.network = self.layers(features)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Gives the projected vectors, (n, D) -> (n, D'), in at least float32."""
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
        """Gives Linear(D, D) and tanh."""
        linear = nn.Linear(features, features)
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.zeros_(linear.bias)
        return nn.Sequential(linear, nn.Tanh())


class MLPHead(Head):
    """Linear, ReLU, linear: the projection head of SimCLR (Chen et al. 2020, section 4.2).

    Args:
        hidden_features: Width of the middle layer; None for the input's.
        out_features: Width of the result; None for the input's.
        train_only: Whether only an objective sees the output.

    Raises:
        ValueError: A width below 1.

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
    ) -> None:
        super().__init__(train_only=train_only)
        for name, width in (("hidden_features", hidden_features), ("out_features", out_features)):
            if width is not None and width < 1:
                raise ValueError(f"MLPHead.{name}: expected a width of 1 or more, got {width}")
        self.hidden_features = hidden_features
        self.out_features = out_features

    def layers(self, features: int) -> nn.Sequential:
        """Gives Linear(D, hidden), ReLU and Linear(hidden, out)."""
        hidden = self.hidden_features or features
        return nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, self.out_features or features)
        )
