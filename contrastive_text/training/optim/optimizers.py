"""Settings of optimizers: AdamW, also without bias correction, and classes of torch by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, cast, final, overload

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, above, at_least
from contrastive_text.training.optim.schedules import naming_place, torch_class


class Optimizer(ABC):
    """Base class of optimizer settings; ``build`` creates the torch optimizer.

    To use another optimizer, override ``build``:

    Example:
        >>> class PlainSGD(Optimizer):
        ...     def build(self, parameters):
        ...         return torch.optim.SGD([p for _, p in parameters], lr=0.1)
        >>> type(PlainSGD().build(nn.Linear(2, 1).named_parameters())).__name__
        'SGD'
    """

    @abstractmethod
    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Builds the torch optimizer of a module's parameters.

        Args:
            parameters: Names and parameters, as ``nn.Module.named_parameters`` yields them.

        Returns:
            The torch optimizer, at the peak learning rate.
        """


@final
class AdamW(Optimizer):
    """AdamW, without weight decay for biases and normalization weights.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 2, as ``torch.optim.AdamW``. The
    defaults are the values of unsupervised SimCSE with BERT-base. Parameters with fewer than two dimensions
    (biases, weights of LayerNorm) form a group without decay. Frozen parameters are skipped.

    Without ``bias_correction`` it is ``UncorrectedAdamW``, which DeCLUTR and ConSERT use. Under a constant
    gradient its first step is 3.16 times as long, the tenth 6.5 times, the hundredth still 3.2 times.

    Differs: torch applies the decay before the step, and ``UncorrectedAdamW`` after it, as its source does.

    Args:
        lr: Peak learning rate, positive.
        betas: Decay of the running means of the gradient and of its square, each in [0, 1).
        eps: Added to the denominator, positive.
        weight_decay: Share of a weight, times the learning rate, that each step subtracts; 0 or more.
        bias_correction: Whether the running means are corrected for their start at 0.
        fused: Whether torch's fused kernel computes the step, which is five times as fast on a CPU. Without
            ``bias_correction`` there is no fused kernel.

    Raises:
        ValueError: A value is out of range.

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
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InvalidValueError(f"AdamW.betas: expected two numbers in [0, 1), got {betas}; try (0.9, 0.999)")
        self.lr = above("AdamW.lr", lr, advice="try 3e-5")
        self.betas = betas
        self.eps = above("AdamW.eps", eps, advice="try 1e-8")
        self.weight_decay = at_least("AdamW.weight_decay", weight_decay, 0)
        self.bias_correction = bias_correction
        self.fused = fused

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Builds the torch optimizer, with one group of parameters with weight decay and one without.

        Args:
            parameters: Names and parameters, as ``nn.Module.named_parameters`` yields them.

        Returns:
            The optimizer. A group without parameters is omitted.

        Raises:
            ValueError: No parameter requires a gradient.
        """
        filled = group_by_decay(parameters, self.weight_decay, "AdamW")
        if not self.bias_correction:
            return UncorrectedAdamW(filled, lr=self.lr, betas=self.betas, eps=self.eps)
        return unscale_before_step(
            torch.optim.AdamW(filled, lr=self.lr, betas=self.betas, eps=self.eps, fused=self.fused)
        )


def group_by_decay(
    parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float, where: str
) -> list[dict[str, Any]]:  # Any: torch's groups
    """Returns groups of the trained parameters: matrices with weight decay, others without. Omits empty groups.

    Raises:
        ValueError: No parameter requires a gradient.
    """
    trained = [parameter for _, parameter in parameters if parameter.requires_grad]
    if not trained:
        raise InvalidValueError(
            f"{where}.build: expected a trainable parameter, got only frozen parameters; unfreeze a layer"
        )
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def unscale_before_step(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Makes the gradient scaler unscale float16 gradients before the optimizer step, and returns the optimizer.

    A fused kernel would unscale them inside the step. That is too late to clip them: Lightning then refuses to.
    """
    if vars(optimizer).get("_step_supports_amp_scaling"):
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # set by torch, but not declared
    return optimizer


@final
class TorchOptimizer(Optimizer):
    """Optimizer of ``torch.optim`` or of another library, with weight decay for matrices only.

    Parameters with fewer than two dimensions form a group without decay. Frozen parameters are skipped.

    Args:
        name: Class of ``torch.optim``, such as ``SGD``, or the path of another class, such as
            ``bitsandbytes.optim.AdamW8bit``, of a module that is imported or trusted (``trust``).
        lr: Peak learning rate, positive; a schedule multiplies it.
        weight_decay: The argument ``weight_decay`` of the class; 0 or more.
        options: Further arguments of the class.

    Raises:
        ValueError: The class doesn't exist, refuses the arguments, or has no weight decay though one is given.

    Example:
        >>> optimizer = TorchOptimizer("SGD", lr=0.1, weight_decay=0.01, options={"momentum": 0.9})
        >>> built = optimizer.build(nn.Linear(2, 1).named_parameters())
        >>> type(built).__name__, [(group["momentum"], group["weight_decay"]) for group in built.param_groups]
        ('SGD', [(0.9, 0.01), (0.9, 0.0)])
    """

    wraps = torch.optim.Optimizer

    def __init__(
        self, name: str, lr: float, weight_decay: float = 0.0, options: dict[str, Any] | None = None
    ) -> None:
        self.name = name
        self.lr = above("TorchOptimizer.lr", lr, advice="try 3e-5")
        self.weight_decay = at_least("TorchOptimizer.weight_decay", weight_decay, 0)
        self.options = options
        self._cls = torch_class(name, torch.optim.Optimizer, torch.optim, "TorchOptimizer.name")
        self._decays = "weight_decay" in inspect.signature(self._cls).parameters
        if weight_decay and not self._decays:
            raise InvalidValueError(
                f"TorchOptimizer.weight_decay: expected an optimizer with weight_decay, got {name}; remove "
                "weight_decay"
            )
        for option in ("lr", "weight_decay"):
            if option in (options or {}):
                raise InvalidValueError(
                    f"TorchOptimizer.options: expected no {option} in options, got {option}; give {option} as "
                    "an argument of TorchOptimizer"
                )
        self.build([("matrix", nn.Parameter(torch.zeros(2, 2)))])

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Builds the torch optimizer: two groups if there is weight decay, otherwise one.

        Raises:
            ValueError: No parameter requires a gradient, or the class refuses its arguments.
        """
        settings = {"lr": self.lr, **(self.options or {})}
        groups = group_by_decay(parameters, self.weight_decay, "TorchOptimizer")
        if not self.weight_decay:  # one group: some optimizers support only one
            groups = [{"params": [weight for group in groups for weight in group["params"]]}]
            settings |= {"weight_decay": 0.0} if self._decays else {}
        with naming_place(f"TorchOptimizer({self.name})"):
            return unscale_before_step(self._cls(groups, **settings))


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
