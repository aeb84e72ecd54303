"""Optimizers by name and argument: AdamW, SGD and others of torch, and AdamW without bias correction."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from types import ModuleType
from typing import Any, TypeVar, cast, final, overload

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from contrastive_text.core.config.class_paths import resolve
from contrastive_text.core.config.misspelt import nearest
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.libraries import is_failure
from contrastive_text.training.optim.schedules import Schedule


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


_T = TypeVar("_T")
_TOTAL = "total"
"""An option of a schedule with this value is the number of optimiser steps of the run."""
_PROBED = 100
"""Steps of a run on which options are tried, before its length is known."""


@final
class TorchOptimizer(Optimizer):
    """An optimiser of ``torch.optim``, or of another library, with weight decay as ``AdamW`` has it.

    Parameters of fewer than two dimensions form a group without decay; frozen ones are left out.

    Args:
        name: Class of ``torch.optim``, such as ``SGD``, or the path of another one, such as
            ``bitsandbytes.optim.AdamW8bit``, of a module that is imported or trusted (``trust``).
        lr: Peak learning rate, positive; a schedule multiplies it.
        weight_decay: As the class understands it; 0 or more.
        options: Further arguments of the class.

    Raises:
        ValueError: No such class, arguments that it refuses, or weight decay where it has none.

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
        check_positive("TorchOptimizer.lr", lr, usual=3e-5)
        check_decay("TorchOptimizer.weight_decay", weight_decay)
        self.name = name
        self.lr = lr
        self.weight_decay = weight_decay
        self.options = options
        self._cls = _class_of(name, torch.optim.Optimizer, torch.optim, "TorchOptimizer.name")
        self._decays = "weight_decay" in inspect.signature(self._cls).parameters
        if weight_decay and not self._decays:
            raise InvalidValueError(
                f"TorchOptimizer.weight_decay: expected an optimiser that has it, got {name}; leave it out"
            )
        for given in ("lr", "weight_decay"):
            if given in (options or {}):
                raise InvalidValueError(
                    f"TorchOptimizer.options: expected others than {given}, got it; give {given} beside them"
                )
        self.build([("matrix", nn.Parameter(torch.zeros(2, 2)))])

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Builds the optimiser, with a group with decay and one without where it decays.

        Raises:
            ValueError: No parameter requires a gradient, or what the class refuses.
        """
        settings = {"lr": self.lr, **(self.options or {})}
        groups = decayed_apart(parameters, self.weight_decay, "TorchOptimizer")
        if not self.weight_decay:  # one group, for those that take no second one
            groups = [{"params": [weight for group in groups for weight in group["params"]]}]
            settings |= {"weight_decay": 0.0} if self._decays else {}
        with _answering(f"TorchOptimizer({self.name})"):
            return unscaled_before(self._cls(groups, **settings))


@final
class TorchSchedule(Schedule):
    """A learning-rate scheduler of ``torch.optim.lr_scheduler``, as shares of the peak rate.

    It is stepped beside a rate of 1, so its own rates are shares of the optimiser's ``lr``: ``eta_min=0.1`` is a
    tenth of it, ``max_lr=1`` the peak. What else a scheduler changes, such as the momentum of ``OneCycleLR``,
    stays as the optimiser has it. ``ReduceLROnPlateau``, which reads a score, is refused.

    Args:
        name: Class of ``torch.optim.lr_scheduler``, such as ``OneCycleLR``, or the path of another one, of a
            module that is imported or trusted (``trust``).
        options: Its arguments beside the optimiser; ``total`` in the place of a number is the run's number of
            optimiser steps.

    Raises:
        ValueError: No such class, or arguments that it refuses.

    Example:
        >>> schedule = TorchSchedule("CosineAnnealingLR", options={"T_max": "total", "eta_min": 0.1})
        >>> [round(schedule.factor(step, total=4), 3) for step in range(5)]
        [1.0, 0.868, 0.55, 0.232, 0.1]
    """

    wraps = LRScheduler

    def __init__(self, name: str, options: dict[str, Any] | None = None) -> None:
        self.name = name
        self.options = options
        self._cls = _class_of(name, LRScheduler, lr_scheduler, "TorchSchedule.name")
        if issubclass(self._cls, ReduceLROnPlateau):
            raise InvalidValueError(
                f"TorchSchedule.name: expected a schedule of the step alone, got {name}, which reads a score; "
                "take another, or the callback EarlyStopping"
            )
        self._rates = array("d")
        self._run: tuple[int, LRScheduler] | None = None
        self.factor(0, _PROBED)

    @property
    def needs_total(self) -> bool:
        """Whether one of the options is ``total``."""
        return _TOTAL in (self.options or {}).values()

    def factor(self, step: int, total: int) -> float:
        """Returns the rate of the step, where the optimiser's own is 1."""
        with _answering(f"TorchSchedule({self.name})"):
            if self._run is None or self._run[0] != total:
                self._run = total, self._scheduler(total)
                self._rates = array("d")
            scheduler = self._run[1]
            while len(self._rates) <= step:
                if self._rates:
                    scheduler.optimizer.step()  # there is no gradient; torch warns without it
                    scheduler.step()
                self._rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        return self._rates[step]

    def _scheduler(self, total: int) -> LRScheduler:
        known = {name: total if value == _TOTAL else value for name, value in (self.options or {}).items()}
        return self._cls(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9), **known)


def _class_of(name: str, base: type[_T], module: ModuleType, where: str) -> type[_T]:
    """Returns the class of a name in torch's module, or of a path."""
    known = {
        each: cls
        for each, cls in vars(module).items()
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base
    }
    if "." in name:
        return resolve(name, base, where)
    if name not in known:
        raise InvalidValueError(
            f"{where}: expected a class of {module.__name__} or the path of another one, got {name!r}"
            f"{nearest(name, known)}"
        )
    return known[name]


