"""Learning-rate schedules: multipliers of the peak rate for each step, and classes of torch and Transformers."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal, TypeAlias, TypeVar, final

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.config.suggestions import suggest_name
from contrastive_text.core.errors import InvalidValueError, at_least, fraction, one_of
from contrastive_text.core.libraries import is_read_error

_T = TypeVar("_T")
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


_TOTAL = "total"
"""Value of a schedule option that is replaced by the number of optimizer steps of the run."""
_TRIAL_STEPS = 100
"""Number of optimizer steps with which schedule options are checked before the length of the run is known."""


class Schedule(ABC):
    """Base class of learning-rate schedules.

    To write a schedule, override ``factor``:

    Example:
        >>> class HalfAtTheEnd(Schedule):
        ...     def factor(self, step: int, total: int) -> float:
        ...         return 1 - 0.5 * step / total
        >>> HalfAtTheEnd().factor(step=50, total=100)
        0.75
    """

    @property
    def needs_total(self) -> bool:
        """True if the schedule reads the run's total number of steps. A run of unknown length is then refused."""
        return True

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """Returns the multiplier of the peak learning rate at an optimizer step.

        Args:
            step: Number of the optimizer step, from 0 to total - 1; torch also calls it once with total.
            total: Optimizer steps of the whole run. 0 if unknown, only if ``needs_total`` is false.

        Returns:
            A number from 0 to 1.
        """


