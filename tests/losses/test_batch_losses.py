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
    batch_losses,
)

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


def barlow(x: Vectors, y: Vectors, _: list[list[int]]) -> float:
    total, n = 0.0, len(x)
    scaled = [[[v / math.sqrt(dot(c, c) / n + 1e-5) for v in c] for c in columns(side)] for side in (x, y)]
    for d, u in enumerate(scaled[0]):
        for e, v in enumerate(scaled[1]):
            c = dot(u, v) / n
            total += (c - 1) ** 2 if d == e else 0.2 * c**2
    return total


def vicreg(x: Vectors, y: Vectors, _: list[list[int]]) -> float:
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


@pytest.mark.parametrize("loss", [AlignmentUniformity(alignment_weight=0), GlobalOrthogonalRegularization()])
def test_texts_that_are_alike_in_either_kind_of_id_are_no_pair(loss: BatchLoss) -> None:
    x, y = drawn()
    twice = torch.tensor([[i % 5, 7 + i % 5] for i in range(7)])
    kinds = torch.stack([torch.arange(14).reshape(7, 2), twice], dim=2)  # alike in the second kind alone
    assert torch.equal(loss(x, y, twice), loss(x, y, kinds))
    assert abs(loss(x, y) - loss(x, y, twice)) > 1e-2
    assert float(loss(x, y, torch.zeros_like(twice))) == 0  # no two texts differ


def test_directions_are_those_of_the_texts_and_the_seed() -> None:
    (x, y), loss = drawn(), SIGReg(weight=1, directions=3)
    before = loss(x, y, IDS)
    assert torch.equal(loss(x, y, IDS), before)  # another pass of the same step
    assert not torch.equal(loss(x, y, IDS + 1), before)
    assert not torch.equal(SIGReg(weight=1, directions=3, seed=1)(x, y, IDS), before)


def test_uniformity_keeps_no_matrix_of_all_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def note(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    monkeypatch.setattr(batch_losses, "BLOCK_ENTRIES", 500)
    x, y = (torch.randn(100, 4, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        AlignmentUniformity()(x, y).backward()
    assert max(sizes) <= 500
