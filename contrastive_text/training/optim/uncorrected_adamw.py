"""AdamW without bias correction, the optimizer of DeCLUTR and ConSERT."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast, final, overload

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidTypeError


@final
class UncorrectedAdamW(torch.optim.Optimizer):
    """AdamW without bias correction; weight decay comes after the step.

    With gradient g, from m = v = 0::

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        p <- p - lr m / (sqrt(v) + eps)
        p <- p - lr weight_decay p

    Both running means start too small, v more than m. Under a constant gradient a step is
    (1 - b1^t) / sqrt(1 - b2^t) times as long as a corrected step. With the usual betas the factor is 3.2 at first
    and at most 6.6. Source: ``AdamW`` of Transformers before version 5 with ``correct_bias=False``, which DeCLUTR
    and ConSERT use.

    Differs: for weights in half precision the running means are stored in float32, where squares of small
    gradients neither underflow nor stop to decay.

    Args:
        parameters: Parameters, or parameter groups with their own settings.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Share of a weight, times the learning rate, that each step subtracts.

    Example:
        >>> weight = nn.Parameter(torch.zeros(1))
        >>> weight.grad = torch.ones(1)
        >>> _ = UncorrectedAdamW([weight], lr=0.1).step()
        >>> round(weight.item(), 4)
        -0.3162
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],  # Any: as torch types its groups
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates every parameter that has a gradient, by one step of AdamW without bias correction.

        Args:
            closure: Function that computes the loss and the gradients; called before the update.

        Returns:
            The loss that the closure returns, or None without a closure.

        Raises:
            TypeError: A gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                self._update(weights, **{name: group[name] for name in ("lr", "betas", "eps", "weight_decay")})
        return loss

    def _update(
        self, weights: list[Tensor], lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        means, squares = (list(moments) for moments in zip(*map(self._moments, weights), strict=True))
        gradients = [cast(Tensor, w.grad).to(mean.dtype) for w, mean in zip(weights, means, strict=True)]
        torch._foreach_mul_(means, betas[0])
        torch._foreach_add_(means, gradients, alpha=1 - betas[0])
        torch._foreach_mul_(squares, betas[1])
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - betas[1])
        scales = torch._foreach_sqrt(squares)
        torch._foreach_add_(scales, eps)
        torch._foreach_addcdiv_(weights, means, scales, value=-lr)
        if weight_decay:
            # Not a product with 1 - lr * weight_decay: float32 numbers just below 1 are 6e-8 apart, too coarse
            # for the 1.6e-7 of DeCLUTR's last steps.
            torch._foreach_add_(weights, weights, alpha=-lr * weight_decay)

    def _moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the running means of a weight's gradient and of its square."""
        if cast(Tensor, weight.grad).is_sparse:
            raise InvalidTypeError(
                "AdamW.bias_correction: expected dense gradients without bias correction, got a sparse "
                "gradient; build "
                "the embedding with sparse=False"
            )
        state = self.state[weight]
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(weight, dtype=_precision(weight))
        return state["exp_avg"], state["exp_avg_sq"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch types it
        """Loads the optimizer state; running means stay in float32, which torch would cast to the weight's type.

        Args:
            state_dict: Result of ``state_dict``.
        """
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, weight in zip(numbers, weights, strict=True):
            for name, moment in state_dict["state"].get(number, {}).items():
                self.state[weight][name] = moment.to(weight.device, _precision(weight))


def _precision(weight: Tensor) -> torch.dtype:
    """Returns the data type of a weight's running means: the type of the weight, at least float32."""
    return torch.promote_types(weight.dtype, torch.float32)
