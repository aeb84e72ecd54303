"""Poolers: the four-layer toy, padding, precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.types import Hidden
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
    WeightedMeanPooler,
    masked_mean,
)

POOLERS: tuple[Pooler, ...] = (
    MeanPooler(),
    CLSPooler(),
    LastTwoPooler(),
    FirstLastPooler("embeddings"),
    FirstLastPooler("block_1"),
    MaxPooler(),
    LastTokenPooler(),
    WeightedMeanPooler(),
    MaskTokenPooler(),
    MeanSqrtLengthPooler(),
    ConcatPooler([MaxPooler(), LastTwoPooler()]),
)
NAMES = [
    *("mean", "cls", "last-two", "first-embeddings", "first-block", "max", "last", "weighted", "mask"),
    *("sqrt", "concat"),
]
MASK_ID = 7
MASK = [[True, True, True, False], [True, True, False, False]]
# The toy of the specification sheet (vectors.json, "pooling"), by layer number.
TOY = {
    0: [[[0, 1], [2, 3], [4, 5], [99, 99]], [[1, -1], [3, 1], [49, 49], [49, 49]]],
    1: [[[2, 4], [6, 8], [10, 12], [200, 200]], [[4, 0], [8, 4], [100, 100], [100, 100]]],
    -2: [[[2, 3], [4, 5], [6, 7], [101, 101]], [[3, 1], [5, 3], [51, 51], [51, 51]]],
    -1: [[[1, 2], [3, 4], [5, 6], [100, 100]], [[2, 0], [4, 2], [50, 50], [50, 50]]],
}
EXPECTED = [
    [[3, 4], [3, 1]],
    [[1, 2], [2, 0]],
    [[3.5, 4.5], [3.5, 1.5]],
    [[2.5, 3.5], [2.5, 0.5]],
    [[4.5, 6], [4.5, 1.5]],
    [[5, 6], [4, 2]],
    [[5, 6], [4, 2]],
    [[(1 + 2 * 3 + 3 * 5) / 6, (2 + 2 * 4 + 3 * 6) / 6], [(2 + 2 * 4) / 3, (0 + 2 * 2) / 3]],
    [[1, 2], [2, 0]],
    [[3 * 3**0.5, 4 * 3**0.5], [3 * 2**0.5, 1 * 2**0.5]],
    [[5, 6, 3.5, 4.5], [4, 2, 3.5, 1.5]],
]


def hidden_of(layers: dict[int, Tensor], mask: Tensor) -> Hidden:
    """The mask token is each text's first one, and padding may be anything."""
    ids = torch.where(mask.cumsum(dim=1) == 1, MASK_ID, 9).where(mask, torch.tensor(MASK_ID))
    return Hidden(layers, mask, ids, MASK_ID)


def toy(dtype: torch.dtype = torch.float64) -> Hidden:
    return hidden_of({layer: torch.tensor(rows, dtype=dtype) for layer, rows in TOY.items()}, torch.tensor(MASK))


def random_hidden(seed: int, lengths: list[int], dtype: torch.dtype = torch.float64) -> Hidden:
    noise = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths), 3)
    layers = {layer: torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype) for layer in TOY}
    return hidden_of(layers, torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1))


@pytest.mark.parametrize(("pooler", "expected"), list(zip(POOLERS, EXPECTED, strict=True)), ids=NAMES)
def test_s9_and_k14_poolers_on_the_four_layer_toy(pooler: Pooler, expected: list[list[float]]) -> None:
    # Small whole numbers: exact in float64.
    assert pooler(toy()).tolist() == expected


@pytest.mark.parametrize(
    ("pooler", "name"),
    [
        (POOLERS[0], "mean_last"),
        (POOLERS[1], "cls"),
        (POOLERS[2], "mean_last2"),
        (POOLERS[3], "first_last_embeddings_plus_last"),
        (POOLERS[4], "first_last_layer1_plus_last"),
        (POOLERS[5], "max_masked"),
    ],
    ids=NAMES[:6],
)
def test_s9_and_k14_poolers_on_the_vectors(vectors: dict[str, Any], pooler: Pooler, name: str) -> None:
    case = vectors["pooling"]
    names = {0: "0_embeddings", 1: "1", -2: "2", -1: "3_last"}
    layers = {layer: torch.tensor(case["hidden_states"][key]) for layer, key in names.items()}
    assert pooler(Hidden(layers, torch.tensor(case["mask"]).bool())).tolist() == case[name]


@pytest.mark.parametrize("pooler", POOLERS, ids=NAMES)
def test_a_pooler_reads_the_layers_that_it_names(pooler: Pooler) -> None:
    whole = toy()
    named = replace(whole, layers={layer: whole.layers[layer] for layer in pooler.layers})
    assert torch.equal(pooler(named), pooler(whole))
    for layer in pooler.layers:
        changed = replace(whole, layers={**whole.layers, layer: whole.layers[layer] + 1})
        assert not torch.equal(pooler(changed), pooler(whole))


