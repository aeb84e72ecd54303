"""Optimizers of a resumed run: moments come from the checkpoint, settings from the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from contrastive_text.core.errors import InvalidValueError

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