class WarmupSchedule(Schedule):
    """Base class of schedules with a linear warm-up from 0 to the peak; ``after_warmup`` is the rest.

    Args:
        warmup_steps: Optimizer steps of the warm-up.
        warmup_ratio: Warm-up as a share of the run, in [0, 1], rounded up to whole steps; give either this or
            ``warmup_steps``.

    Raises:
        ValueError: A value is negative, both are given, or the ratio is above 1.

    Example:
        >>> class SquareRoot(WarmupSchedule):
        ...     def after_warmup(self, step, warmup, total):
        ...         return (1 - (step - warmup) / (total - warmup)) ** 0.5
        >>> [SquareRoot(warmup_steps=2).factor(step, total=6) for step in (1, 2, 5)]
        [0.5, 1.0, 0.5]
    """

    def __init__(self, warmup_steps: int = 0, warmup_ratio: float = 0.0) -> None:
        name = type(self).__name__
        self.warmup_steps = at_least(f"{name}.warmup_steps", warmup_steps, 0, "0 is no warm-up")
        self.warmup_ratio = fraction(f"{name}.warmup_ratio", warmup_ratio, "give steps as warmup_steps")
        if warmup_steps and warmup_ratio:
            raise InvalidValueError(
                f"{name}: expected warmup_steps or warmup_ratio, got both ({warmup_steps} and {warmup_ratio}); "
                "leave one at 0"
            )

    def factor(self, step: int, total: int) -> float:
        """Returns step / warm-up during the warm-up, and ``after_warmup`` after it."""
        warmup = self.warmup(total)
        return step / warmup if step < warmup else self.after_warmup(step, warmup, total)

    def warmup(self, total: int) -> int:
        """Returns the number of steps of the warm-up."""
        return self.warmup_steps or math.ceil(total * self.warmup_ratio)

    @abstractmethod
    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Returns the multiplier of a step after the warm-up: ``step`` is at least ``warmup``."""


@final
class ConstantSchedule(WarmupSchedule):
    """Schedule with a constant rate, after an optional linear warm-up (CS224N).

    Equals Transformers' ``get_constant_schedule_with_warmup``. It doesn't need the length of the run, except with
    a ``warmup_ratio``.

    Args:
        warmup_steps: Optimizer steps of the warm-up from 0 to the peak.
        warmup_ratio: Warm-up as a share of the run, in [0, 1]; give either this or ``warmup_steps``.

    Raises:
        ValueError: A value is negative, both are given, or the ratio is above 1.

    Example:
        >>> [ConstantSchedule(warmup_steps=2).factor(step, total=9) for step in range(4)]
        [0.0, 0.5, 1.0, 1.0]
    """

    @property
    def needs_total(self) -> bool:
        """True if the warm-up is a share of the run, so that the schedule reads its total length."""
        return self.warmup_ratio > 0

    def after_warmup(self, step: int, warmup: int, total: int) -> float:  # noqa: ARG002  # the base's signature
        """Returns 1, the multiplier of a constant learning rate."""
        return 1.0


@final
class LinearSchedule(WarmupSchedule):
    """Schedule with a linear decay to 0 at the end of the run, after an optional linear warm-up.

    Equals Transformers' ``get_linear_schedule_with_warmup``: step / warm-up, then (total - step) / (total -
    warm-up). SimCSE uses no warm-up, CLEAR 24,000 steps, and ConSERT a ratio of 0.1. A warm-up given as a ratio
    is rounded up to whole steps.

    Args:
        warmup_steps: Optimizer steps of the warm-up from 0 to the peak.
        warmup_ratio: Warm-up as a share of the run, in [0, 1]; give either this or ``warmup_steps``.

    Raises:
        ValueError: A value is negative, both are given, or the ratio is above 1.

    Example:
        >>> [LinearSchedule(warmup_ratio=0.5).factor(step, total=4) for step in range(5)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Returns the number of remaining steps as a share of the steps after the warm-up."""
        return max(0.0, (total - step) / max(1, total - warmup))


@final
class CosineSchedule(WarmupSchedule):
    """Schedule with a cosine decay from the peak to 0, after an optional linear warm-up.

    (1 + cos(pi p)) / 2 with p = (step - warm-up) / (total - warm-up) (Loshchilov and Hutter 2017,
    https://arxiv.org/abs/1608.03983, equation 5, without restarts; Transformers'
    ``get_cosine_schedule_with_warmup``).

    Args:
        warmup_steps: Optimizer steps of the warm-up from 0 to the peak.
        warmup_ratio: Warm-up as a share of the run, in [0, 1]; give either this or ``warmup_steps``.

    Raises:
        ValueError: A value is negative, both are given, or the ratio is above 1.

    Example:
        >>> [round(CosineSchedule().factor(step, total=4), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Returns the multiplier of the cosine decay: 1 at the end of the warm-up, 0 at the end of the run."""
        return 0.5 * (1 + math.cos(math.pi * _progress(step, warmup=warmup, total=total)))


@final
class SlantedTriangularSchedule(Schedule):
    """Slanted triangular schedule: a short linear rise and a long linear decay between 1 / ratio and 1 (DeCLUTR).

    (1 + p (ratio - 1)) / ratio with cut = floor(total * cut_fraction); p = t / cut below cut, then
    1 - (t - cut) / (total - cut) (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146, section 3.2, with
    total - cut in place of their cut (1 / cut_fraction - 1), so the decay ends at total after rounding too). The
    first optimizer step has t = 1 and the last has t = total, as in the training library of DeCLUTR.

    Differs: if the length of the data is unknown, that library uses the current step as the last step. The rate
    then stays at peak / ratio for the whole run. Here such a run is refused (``ScheduledRates``).

    Args:
        cut_fraction: Share of the run in which the rate rises, in (0, 1).
        ratio: Peak rate divided by the lowest rate, at least 1.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> [SlantedTriangularSchedule().factor(step, total=100) for step in (9, 54, 99)]
        [1.0, 0.515625, 0.03125]
    """

    def __init__(self, cut_fraction: float = 0.1, ratio: float = 32) -> None:
        name = type(self).__name__
        self.cut_fraction = fraction(
            f"{name}.cut_fraction", cut_fraction, "DeCLUTR uses 0.1", with_zero=False, with_one=False
        )
        self.ratio = at_least(f"{name}.ratio", ratio, 1, "DeCLUTR uses 32")

    def factor(self, step: int, total: int) -> float:
        """Returns the multiplier of the peak rate at t = step + 1, from 1 / ratio to 1."""
        t, cut = step + 1, int(total * self.cut_fraction)
        p = t / cut if t < cut else 1 - _progress(t, warmup=cut, total=total)
        return (1 + p * (self.ratio - 1)) / self.ratio


class ScheduledRates(LambdaLR):
    """torch scheduler that multiplies the learning rate of every parameter group by a ``Schedule``'s factor.

    Differs: ``LambdaLR`` refuses groups that are added later, such as the layers that ``BaseFinetuning``
    unfreezes. Here such a group starts with its given rate and then follows the schedule. ``LambdaLR`` also
    restores the saved peak rates of a resumed run. Here the state holds only the step. A resumed run takes the
    peak rate and the schedule from its configuration.

    Args:
        optimizer: Optimizer at the peak rate.
        schedule: Schedule that computes the multiplier of a step.
        total: Optimizer steps of the whole run, as in ``trainer.estimated_stepping_batches``; None, infinity
            and numbers below 1 mean that the length is unknown.

    Raises:
        ValueError: The schedule needs the length of the run, and the length is unknown.

    Example:
        >>> weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
        >>> optimizer = torch.optim.SGD(weights[:1], lr=1.0)
        >>> rates = ScheduledRates(optimizer, LinearSchedule(), total=4)
        >>> optimizer.step(), rates.step(), optimizer.add_param_group({"params": weights[1:], "lr": 0.3})
        (None, None, None)
        >>> optimizer.step(), rates.step(), [round(group["lr"], 6) for group in optimizer.param_groups]
        (None, None, [0.5, 0.2])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule, total: float | None) -> None:
        known_total = int(total) if total is not None and 1 <= total < math.inf else 0
        if not known_total and schedule.needs_total:
            raise InvalidValueError(
                f"{type(schedule).__name__}: expected the number of optimizer steps of the run, got {total}; "
                "set trainer.max_steps, or trainer.max_epochs with a data set that has a length"
            )
        self._factor: Callable[[int], float] = lambda step: schedule.factor(step, total=known_total)
        super().__init__(optimizer, self._factor)

    def get_lr(self) -> list[float | Tensor]:
        """Returns the learning rate of each parameter group, including groups that were added later."""
        for group in self.optimizer.param_groups[len(self.base_lrs) :]:
            now = self._factor(self.last_epoch - 1)
            self.base_lrs.append(group["lr"] / now if now else group["lr"])
        factor = self._factor(self.last_epoch)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:  # Any: torch's
        """Returns the scheduler's state: step and rates, without the schedule itself."""
        return {name: value for name, value in super().state_dict().items() if name != "_factor"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: torch's
        """Restores the scheduler's saved step, and sets the rates that the current schedule has at this step.

        Args:
            state_dict: Result of ``state_dict``. Only groups that were added later take their peak rates from it.
        """
        base_rates = list(self.base_lrs)
        super().load_state_dict(
            {**state_dict, "base_lrs": [*base_rates, *state_dict["base_lrs"][len(base_rates) :]]}
        )
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]


def _progress(step: int, warmup: int, total: int) -> float:
    """Returns the share of the steps after the warm-up that are done, in [0, 1]."""
    return min(1.0, (step - warmup) / max(1, total - warmup))


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
        self._cls = torch_class(name, LRScheduler, lr_scheduler, "TorchSchedule.name")
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
        with naming_place(f"TorchSchedule({self.name})"):
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

        with naming_place(f"TransformersSchedule({self.name})"):
            if self._run is None or self._run[0] != total:
                optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
                self._run = total, get_scheduler(self.name, optimizer, warmup, total, self.options)
            return float(self._run[1].lr_lambdas[0](step))


def torch_class(name: str, base: type[_T], module: ModuleType, where: str) -> type[_T]:
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
def naming_place(where: str) -> Iterator[None]:
    """Re-raises errors of a torch class as ValueError with the place of the option in front."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        if not is_read_error(error):
            raise
        raise InvalidValueError(f"{where}: expected valid options, got: {error}") from error
