"""Losses over the whole batch: slow loops, duplicates, directions and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from contrastive_text.losses import (
    AlignmentUniformity,
    BarlowTwins,
    BatchLoss,
    GlobalOrthogonalRegularization,
    SIGReg,
    VICReg,
)
from contrastive_text.losses.batch_losses import epps_pulley

ROUNDING = 1e-12
"""Float64: sums of some hundred terms of order 1."""

Vectors = list[list[float]]


# Slow loops


def unit(rows: Vectors) -> Vectors:
    return [[x / math.hypot(*row) for x in row] for row in rows]


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def pairs_of(rows: Vectors, ids: list[int]) -> list[float]:
    """Cosines of texts that differ."""
    each = unit(rows)
    pairs = [(i, j) for j in range(len(rows)) for i in range(j) if ids[i] != ids[j]]
    return [dot(each[i], each[j]) for i, j in pairs]


def align_uniform(x: Vectors, y: Vectors, ids: list[list[int]]) -> float:
    pulled = [math.dist(u, v) ** 3 for u, v in zip(unit(x), unit(y), strict=True)]
    spreads = []
    for side, own in zip((x, y), ids, strict=True):
        potentials = [math.exp(-4 * (2 - 2 * cosine)) for cosine in pairs_of(side, own)]
        spreads.append(math.log(sum(potentials) / len(potentials)))
    return 0.7 * sum(pulled) / len(pulled) + 0.3 * sum(spreads) / 2


def gor(x: Vectors, y: Vectors, ids: list[list[int]]) -> float:
    values = []
    for side, own in zip((x, y), ids, strict=True):
        cosines = pairs_of(side, own)
        mean, square = (sum(c**k for c in cosines) / len(cosines) for k in (1, 2))
        values.append(0.6 * mean**2 + 2 * max(square - 1 / len(side[0]), 0))
    return sum(values) / 2


def columns(rows: Vectors) -> Vectors:
    """Features, each without its mean."""
    return [[value - sum(column) / len(column) for value in column] for column in zip(*rows, strict=True)]


def barlow(x: Vectors, y: Vectors, ids: list[list[int]]) -> float:  # noqa: ARG001  # as each loop is called
    total, n = 0.0, len(x)
    scaled = [[[v / math.sqrt(dot(c, c) / n + 1e-5) for v in c] for c in columns(side)] for side in (x, y)]
    for d, u in enumerate(scaled[0]):
        for e, v in enumerate(scaled[1]):
            c = dot(u, v) / n
            total += (c - 1) ** 2 if d == e else 0.2 * c**2
    return total


def vicreg(x: Vectors, y: Vectors, ids: list[list[int]]) -> float:  # noqa: ARG001  # as each loop is called
    n, width = len(x), len(x[0])
    total = (
        3 * sum((a - b) ** 2 for u, v in zip(x, y, strict=True) for a, b in zip(u, v, strict=True)) / (n * width)
    )
    for side in (x, y):
        features = columns(side)
        for d, u in enumerate(features):
            total += 2 * max(1 - math.sqrt(dot(u, u) / (n - 1) + 1e-4), 0) / width / 2
            for e, v in enumerate(features):
                total += 0.5 * (dot(u, v) / (n - 1)) ** 2 / width if d != e else 0
    return total


LOOPS: dict[str, tuple[BatchLoss, Callable[[Vectors, Vectors, list[list[int]]], float]]] = {
    "alignment and uniformity": (AlignmentUniformity(3, 4, 0.7, 0.3), align_uniform),
    "GOR": (GlobalOrthogonalRegularization(0.6, 2), gor),
    "Barlow Twins": (BarlowTwins(0.2), barlow),
    "VICReg": (VICReg(3, 2, 0.5), vicreg),
}
IDS = torch.tensor([[1, 5], [2, 6], [1, 7], [3, 5], [4, 8], [2, 9], [9, 5]])


def drawn(seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(7, 4, generator=noise, dtype=torch.float64) for _ in range(2)]


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_equals_the_slow_loop(name: str, seed: int) -> None:
    (x, y), (loss, slow) = drawn(seed), LOOPS[name]
    expected = slow(x.tolist(), y.tolist(), IDS.T.tolist())
    assert float(loss(x, y, IDS)) == pytest.approx(expected, abs=ROUNDING)


def test_the_statistic_of_epps_and_pulley_is_the_integral_of_the_slow_sum() -> None:
    rows, (along, _) = drawn()[0], drawn(1)
    direction = along[0] / along[0].norm()
    u, total, steps = (rows @ direction).tolist(), 0.0, 32
    for k in range(steps + 1):
        t = -3 + 6 * k / steps
        real, imaginary = (sum(of(t * v) for v in u) / len(u) for of in (math.cos, math.sin))
        height = ((real - math.exp(-t * t / 2)) ** 2 + imaginary**2) * math.exp(-t * t / 2)
        total += height * 6 / steps * (0.5 if k in (0, steps) else 1)
    found = epps_pulley(rows, direction.unsqueeze(1))
    assert found.tolist() == pytest.approx([len(u) * total], abs=ROUNDING)


@pytest.mark.parametrize("loss", [AlignmentUniformity(alignment_weight=0), GlobalOrthogonalRegularization()])
def test_equal_texts_are_no_pairs_of_different_ones(loss: BatchLoss) -> None:
    x, y = drawn()
    once = loss(x[:5], y[:5])
    x[5:], y[5:] = x[:2], y[:2]
    twice = torch.tensor([[i % 5, 7 + i % 5] for i in range(7)])
    kinds = torch.stack([torch.arange(14).reshape(7, 2), twice], dim=2)  # alike in the second kind alone
    assert torch.equal(loss(x, y, twice), loss(x, y, kinds))
    assert abs(loss(x, y) - loss(x, y, twice)) > 1e-2
    assert float(loss(x, y, torch.zeros_like(twice))) == 0  # no two texts differ
    assert abs(once - loss(x, y, twice)) < abs(once - loss(x, y))


def test_directions_are_those_of_the_texts_and_the_seed() -> None:
    (x, y), loss = drawn(), SIGReg(weight=1, directions=3)
    before = loss(x, y, IDS)
    assert torch.equal(loss(x, y, IDS), before)  # another pass of the same step
    assert not torch.equal(loss(x, y, IDS + 1), before)
    assert not torch.equal(SIGReg(weight=1, directions=3, seed=1)(x, y, IDS), before)


@pytest.mark.slow
def test_uniformity_of_16_384_rows_fits_into_a_part_of_one_matrix() -> None:
    """The matrix of all cosines has 1 GiB in float32; peaks of several blocks stay below half of one."""
    resource = pytest.importorskip("resource")
    noise = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2**14, 8, generator=noise, requires_grad=True) for _ in range(2))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    AlignmentUniformity()(x, y).backward()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB
