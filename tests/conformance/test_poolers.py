"""Properties that every public pooler has: padding never counts, half precision is pooled in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import parts
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text import poolers
from contrastive_text.core.batch import Hidden
from contrastive_text.poolers import (
    CLSPooler,
    ConcatPooler,
    FirstLastPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaskTokenPooler,
    MaxPooler,
    MeanPooler,
    MeanSqrtLengthPooler,
    Pooler,
    SpladePooler,
    WeightedMeanPooler,
)

MASK_ID = 7
MASK = ((True, True, True, False), (True, True, False, False))
# The toy of the specification sheet (vectors.json, "pooling"), by layer number.
TOY = {
    0: [[[0, 1], [2, 3], [4, 5], [99, 99]], [[1, -1], [3, 1], [49, 49], [49, 49]]],
    1: [[[2, 4], [6, 8], [10, 12], [200, 200]], [[4, 0], [8, 4], [100, 100], [100, 100]]],
    -2: [[[2, 3], [4, 5], [6, 7], [101, 101]], [[3, 1], [5, 3], [51, 51], [51, 51]]],
    -1: [[[1, 2], [3, 4], [5, 6], [100, 100]], [[2, 0], [4, 2], [50, 50], [50, 50]]],
}
# Name -> a pooler and what it makes of the toy, by hand.
POOLERS: dict[str, tuple[Pooler, list[list[float]]]] = {
    "MeanPooler": (MeanPooler(), [[3, 4], [3, 1]]),
    "CLSPooler": (CLSPooler(), [[1, 2], [2, 0]]),
    "LastTwoPooler": (LastTwoPooler(), [[3.5, 4.5], [3.5, 1.5]]),
    "FirstLastPooler of embeddings": (FirstLastPooler("embeddings"), [[2.5, 3.5], [2.5, 0.5]]),
    "FirstLastPooler of block_1": (FirstLastPooler("block_1"), [[4.5, 6], [4.5, 1.5]]),
    "MaxPooler": (MaxPooler(), [[5, 6], [4, 2]]),
    "LastTokenPooler": (LastTokenPooler(), [[5, 6], [4, 2]]),
    "WeightedMeanPooler": (
        WeightedMeanPooler(),
        [[(1 + 2 * 3 + 3 * 5) / 6, (2 + 2 * 4 + 3 * 6) / 6], [(2 + 2 * 4) / 3, (0 + 2 * 2) / 3]],
    ),
    "MaskTokenPooler": (MaskTokenPooler(), [[1, 2], [2, 0]]),
    "MeanSqrtLengthPooler": (MeanSqrtLengthPooler(), [[3 * 3**0.5, 4 * 3**0.5], [3 * 2**0.5, 1 * 2**0.5]]),
    "SpladePooler": (SpladePooler(), [[math.log(6), math.log(7)], [math.log(5), math.log(3)]]),
    "ConcatPooler": (ConcatPooler([MaxPooler(), LastTwoPooler()]), [[5, 6, 3.5, 4.5], [4, 2, 3.5, 1.5]]),
}
LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**31)
every_pooler = pytest.mark.parametrize("pooler", [pooler for pooler, _ in POOLERS.values()], ids=POOLERS)


def hidden_of(layers: dict[int, Tensor], mask: Tensor) -> Hidden:
    """The mask token is each text's first one, and padding may be anything."""
    ids = torch.where(mask.cumsum(dim=1) == 1, MASK_ID, 9).where(mask, torch.tensor(MASK_ID))
    return Hidden(layers, mask, ids, MASK_ID, token_logits=lambda rows: rows)


def toy(mask: Sequence[Sequence[bool]] = MASK) -> Hidden:
    layers = {layer: torch.tensor(rows, dtype=torch.float64) for layer, rows in TOY.items()}
    return hidden_of(layers, torch.tensor(mask))


def random_hidden(seed: int, lengths: list[int], dtype: torch.dtype = torch.float64) -> Hidden:
    noise = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths), 3)
    layers = {layer: torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype) for layer in TOY}
    return hidden_of(layers, torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1))


