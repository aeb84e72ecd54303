"""Learning-rate schedules: which share of the peak rate each optimiser step gets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from contrastive_text.core.errors import InvalidValueError


class Schedule(ABC):
    """Base class of learning-rate schedules.

    A schedule of your own is a class with ``factor``:

    Example:
        >>> class HalfAtTheEnd(Schedule):
        ...     def factor(self, step: int, total: int) -> float:
        ...         return 1 - 0.5 * step / total
        >>> HalfAtTheEnd().factor(step=50, total=100)
        0.75
    """

    @property
    def needs_total(self) -> bool:
        """Whether ``factor`` reads ``total``; a run of unknown length is then refused."""
        return True

    @abstractmethod
    def factor(self, step: int, total: int) -> float:
        """Returns the multiplier of the peak learning rate.

        Args:
            step: Number of the optimiser step, from 0 to total - 1; torch also asks once for total.
            total: Optimiser steps of the whole run; 0 if unknown, which only schedules without
                ``needs_total`` see.

        Returns:
            A number from 0 to 1.
        """


@final
class ConstantSchedule(Schedule):
    """Peak rate throughout, after a linear warm-up if one is given (CS224N).

    As Transformers' ``get_constant_schedule_with_warmup``. Needs no length of the run, except with a
    ``warmup_ratio``.

    Args:
        warmup_steps: Optimiser steps of the rise from 0 to the peak.
        warmup_ratio: The same as a share of the run, in [0, 1]; give one of the two.

    Raises:
        ValueError: One is negative, both are given, or the ratio is above 1.

    Example:
        >>> [ConstantSchedule(warmup_steps=2).factor(step, total=9) for step in range(4)]
        [0.0, 0.5, 1.0, 1.0]
    """

    def __init__(self, warmup_steps: int = 0, warmup_ratio: float = 0.0) -> None:
        _check_warmup("ConstantSchedule", warmup_steps=warmup_steps, warmup_ratio=warmup_ratio)
        self.warmup_steps = warmup_steps
        self.warmup_ratio = warmup_ratio

    @property
    def needs_total(self) -> bool:
        """Whether the warm-up is a share of the run."""
        return self.warmup_ratio > 0

    def factor(self, step: int, total: int) -> float:
        """Returns min(1, step / warm-up)."""
        warmup = _warmup(self.warmup_steps, ratio=self.warmup_ratio, total=total)
        return step / warmup if step < warmup else 1.0


@final
class LinearSchedule(Schedule):
    """Linear fall to 0 at the end of the run, after a linear rise if a warm-up is given.

    As Transformers' ``get_linear_schedule_with_warmup`` (SimCSE without warm-up, CLEAR with 24,000 steps,
    ConSERT with a ratio of 0.1): step / warm-up, then (total - step) / (total - warm-up). A warm-up given as
    a ratio is rounded up to whole steps.

    Args:
        warmup_steps: Optimiser steps of the rise from 0 to the peak.
        warmup_ratio: The same as a share of the run, in [0, 1]; give one of the two.

    Raises:
        ValueError: One is negative, both are given, or the ratio is above 1.

    Example:
        >>> [LinearSchedule(warmup_ratio=0.5).factor(step, total=4) for step in range(5)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(self, warmup_steps: int = 0, warmup_ratio: float = 0.0) -> None:
        _check_warmup("LinearSchedule", warmup_steps=warmup_steps, warmup_ratio=warmup_ratio)
        self.warmup_steps = warmup_steps
        self.warmup_ratio = warmup_ratio

    def factor(self, step: int, total: int) -> float:
        """Returns step / warm-up, then the share of the remaining steps."""
        warmup = _warmup(self.warmup_steps, ratio=self.warmup_ratio, total=total)
        return step / warmup if step < warmup else max(0.0, (total - step) / max(1, total - warmup))


@final
class CosineSchedule(Schedule):
    """Half a cosine from the peak to 0, after a linear rise if a warm-up is given.

    (1 + cos(pi p)) / 2 with p = (step - warm-up) / (total - warm-up) (Loshchilov and Hutter 2017,
    https://arxiv.org/abs/1608.03983, equation 5, without restarts; Transformers'
    ``get_cosine_schedule_with_warmup``).

    Args:
        warmup_steps: Optimiser steps of the rise from 0 to the peak.
        warmup_ratio: The same as a share of the run, in [0, 1]; give one of the two.

    Raises:
        ValueError: One is negative, both are given, or the ratio is above 1.

    Example:
        >>> [round(CosineSchedule().factor(step, total=4), 3) for step in range(5)]
        [1.0, 0.854, 0.5, 0.146, 0.0]
    """

    def __init__(self, warmup_steps: int = 0, warmup_ratio: float = 0.0) -> None:
        _check_warmup("CosineSchedule", warmup_steps=warmup_steps, warmup_ratio=warmup_ratio)
        self.warmup_steps = warmup_steps
        self.warmup_ratio = warmup_ratio

    def factor(self, step: int, total: int) -> float:
        """Returns step / warm-up, then half a cosine."""
        warmup = _warmup(self.warmup_steps, ratio=self.warmup_ratio, total=total)
        if step < warmup:
            return step / warmup
        return 0.5 * (1 + math.cos(math.pi * _progress(step, warmup=warmup, total=total)))


@final
class SlantedTriangularSchedule(Schedule):
    """Short linear rise and long linear fall between 1 / ratio and 1 (DeCLUTR).

    The formula is ``slanted_triangular`` (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146,
    section 3.2). The first optimiser step has t = 1 and the last one t = total, as in the training library
    of DeCLUTR.

    Differs: that library takes the current step for the last one while the length of the data is unknown, so
    that the rate stays at peak / ratio for the whole run; here such a run is refused (``lr_lambda``).

    Args:
        cut_fraction: Share of the run in which the rate rises, in (0, 1).
        ratio: Peak divided by the lowest rate, at least 1.

    Raises:
        ValueError: A value is out of its range.

    Example:
        >>> [SlantedTriangularSchedule().factor(step, total=100) for step in (9, 54, 99)]
        [1.0, 0.515625, 0.03125]
    """

    def __init__(self, cut_fraction: float = 0.1, ratio: float = 32) -> None:
        if not 0 < cut_fraction < 1:
            raise InvalidValueError(
                f"SlantedTriangularSchedule.cut_fraction: expected a share in (0, 1), got {cut_fraction}; "
                "DeCLUTR uses 0.1"
            )
        if not 1 <= ratio < math.inf:
            raise InvalidValueError(
                f"SlantedTriangularSchedule.ratio: expected a number from 1, got {ratio}; DeCLUTR uses 32"
            )
        self.cut_fraction = cut_fraction
        self.ratio = ratio

    def factor(self, step: int, total: int) -> float:
        """Returns ``slanted_triangular`` at t = step + 1."""
        return slanted_triangular(step + 1, total=total, cut_fraction=self.cut_fraction, ratio=self.ratio)


def slanted_triangular(t: int, total: int, cut_fraction: float, ratio: float) -> float:
    """Returns the slanted triangular multiplier at time t.

    cut = floor(total * cut_fraction); p = t / cut below cut, then 1 - (t - cut) / (total - cut);
    (1 + p (ratio - 1)) / ratio (Howard and Ruder 2018, https://arxiv.org/abs/1801.06146, section 3.2, with
    total - cut where they write cut (1 / cut_fraction - 1): the fall ends at total after rounding too).

    Args:
        t: Time, from 0 to total.
        total: Optimiser steps of the whole run.
        cut_fraction: Share of the run in which the rate rises.
        ratio: Peak divided by the lowest rate.

    Returns:
        A number from 1 / ratio to 1.

    Example:
        >>> [slanted_triangular(t, total=10, cut_fraction=0.2, ratio=2) for t in (0, 1, 2, 6, 10)]
        [0.5, 0.75, 1.0, 0.75, 0.5]
    """
    cut = int(total * cut_fraction)
    p = t / cut if t < cut else 1 - _progress(t, warmup=cut, total=total)
    return (1 + p * (ratio - 1)) / ratio


class ScheduledRates(LambdaLR):
    """Multiplies the rate of every group of parameters by the schedule's factor.

    Differs: torch's refuses groups that are added later, as ``BaseFinetuning`` adds layers that it unfreezes.
    Here such a group has, when it is added, the rate that it comes with, and follows the schedule from there.

    Args:
        optimizer: At the peak rate.
        factor: Optimiser step -> multiplier.

    Example:
        >>> weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
        >>> optimizer = torch.optim.SGD(weights[:1], lr=1.0)
        >>> rates = ScheduledRates(optimizer, lr_lambda(LinearSchedule(), total=4))
        >>> optimizer.step(), rates.step(), optimizer.add_param_group({"params": weights[1:], "lr": 0.3})
        (None, None, None)
        >>> optimizer.step(), rates.step(), [round(group["lr"], 6) for group in optimizer.param_groups]
        (None, None, [0.5, 0.2])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> None:
        self._factor = factor
        super().__init__(optimizer, factor)

    def get_lr(self) -> list[float | Tensor]:
        """Returns the rate of each group, of later ones too."""
        for group in self.optimizer.param_groups[len(self.base_lrs) :]:
            now = self._factor(self.last_epoch - 1)
            self.base_lrs.append(group["lr"] / now if now else group["lr"])
        factor = self._factor(self.last_epoch)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:  # Any: torch's
        """Returns the place in the schedule, without the schedule."""
        return {name: value for name, value in super().state_dict().items() if name != "_factor"}


def lr_lambda(schedule: Schedule, total: float | None) -> Callable[[int], float]:
    """Returns the function of the step that ``torch.optim.lr_scheduler.LambdaLR`` expects.

    Args:
        schedule: The schedule.
        total: Optimiser steps of the whole run, as in ``trainer.estimated_stepping_batches``; None, infinity
            and numbers below 1 mean that it is unknown.

    Returns:
        Step -> multiplier of the peak learning rate.

    Raises:
        ValueError: The schedule needs the length of the run and it is unknown.

    Example:
        >>> lr_lambda(LinearSchedule(), total=4)(1)
        0.75
    """
    known = total is not None and 1 <= total < math.inf
    if not known and schedule.needs_total:
        raise InvalidValueError(
            f"{type(schedule).__name__}: expected the number of optimiser steps of the run, got {total}; "
            "set trainer.max_steps, or trainer.max_epochs with a data set that has a length"
        )
    steps = int(total) if total is not None and known else 0
    return lambda step: schedule.factor(step, total=steps)


def _check_warmup(name: str, warmup_steps: int, warmup_ratio: float) -> None:
    if warmup_steps < 0:
        raise InvalidValueError(
            f"{name}.warmup_steps: expected 0 or more optimiser steps, got {warmup_steps}; 0 is no warm-up"
        )
    if not 0 <= warmup_ratio <= 1:
        raise InvalidValueError(
            f"{name}.warmup_ratio: expected a share of the run in [0, 1], got {warmup_ratio}; "
            "give a number of steps as warmup_steps"
        )
    if warmup_steps and warmup_ratio:
        raise InvalidValueError(
            f"{name}: expected warmup_steps or warmup_ratio, got both ({warmup_steps} and {warmup_ratio}); "
            "leave one at 0"
        )


def _warmup(steps: int, ratio: float, total: int) -> int:
    return steps or math.ceil(total * ratio)


def _progress(step: int, warmup: int, total: int) -> float:
    """Share of the way from the end of the warm-up to the end of the run, in [0, 1]."""
    return min(1.0, (step - warmup) / max(1, total - warmup))
