"""Orders of an epoch: each number once, another under each key, and none of it to be seen in the numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contrastive_text.core.random import fold, generator
from contrastive_text.data import loader as orders
from contrastive_text.data.loader import Bijection, EpochOrder, keyed_order


@pytest.mark.parametrize(
    "size",
    sorted({1, 2, 6, 1000, 10_007, *(2**bits + more for bits in (2, 3, 4, 7, 10, 12) for more in (-1, 0, 1))}),
)
def test_a_bijection_gives_every_number_once(size: int) -> None:
    order = Bijection(size, key=size)
    whole = order[:]
    assert len(order) == len(whole) == size
    assert np.array_equal(np.sort(whole), np.arange(size))
    cut = [0, size // 3, size // 3 + 1, size]
    assert np.array_equal(np.concatenate([order[start:stop] for start, stop in pairwise(cut)]), whole)


def test_places_beyond_32_bits_are_numbers_of_the_same_order() -> None:
    order = Bijection(3 * 2**40, key=1)
    numbers = order[2**40 : 2**40 + 4000]
    assert len(np.unique(numbers)) == 4000
    assert numbers.min() >= 0
    assert 2**41 < numbers.max() < 3 * 2**40
    assert abs(numbers.mean() / (3 * 2**40) - 0.5) < 0.02  # 0.0046 is the standard deviation


def deviations(size: int, keys: int = 20) -> dict[str, float]:
    """Statistic -> its mean over keys, in standard deviations of one: of random orders about 0."""
    places, found = np.arange(size), {"places": 0.0, "neighbours": 0.0, "distance": 0.0, "again": 0.0}
    for key in range(keys):
        order = Bijection(size, key)[:]
        found["places"] += uneven(np.histogram2d(places * 32 // size, order * 32 // size, bins=32)[0], 31 * 31)
        steps = np.diff(order) % size * 256 // size
        found["neighbours"] += uneven(np.bincount(steps, minlength=256), 255)
        found["distance"] += (np.abs(order - places).mean() / size - 1 / 3) * np.sqrt(size) / 0.2108
        found["again"] += (order == Bijection(size, keys + key)[:]).sum() - 1  # one place on average, Poisson
    return {name: total / keys for name, total in found.items()}


def uneven(counts: npt.NDArray[np.floating | np.integer], freedom: int) -> float:
    """Returns how far chi-squared of counts, all as likely, lies from its mean, in standard deviations."""
    expected = counts.sum() / counts.size
    chi = float(((counts - expected) ** 2 / expected).sum())
    return (chi - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [4096, 5000])
def test_a_bijection_looks_random(size: int) -> None:
    for name, deviation in deviations(size).items():
        assert abs(deviation) < 0.9, name  # four standard deviations of a mean over twenty keys


@pytest.mark.parametrize("size", [1, 2, 7, 255, 256, 65_535, 65_536, 70_000])
def test_a_permutation_is_numpy_s_bit_for_bit_in_less_memory(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, order = generator(5).permutation(size), keyed_order(size, key=5)
    assert isinstance(order, np.ndarray)
    assert np.array_equal(order, drawn)
    assert order.itemsize < drawn.itemsize
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", size - 1)
    assert isinstance(keyed_order(size, key=5), Bijection)


@pytest.mark.parametrize("bound", [0, 1 << 24])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the bound is the same for all
@given(size=st.integers(1, 30), start=st.integers(0, 90), count=st.integers(1, 90))
def test_passes_follow_each_other_each_in_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch, bound: int, size: int, start: int, count: int
) -> None:
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", bound)
    keys = [fold(7, 8), *(fold(7, 8, number) for number in range(1, 200))]  # the first as in runs of one pass
    passes = range(-(-(start + count) // size))
    whole = [number * size + keyed_order(size, keys[number])[:].astype(int) for number in passes]
    order = EpochOrder(size, (7, 8))
    for _ in range(2):  # the last pass is kept, the others are computed again
        assert order(start, start + count).tolist() == np.concatenate(whole)[start : start + count].tolist()


@pytest.mark.parametrize("bound", [0, 1 << 24])
def test_every_epoch_seed_task_and_pass_has_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", bound)
    keys = [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)]
    orders_ = [EpochOrder(40, key) for key in keys]
    seen = [tuple(order(0, 40)) for order in orders_] + [tuple(orders_[0](40, 80) - 40)]
    assert len(set(seen)) == 5
    assert seen[0] == tuple(EpochOrder(40, keys[0])(0, 40))
