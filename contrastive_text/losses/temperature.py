"""The temperature of a softmax: what it may be, and one that is trained with the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError


def check_temperature(temperature: float) -> None:
    """Checks that a temperature is a positive finite number (ValueError)."""
    if not (math.isfinite(temperature) and temperature > 0):
        raise InvalidValueError(
            f"temperature: expected a number above 0, got {temperature}; it divides the cosine similarity, "
            "and 0.05 is the usual value"
        )


class LearnedTemperature(nn.Module):
    """Keeps the logarithm of 1/T as a parameter, as CLIP does.

    T never goes below 0.01, or below its start where that is less: CLIP's bound on the logits' scale, which held
    its training stable. As there, a step that leads past the bound is taken back to it before the next use.
    Source: Radford et al. 2021, CLIP (https://arxiv.org/abs/2103.00020), section 2.5.

    Args:
        temperature: Where it starts.

    Example:
        >>> LearnedTemperature(0.05)()
        tensor([0.0500], grad_fn=<ExpBackward0>)
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        # One dimension, not none: strategies that share parameters out refuse scalars; decay spares both.
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))

    def forward(self) -> Tensor:
        """Returns the temperature as it is now, (1,)."""
        with torch.no_grad():
            self.log_scale.clamp_(max=max(math.log(100), -math.log(self.temperature)))
        return (-self.log_scale).exp()