def test_every_public_pooler_has_an_entry() -> None:
    found = {cls.__name__ for cls in parts.public_parts(poolers, Pooler)}
    assert found == {name.split()[0] for name in POOLERS}


@every_pooler
def test_a_pooler_is_made_again_from_its_arguments(pooler: Pooler) -> None:
    parts.check_part(pooler)
    assert not [*pooler.parameters()] and not [*pooler.buffers()]


@pytest.mark.parametrize(("pooler", "expected"), POOLERS.values(), ids=POOLERS)
def test_s9_and_k14_a_pooler_on_the_four_layer_toy(pooler: Pooler, expected: list[list[float]]) -> None:
    hidden, before = toy(), toy()
    # Small whole numbers are exact in float64. Libraries may round square root and logarithm in the last bit.
    is_rounded = pooler.reads_token_logits or isinstance(pooler, MeanSqrtLengthPooler)
    torch.testing.assert_close(
        pooler(hidden), torch.tensor(expected, dtype=torch.float64), rtol=1e-15 * is_rounded, atol=0
    )
    assert pooler.width(2) == len(expected[0])
    assert torch.equal(hidden.mask, before.mask)
    assert all(torch.equal(rows, before.layers[layer]) for layer, rows in hidden.layers.items())


@every_pooler
def test_a_pooler_reads_the_layers_that_it_names(pooler: Pooler) -> None:
    whole = toy()
    named = replace(whole, layers={layer: whole.layers[layer] for layer in pooler.layers})
    assert torch.equal(pooler(named), pooler(whole))
    for layer in pooler.layers:
        changed = replace(whole, layers={**whole.layers, layer: whole.layers[layer] + 1})
        assert not torch.equal(pooler(changed), pooler(whole))


@every_pooler
@given(
    seed=SEEDS,
    lengths=LENGTHS,
    fill=st.sampled_from([0.0, -1e9, 1e9, float("inf"), float("nan")]),
    more=st.integers(0, 3),
)
def test_padding_never_changes_the_result(
    pooler: Pooler, seed: int, lengths: list[int], fill: float, more: int
) -> None:
    hidden = random_hidden(seed, lengths)

    def padded(rows: Tensor) -> Tensor:
        filled = rows.masked_fill(~hidden.mask.unsqueeze(-1), fill)
        return torch.cat([filled, torch.full((len(rows), more, 3), fill, dtype=rows.dtype)], dim=1)

    longer = hidden_of(
        {layer: padded(rows) for layer, rows in hidden.layers.items()},
        torch.cat([hidden.mask, torch.zeros(len(lengths), more, dtype=torch.bool)], dim=1),
    )
    # A longer sum may be blocked otherwise: float64 rounding of at most four values near 1.
    torch.testing.assert_close(pooler(longer), pooler(hidden), rtol=0, atol=1e-14)


@every_pooler
@given(seed=SEEDS, lengths=LENGTHS)
def test_padding_on_the_left_gives_the_same_unless_places_count(
    pooler: Pooler, seed: int, lengths: list[int]
) -> None:
    if isinstance(pooler, WeightedMeanPooler):
        return
    hidden = random_hidden(seed, lengths)

    def left(rows: Tensor) -> Tensor:
        return torch.stack([row.roll(max(lengths) - n, dims=0) for row, n in zip(rows, lengths, strict=True)])

    moved = hidden_of({layer: left(rows) for layer, rows in hidden.layers.items()}, left(hidden.mask))
    # As above.
    torch.testing.assert_close(pooler(moved), pooler(hidden), rtol=0, atol=1e-14)


@every_pooler
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layers_are_pooled_in_float32(pooler: Pooler, dtype: torch.dtype) -> None:
    halves = random_hidden(0, [4, 2, 1], dtype=dtype)
    singles = replace(halves, layers={layer: rows.float() for layer, rows in halves.layers.items()})
    pooled = pooler(halves)
    assert pooled.dtype == torch.float32
    # No step in half precision: bit for bit what the same numbers give as float32.
    assert torch.equal(pooled, pooler(singles))
