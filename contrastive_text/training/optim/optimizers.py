"""Settings of optimizers and schedules: AdamW, and classes of torch and Transformers by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar, final

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.config.suggestions import suggest_name
from contrastive_text.core.errors import InvalidValueError, above, at_least, one_of
from contrastive_text.core.libraries import is_read_error
from contrastive_text.training.optim.schedules import Schedule, WarmupSchedule
from contrastive_text.training.optim.uncorrected_adamw import UncorrectedAdamW

ScheduleName: TypeAlias = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
]
"""Names of Transformers' schedules of the step alone."""


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


_T = TypeVar("_T")
_TOTAL = "total"
"""Value of a schedule option that is replaced by the number of optimizer steps of the run."""
_TRIAL_STEPS = 100
"""Number of optimizer steps with which schedule options are checked before the length of the run is known."""


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
        self._cls = _class_of(name, torch.optim.Optimizer, torch.optim, "TorchOptimizer.name")
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
        with _naming_place(f"TorchOptimizer({self.name})"):
            return unscale_before_step(self._cls(groups, **settings))


@final
class TorchSchedule(Schedule):
    """Learning-rate scheduler of ``torch.optim.lr_scheduler`` as a multiplier of the peak rate.

    The scheduler runs on a separate optimizer with learning rate 1, so its rates are multipliers of the real
    ``lr``: ``eta_min=0.1`` is a tenth of the peak, ``max_lr=1`` is the peak. Only the rate is used: the momentum
    of ``OneCycleLR``, for example, does not reach the real optimizer. ``ReduceLROnPlateau``, which reads a score,
    is refused.

    Args:
        name: Class of ``torch.optim.lr_scheduler``, such as ``OneCycleLR``, or the path of another class, of a
            module that is imported or trusted (``trust``).
        options: Arguments of the class except the optimizer. The value ``total`` is replaced by the number of
            optimizer steps of the run.

    Raises:
        ValueError: The class doesn't exist, or refuses the arguments.

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
                "use another schedule, or the callback EarlyStopping"
            )
        self._rates = array("d")
        self._run: tuple[int, LRScheduler] | None = None
        self.factor(0, _TRIAL_STEPS)

    @property
    def needs_total(self) -> bool:
        """True if an option of the scheduler has the value ``total``."""
        return _TOTAL in (self.options or {}).values()

    def factor(self, step: int, total: int) -> float:
        """Returns the scheduler's learning rate at the step, for an optimizer with learning rate 1."""
        with _naming_place(f"TorchSchedule({self.name})"):
            if self._run is None or self._run[0] != total:
                self._run = total, self._scheduler(total)
                self._rates = array("d")
            scheduler = self._run[1]
            while len(self._rates) <= step:
                if self._rates:
                    scheduler.optimizer.step()  # changes nothing: there is no gradient; without it torch warns
                    scheduler.step()
                self._rates.append(float(scheduler.optimizer.param_groups[0]["lr"]))
        return self._rates[step]

    def _scheduler(self, total: int) -> LRScheduler:
        options = {name: total if value == _TOTAL else value for name, value in (self.options or {}).items()}
        return self._cls(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9), **options)


@final
class TransformersSchedule(WarmupSchedule):
    """Schedule of Transformers by its name, with the rates of ``transformers.get_scheduler``.

    ``ContrastiveModule(schedule="cosine")`` is short for ``TransformersSchedule("cosine")``.

    Args:
        name: ``linear``, ``cosine``, ``constant_with_warmup`` or another name of Transformers' ``SchedulerType``,
            except ``reduce_lr_on_plateau`` and ``greedy``, which read a score.
        warmup_steps: Optimizer steps of the warm-up from 0 to the peak.
        warmup_ratio: Warm-up as a share of the run, in [0, 1]; give either this or ``warmup_steps``.
        options: Other arguments of the schedule, ``lr_scheduler_kwargs`` in Transformers, such as ``num_cycles``.
            Rates such as ``min_lr`` and ``lr_end`` are fractions of the peak rate.

    Raises:
        ValueError: The name is unknown, the schedule refuses ``options``, it has no warm-up, or both
            ``warmup_steps`` and ``warmup_ratio`` are given.

    Example:
        >>> schedule = TransformersSchedule("polynomial", options={"power": 2.0, "lr_end": 0.1})
        >>> [round(schedule.factor(step, total=4), 3) for step in range(5)]
        [1.0, 0.606, 0.325, 0.156, 0.1]
    """

    def __init__(
        self,
        name: ScheduleName,
        warmup_steps: int = 0,
        warmup_ratio: float = 0.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(warmup_steps, warmup_ratio)
        self.name = one_of("TransformersSchedule.name", name, ScheduleName)
        self.options = options
        if name == "constant" and (warmup_steps or warmup_ratio):
            raise InvalidValueError(
                f"TransformersSchedule: expected no warm-up for constant, got {warmup_steps or warmup_ratio}; "
                "use constant_with_warmup"
            )
        self._run: tuple[int, LambdaLR] | None = None
        self.factor(0, _TRIAL_STEPS)

    @property
    def needs_total(self) -> bool:
        """True if the schedule or its warm-up depends on the length of the run."""
        return self.warmup_ratio > 0 or self.name not in ("constant", "constant_with_warmup", "inverse_sqrt")

    def factor(self, step: int, total: int) -> float:
        """Returns the multiplier of Transformers, whose schedules have their own form of the warm-up."""
        return self.after_warmup(step, self.warmup(total), total)

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Returns the multiplier of Transformers at a step."""
        from transformers import get_scheduler  # takes a second to import

        with _naming_place(f"TransformersSchedule({self.name})"):
            if self._run is None or self._run[0] != total:
                optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
                self._run = total, get_scheduler(self.name, optimizer, warmup, total, self.options)
            return float(self._run[1].lr_lambdas[0](step))


def _class_of(name: str, base: type[_T], module: ModuleType, where: str) -> type[_T]:
    """Returns the class that a name or a dotted path selects from a torch module."""
    classes = {
        label: cls
        for label, cls in vars(module).items()
        if inspect.isclass(cls) and issubclass(cls, base) and cls is not base
    }
    if "." in name:
        return import_class(name, base, where)
    if name not in classes:
        raise InvalidValueError(
            f"{where}: expected a class of {module.__name__} or the path of another one, got {name!r}"
            f"{suggest_name(name, classes)}"
        )
    return classes[name]


@contextmanager
def _naming_place(where: str) -> Iterator[None]:
    """Re-raises errors of a torch class as ValueError with the place of the option in front."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        if not is_read_error(error):
            raise
        raise InvalidValueError(f"{where}: expected valid options, got: {error}") from error
