"""Settings of optimizers and schedules: AdamW, and classes of torch by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar, final

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from contrastive_text.core.checks import above, at_least
from contrastive_text.core.config.class_paths import resolve
from contrastive_text.core.config.misspelt import nearest
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_failure
from contrastive_text.training.optim.schedules import Schedule
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
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise InvalidValueError(f"AdamW.betas: expected two numbers in [0, 1), got {betas}; try (0.9, 0.999)")
        self.lr = above("AdamW.lr", lr, advice="try 3e-5")
        self.betas = betas
        self.eps = above("AdamW.eps", eps, advice="try 1e-8")
        self.weight_decay = at_least("AdamW.weight_decay", weight_decay, 0)
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
        self.name = name
        self.lr = above("TorchOptimizer.lr", lr, advice="try 3e-5")
        self.weight_decay = at_least("TorchOptimizer.weight_decay", weight_decay, 0)
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