@contextmanager
def _answering(where: str) -> Iterator[None]:
    """Says of what a class refuses whose option it was."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        if not is_failure(error):
            raise
        raise InvalidValueError(f"{where}: expected options that it takes, got an error: {error}") from error


@final
class UncorrectedAdamW(torch.optim.Optimizer):
    """Takes Adam's steps without bias correction, then decays the weights.

    With gradient g, from m = v = 0::

        m <- b1 m + (1 - b1) g
        v <- b2 v + (1 - b2) g^2
        p <- p - lr m / (sqrt(v) + eps)
        p <- p - lr weight_decay p

    Both means start too small, v more so than m: under a constant gradient a step is (1 - b1^t) / sqrt(1 - b2^t)
    times as long as a corrected one, with the usual betas 3.2 times at first and at most 6.6 times. Source: the
    ``AdamW`` of Transformers before version 5 with ``correct_bias=False``, which DeCLUTR and ConSERT train with.

    Differs: the means of weights in half precision are kept in float32, where squares of small gradients
    neither vanish nor stop to decay.

    Args:
        parameters: Parameters, or groups of them with settings of their own.
        lr: Learning rate.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the denominator.
        weight_decay: Share of a weight, times the learning rate, that each step takes off.

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
        """Takes a step along the gradients that there are.

        Args:
            closure: Computes the loss and its gradients first.

        Returns:
            What the closure gives.

        Raises:
            TypeError: A sparse gradient.
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
            # Not a product with 1 - lr * weight_decay: in float32 numbers below 1 are 6e-8 apart, too far for
            # the 1.6e-7 of DeCLUTR's last steps.
            torch._foreach_add_(weights, weights, alpha=-lr * weight_decay)

    def _moments(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the running means of a weight's gradient and of its square."""
        if cast(Tensor, weight.grad).is_sparse:
            raise InvalidTypeError(
                "AdamW.bias_correction: expected dense gradients to train without it, got a sparse one; build "
                "the embedding with sparse=False"
            )
        state = self.state[weight]
        if not state:
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(weight, dtype=_precision(weight))
        return state["exp_avg"], state["exp_avg_sq"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: as torch types it
        """Takes over a state; the means keep their precision, which torch lowers to the weight's.

        Args:
            state_dict: What ``state_dict`` gave.
        """
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for number, weight in zip(numbers, weights, strict=True):
            for name, moment in state_dict["state"].get(number, {}).items():
                self.state[weight][name] = moment.to(weight.device, _precision(weight))


def _precision(weight: Tensor) -> torch.dtype:
    """The weight's own type, at least float32."""
    return torch.promote_types(weight.dtype, torch.float32)


_CLASS = "class"
"""Key under which the state of an optimizer names its class."""
_KERNELS = ("fused", "foreach")
"""Settings of a group that choose a kernel. A strategy may change them after the optimizer is built."""
_REMEDY = "or start a run from the checkpoint's weights with --init_from"


def keep_own_settings(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Lets an optimizer keep its learning rate, weight decay and other settings when it loads a state.

    torch replaces them by those of the saved groups, so that a resumed run would ignore a changed setting. Groups
    that a callback has added keep theirs. The state also names the optimizer's class, and that of another class
    is refused.

    Args:
        optimizer: As it was built, before a schedule changes its rates.

    Returns:
        The same optimizer.

    Example:
        >>> def build(lr):
        ...     weight = torch.nn.Parameter(torch.ones(1))
        ...     return keep_own_settings(torch.optim.SGD([weight], lr=lr, momentum=0.9))
        >>> resumed = build(lr=0.1)
        >>> resumed.load_state_dict(build(lr=0.5).state_dict())
        >>> resumed.param_groups[0]["lr"]
        0.1
    """
    cls = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    settings = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]

    def name_class(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        state[_CLASS] = cls

    def restore(current: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        if (saved := state.get(_CLASS, cls)) != cls:
            raise InvalidValueError(
                f"model.optimizer: expected {saved}, whose moments the checkpoint has, got {cls}; keep the "
                f"optimizer, {_REMEDY}"
            )
        groups = _regrouped(state["param_groups"], [len(group["params"]) for group in current.param_groups])
        for group, own, now in zip(groups, settings, current.param_groups, strict=False):
            group |= {**own, **{name: now[name] for name in _KERNELS if name in now}, "initial_lr": own["lr"]}
        return {**state, "param_groups": groups}

    optimizer.register_state_dict_post_hook(name_class)
    optimizer.register_load_state_dict_pre_hook(restore)
    return optimizer


def _regrouped(saved: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Returns saved groups divided as the optimizer's own are: without weight decay there may be one fewer.

    Args:
        saved: Groups of the checkpoint.
        sizes: Number of parameters in each group of the optimizer.

    Raises:
        InvalidValueError: Another number of parameters.
    """
    numbers = [number for group in saved for number in group["params"]]
    if len(numbers) != sum(sizes):
        raise InvalidValueError(
            f"model: expected the {len(numbers)} trained parameters whose moments the checkpoint has, got "
            f"{sum(sizes)}; freeze and train the same parameters, {_REMEDY}"
        )
    if [len(group["params"]) for group in saved] == list(sizes):
        return [dict(group) for group in saved]
    ends = list(accumulate(sizes))
    return [{**saved[0], "params": numbers[end - size : end]} for end, size in zip(ends, sizes, strict=True)]
