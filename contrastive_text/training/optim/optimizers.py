"""Optimisers: plain settings that become torch's optimiser once the parameters exist."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, final

import torch
from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.training.optim.uncorrected_adamw import UncorrectedAdamW


class Optimizer(ABC):
    """Base class of optimiser settings; ``build`` gives torch's optimiser.

    One of your own:

    Example:
        >>> class PlainSGD(Optimizer):
        ...     def build(self, parameters):
        ...         return torch.optim.SGD([p for _, p in parameters], lr=0.1)
        >>> type(PlainSGD().build(nn.Linear(2, 1).named_parameters())).__name__
        'SGD'
    """

    @abstractmethod
    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Builds the optimiser.

        Args:
            parameters: Names and parameters, as ``nn.Module.named_parameters`` gives them.

        Returns:
            torch's optimiser, at the peak learning rate.
        """


@final
class AdamW(Optimizer):
    """Adam with decoupled weight decay, which spares biases and normalisation weights.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 2, as ``torch.optim.AdamW``. The
    defaults are those of unsupervised SimCSE with BERT-base. Parameters of fewer than two dimensions (biases,
    weights of LayerNorm) form a group without decay; frozen parameters are left out.

    Without ``bias_correction`` it is ``UncorrectedAdamW``, as DeCLUTR and ConSERT train: under a constant
    gradient the first step is 3.16 times as long, the tenth 6.5 times, the hundredth still 3.2 times.

    Differs: torch takes the decay off before the step, the optimiser of those two after it; each is kept.

    Args:
        lr: Peak learning rate, positive.
        betas: Decay of the running means of the gradient and of its square, each in [0, 1).
        eps: Added to the denominator, positive.
        weight_decay: Share of a weight, times the learning rate, that each step takes off; 0 or more.
        bias_correction: Whether the running means are corrected for having started at 0.
        fused: Whether torch's fused kernel takes the step, five times as fast on a CPU; ``UncorrectedAdamW`` has
            none.

    Raises:
        ValueError: A value is out of its range.

    Example:
        >>> optimizer = AdamW(weight_decay=0.01).build(nn.Linear(2, 1).named_parameters())
        >>> [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
        [(0.01, 1), (0.0, 1)]
    """

    def __init__(
        self,
        lr: float = 3e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        fused: bool = True,
    ) -> None:
        check_positive("AdamW.lr", lr, usual=3e-5)
        check_positive("AdamW.eps", eps, usual=1e-8)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InvalidValueError(f"AdamW.betas: expected two numbers in [0, 1), got {betas}; try (0.9, 0.999)")
        check_decay("AdamW.weight_decay", weight_decay)
        self.lr = lr
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.bias_correction = bias_correction
        self.fused = fused

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Builds torch's optimiser with a group with decay and one without.

        Args:
            parameters: Names and parameters, as ``nn.Module.named_parameters`` gives them.

        Returns:
            The optimiser; a group without parameters is left out.

        Raises:
            ValueError: No parameter requires a gradient.
        """
        filled = decayed_apart(parameters, self.weight_decay, "AdamW")
        if not self.bias_correction:
            return UncorrectedAdamW(filled, lr=self.lr, betas=self.betas, eps=self.eps)
        return unscaled_before(
            torch.optim.AdamW(filled, lr=self.lr, betas=self.betas, eps=self.eps, fused=self.fused)
        )


def check_positive(where: str, value: float, usual: float) -> None:
    """Checks that a setting is a positive number (ValueError)."""
    if not 0 < value < math.inf:
        raise InvalidValueError(f"{where}: expected a positive number, got {value}; try {usual}")


def check_decay(where: str, value: float) -> None:
    """Checks that a weight decay is none or positive (ValueError)."""
    if not 0 <= value < math.inf:
        raise InvalidValueError(f"{where}: expected 0 or more, got {value}; 0 switches it off")


def decayed_apart(
    parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, where: str
) -> list[dict[str, Any]]:  # Any: torch's groups
    """Returns the groups of trained parameters, matrices with weight decay and others without; none is empty.

    Raises:
        ValueError: No parameter requires a gradient.
    """
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidValueError(
            f"{where}.build: expected a parameter that requires a gradient, got none; unfreeze a layer"
        )
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def unscaled_before(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Leaves it to the scaler to unscale float16's gradients.

    A fused kernel offers to do that itself, which is too late to clip them, and Lightning refuses to clip then.
    """
    if vars(optimizer).get("_step_supports_amp_scaling"):
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # torch's, undeclared
    return optimizer
