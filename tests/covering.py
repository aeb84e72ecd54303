"""A few combinations for all: the first, those in which every two choices meet, and a part of them at random."""

from __future__ import annotations

import heapq
import itertools
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Combination = TypeVar("Combination", bound=tuple[str, ...])

Choice = tuple[int, str]
Pair = tuple[Choice, Choice]


def rest_slow(values: Iterable[Any], quick: int = 1) -> list[Any]:  # Any: what parametrize takes
    """Returns the values of a test, all but the first few marked as slow; a tuple is one value of each name."""
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*value, marks=[] if i < quick else [pytest.mark.slow]) for i, value in enumerate(each)]


def crossed(*axes: Iterable[Any]) -> list[Any]:  # Any: what parametrize takes
    """Returns every combination of some axes, marked as slow but for the few that show each choice once.

    In those the n-th choices of all axes meet; a short axis begins anew.
    """
    each = [list(axis) for axis in axes]
    first = [tuple(axis[i % len(axis)] for axis in each) for i in range(max(map(len, each)))]
    rest = [combination for combination in itertools.product(*each) if combination not in first]
    return rest_slow([*first, *rest], quick=len(first))


def pairs(combination: tuple[str, ...]) -> set[Pair]:
    """Returns every two choices of a combination, each with the number of its axis."""
    return set(itertools.combinations(enumerate(combination), 2))


def choices(combination: tuple[str, ...]) -> set[Choice]:
    """Returns every choice of a combination, with the number of its axis."""
    return set(enumerate(combination))


def covering(
    every: Sequence[Combination],
    of: Callable[[tuple[str, ...]], set[Any]] = pairs,
    cost: Callable[[Combination], float] = lambda _: 1.0,
) -> list[Combination]:  # Any: pairs or choices
    """Returns combinations in which every two choices meet that meet in any, chosen greedily; always the same.

    With ``choices`` in the place of ``pairs`` they have every choice, whatever it meets. Of combinations that add
    equally many the cheapest is taken.
    """
    numbers: dict[Any, int] = {}
    sets = [sum(1 << numbers.setdefault(found, len(numbers)) for found in of(each)) for each in every]
    left, chosen = (1 << len(numbers)) - 1, []
    # What one adds only becomes less: the first whose number still holds adds most. All others wait unlooked at.
    heap = [(-found.bit_count(), cost(each), i) for i, (each, found) in enumerate(zip(every, sets, strict=True))]
    heapq.heapify(heap)
    while left:
        adds, costs, i = heap[0]
        if (now := -(sets[i] & left).bit_count()) == adds:
            chosen.append(every[i])
            left &= ~sets[i]
        else:
            heapq.heapreplace(heap, (now, costs, i))
    return chosen


def share_of(every: Sequence[Combination]) -> list[Combination]:
    """Returns one of several equal parts of all combinations, drawn at random; the parts together are all.

    Which one says ``CONTRASTIVE_TEXT_PART``, the first of 64 where it isn't set: ``2/6`` is the second of
    six, ``1/1`` is everything.
    """
    number, parts = _part()
    drawn = random.Random(0).sample(every, len(every))
    return drawn[number - 1 :: parts]


def turn_of(every: Iterable[Any], turns: int) -> list[Any]:  # Any: what parametrize takes
    """Returns every n-th of some long checks, beginning with another one in each part; all of them in ``1/1``.

    ``.ci/run`` takes another part with every commit: n commits see them all.
    """
    number, parts = _part()
    return [*every] if parts == 1 else [*every][number % turns :: turns]


def _part() -> tuple[int, int]:
    """Returns the number of the part that this run takes, and the number of parts."""
    number, parts = map(int, os.environ.get("CONTRASTIVE_TEXT_PART", "1/64").split("/"))
    assert 1 <= number <= parts, "CONTRASTIVE_TEXT_PART: expected a part such as 1/6"
    return number, parts
