"""Losses over the whole batch: slow loops, duplicates, directions and memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from contrastive_text.losses import (
    AlignmentUniformity,
    BatchLoss,
    GlobalOrthogonalRegularization,
    SIGReg,
    batch_losses,
)

ROUNDING = 1e-12
"""Float64: sums of some hundred terms of order 1."""

Vectors = list[list[float]]


# Slow loops


def unit(rows: Vectors) -> Vectors:
    return [[x / math.hypot(*row) for x in row] for row in rows]


IDS = torch.tensor([[1, 5], [2, 6], [1, 7], [3, 5], [4, 8], [2, 9], [9, 5]])


def drawn(seed: int = 0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(seed)
    return [torch.randn(7, 4, generator=noise, dtype=torch.float64) for _ in range(2)]


@pytest.mark.parametrize("seed", range(3))
def test_alignment_and_uniformity_equal_the_slow_loop(seed: int) -> None:
    sides = drawn(seed)
    x, y = (unit(side.tolist()) for side in sides)
    expected = 0.7 * sum(math.dist(u, v) ** 3 for u, v in zip(x, y, strict=True)) / len(x)
    for side, ids in zip((x, y), IDS.T.tolist(), strict=True):
        pairs = [(u, v) for j, v in enumerate(side) for i, u in enumerate(side[:j]) if ids[i] != ids[j]]
        potentials = [math.exp(-4 * math.dist(*pair) ** 2) for pair in pairs]
        expected += 0.3 * math.log(sum(potentials) / len(potentials)) / 2
    found = AlignmentUniformity(3, 4, 0.7, 0.3)(*sides, IDS)
    assert float(found) == pytest.approx(expected, abs=ROUNDING)


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
