"""Checks of option values. Each raises a ``ValueError`` that names the option, the expected values and the value.

A check returns the value, so that a constructor checks and stores an option in one line. ``None`` passes every
check, because it means that an option is not set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar, get_args

from contrastive_text.core.errors import InvalidValueError

_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float, int | None, float | None)


def one_of(
    name: str, value: _Value, choices: Any, advice: str = ""
) -> _Value:  # Any: mypy has no type for Literal
    """Checks that a value is one of some choices.

    Args:
        name: Place of the option, such as ``Spans.start``.
        value: Its value.
        choices: A ``Literal`` type, or the values themselves.
        advice: What to do; empty if the choices say it.

    Example:
        >>> one_of("Spans.start", "middle", ["grid", "uniform"])
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: Spans.start: expected grid or uniform, got 'middle'
    """
    values: Iterable[object] = get_args(choices) or choices
    if value is None or value in values:
        return value
    *first, last = map(str, values)
    expected = f"one of {', '.join(first)} or {last}" if len(first) > 1 else " or ".join([*first, last])
    raise _refusal(name, expected, repr(value), advice)


def at_least(name: str, value: _Number, least: float, advice: str = "") -> _Number:
    """Checks that a number is finite and at least ``least``.

    Args:
        name: Place of the option.
        value: Its value.
        least: Smallest value that is allowed.
        advice: What to do.

    Example:
        >>> at_least("NeighborProbe.k", 0, 1, "5 is usual")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: NeighborProbe.k: expected 1 or more, got 0; 5 is usual
    """
    if value is None or least <= value < math.inf:
        return value
    expected = f"a finite number of {least:,} or more" if value == math.inf else f"{least:,} or more"
    raise _refusal(name, expected, f"{value:,}", advice)


def above(name: str, value: _Number, bound: float = 0, advice: str = "") -> _Number:
    """Checks that a number is finite and greater than a bound.

    Args:
        name: Place of the option.
        value: Its value.
        bound: The number that it must exceed.
        advice: What to do.

    Example:
        >>> above("LoRA.alpha", 0, advice="try 8")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: LoRA.alpha: expected a finite number above 0, got 0; try 8
    """
    if value is None or bound < value < math.inf:
        return value
    raise _refusal(name, f"a finite number above {bound:,}", f"{value:,}", advice)


def fraction(
    name: str, value: _Number, advice: str = "", with_zero: bool = True, with_one: bool = True
) -> _Number:
    """Checks that a number is a share: between 0 and 1.

    Args:
        name: Place of the option.
        value: Its value.
        advice: What to do.
        with_zero: Whether 0 is allowed.
        with_one: Whether 1 is allowed.

    Example:
        >>> fraction("MLPHead.dropout", 1, with_one=False)
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: MLPHead.dropout: expected a share from 0 to below 1, ... 1
    """
    if value is None or (0 <= value <= 1 and (with_zero or value > 0) and (with_one or value < 1)):
        return value
    low, high = "from 0" if with_zero else "above 0", "to 1" if with_one else "to below 1"
    raise _refusal(name, f"a share {low} {high}", f"{value}", advice)


def _refusal(name: str, expected: str, value: str, advice: str) -> InvalidValueError:
    ending = f"; {advice}" if advice else ""
    return InvalidValueError(f"{name}: expected {expected}, got {value}{ending}")