@pytest.mark.parametrize("pooler", POOLERS, ids=NAMES)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    fill=st.sampled_from([0.0, -1e9, 1e9, float("inf"), float("nan")]),
    more=st.integers(0, 3),
)
def test_padding_never_changes_the_result(
    pooler: Pooler, seed: int, lengths: list[int], fill: float, more: int
) -> None:
    hidden = random_hidden(seed, lengths)
    expected = pooler(hidden)

    def padded(rows: Tensor) -> Tensor:
        filled = rows.masked_fill(~hidden.mask.unsqueeze(-1), fill)
        return torch.cat([filled, torch.full((len(rows), more, 3), fill, dtype=rows.dtype)], dim=1)

    longer = hidden_of(
        {layer: padded(rows) for layer, rows in hidden.layers.items()},
        torch.cat([hidden.mask, torch.zeros(len(lengths), more, dtype=torch.bool)], dim=1),
    )
    # A longer sum may be blocked otherwise: float64 rounding of at most four values near 1.
    torch.testing.assert_close(pooler(longer), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("pooler", [each for each in POOLERS if not isinstance(each, WeightedMeanPooler)])
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_padding_on_the_left_gives_the_same(pooler: Pooler, seed: int, lengths: list[int]) -> None:
    hidden = random_hidden(seed, lengths)

    def left(rows: Tensor) -> Tensor:
        return torch.stack([row.roll(max(lengths) - n, dims=0) for row, n in zip(rows, lengths, strict=True)])

    moved = hidden_of({layer: left(rows) for layer, rows in hidden.layers.items()}, left(hidden.mask))
    # As above.
    torch.testing.assert_close(pooler(moved), pooler(hidden), rtol=0, atol=1e-14)


@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_mean_equals_the_loop(seed: int, lengths: list[int]) -> None:
    hidden = random_hidden(seed, lengths)
    means = masked_mean(hidden.layers[-1], hidden.mask).tolist()
    for i, tokens in enumerate(hidden.layers[-1].tolist()):
        # Sums of at most four values in float64.
        assert means[i] == pytest.approx(reference.masked_mean(tokens, hidden.mask[i].tolist()), abs=1e-14)


def test_the_mean_of_no_token_is_zero() -> None:
    assert masked_mean(torch.ones(1, 2, 3), torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("pooler", POOLERS, ids=NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_layers_are_pooled_in_float32(pooler: Pooler, dtype: torch.dtype) -> None:
    halves = random_hidden(0, [4, 2, 1], dtype=dtype)
    singles = replace(halves, layers={layer: rows.float() for layer, rows in halves.layers.items()})
    pooled = pooler(halves)
    assert pooled.dtype == torch.float32
    # No step in half precision: bit for bit what the same numbers give as float32.
    assert torch.equal(pooled, pooler(singles))


@pytest.mark.parametrize("pooler", POOLERS, ids=NAMES)
def test_a_pooler_leaves_its_input(pooler: Pooler) -> None:
    hidden, before = toy(), toy()
    pooler(hidden)
    assert torch.equal(hidden.mask, before.mask)
    assert all(torch.equal(rows, before.layers[layer]) for layer, rows in hidden.layers.items())


@pytest.mark.parametrize(("second", "count"), [((9, 9), 0), ((MASK_ID, MASK_ID), 2)])
def test_a_row_without_its_one_mask_token_is_refused_by_its_number(second: tuple[int, int], count: int) -> None:
    hidden = replace(toy(), ids=torch.tensor([[MASK_ID, 9, 9, 9], [*second, 9, 9]]))
    with pytest.raises(
        ValueError, match=f"text 1: expected exactly one mask token .* got {count}; put a template"
    ):
        MaskTokenPooler()(hidden)


@pytest.mark.parametrize("name", ["ids", "mask_id"])
def test_an_encoder_that_says_no_ids_is_refused_by_what_reads_them(name: str) -> None:
    with pytest.raises(ValueError, match=r"MaskTokenPooler: expected an encoder that gives Hidden\.ids"):
        MaskTokenPooler()(replace(toy(), **{name: None}))


def test_first_is_named_and_an_unknown_name_refused() -> None:
    with pytest.raises(ValueError, match=r"FirstLastPooler\.first: expected embeddings or block_1, got 'first'"):
        FirstLastPooler("first")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError):
        FirstLastPooler()  # type: ignore[call-arg]  # no default, on purpose


@pytest.mark.parametrize("poolers", [[], [MeanPooler()], [MeanPooler(), MaskTokenPooler(template_bias=True)]])
def test_poolers_that_can_not_be_put_side_by_side_are_refused(poolers: list[Pooler]) -> None:
    with pytest.raises(ValueError, match=r"ConcatPooler\.poolers: expected two poolers or more without"):
        ConcatPooler(poolers)
