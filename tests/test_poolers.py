"""Poolers: the values of the specification sheet, the loop, and refusals; see also tests/conformance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import parts
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.batch import Hidden
from contrastive_text.poolers import (
    CLSPooler,
    ConcatPooler,
    FirstLastPooler,
    LastTwoPooler,
    MaskTokenPooler,
    MaxPooler,
    MeanPooler,
    Pooler,
    masked_mean,
)

OTHER: Any = "first"
MASK_ID = 7


@pytest.mark.parametrize(
    ("pooler", "name"),
    [
        (MeanPooler(), "mean_last"),
        (CLSPooler(), "cls"),
        (LastTwoPooler(), "mean_last2"),
        (FirstLastPooler("embeddings"), "first_last_embeddings_plus_last"),
        (FirstLastPooler("block_1"), "first_last_layer1_plus_last"),
        (MaxPooler(), "max_masked"),
    ],
)
def test_s9_and_k14_poolers_on_the_vectors(vectors: dict[str, Any], pooler: Pooler, name: str) -> None:
    case = vectors["pooling"]
    names = {0: "0_embeddings", 1: "1", -2: "2", -1: "3_last"}
    layers = {layer: torch.tensor(case["hidden_states"][key]) for layer, key in names.items()}
    assert pooler(Hidden(layers, torch.tensor(case["mask"]).bool())).tolist() == case[name]


def slow_mean(tokens: list[list[float]], mask: list[bool]) -> list[float]:
    """Mean of the token vectors whose mask is set, feature by feature."""
    kept = [token for token, real in zip(tokens, mask, strict=True) if real]
    return [sum(token[d] for token in kept) / len(kept) for d in range(len(tokens[0]))]


@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_the_mean_equals_the_loop(seed: int, lengths: list[int]) -> None:
    noise = torch.Generator().manual_seed(seed)
    tokens = torch.randn(len(lengths), max(lengths), 3, generator=noise, dtype=torch.float64)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    means = masked_mean(tokens, mask).tolist()
    for i, rows in enumerate(tokens.tolist()):
        # Sums of at most four values in float64.
        assert means[i] == pytest.approx(slow_mean(rows, mask[i].tolist()), abs=1e-14)


def test_the_mean_of_no_token_is_zero() -> None:
    assert masked_mean(torch.ones(1, 2, 3), torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0, 0.0]]


def masked(ids: list[list[int]] | None, mask_id: int | None = MASK_ID) -> Hidden:
    """Two texts of two tokens."""
    tokens = None if ids is None else torch.tensor(ids)
    return Hidden({-1: torch.ones(2, 2, 3)}, torch.ones(2, 2, dtype=torch.bool), tokens, mask_id)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: FirstLastPooler(OTHER), ["FirstLastPooler.first", "embeddings or block_1", "'first'"]),
        (lambda: ConcatPooler([]), ["ConcatPooler.poolers", "two or more poolers", "got []"]),
        (lambda: ConcatPooler([MeanPooler()]), ["ConcatPooler.poolers", "got MeanPooler"]),
        (
            lambda: ConcatPooler([MeanPooler(), MaskTokenPooler(template_bias=True)]),
            ["without template_bias", "MaskTokenPooler"],
        ),
        (lambda: MaskTokenPooler()(masked(None)), ["MaskTokenPooler", "Hidden.ids", "no ids"]),
        (lambda: MaskTokenPooler()(masked([[7, 9], [7, 9]], None)), ["Hidden.mask_id", "no mask"]),
        (lambda: MaskTokenPooler()(masked([[7, 9], [9, 9]])), ["text 1", "exactly one mask token", "got 0"]),
        (lambda: MaskTokenPooler()(masked([[7, 9], [7, 7]])), ["text 1", "exactly one mask token", "got 2"]),
    ],
)
def test_what_a_pooler_can_not_use_is_refused(refused: Callable[[], object], words: list[str]) -> None:
    parts.check_refused(refused, ValueError, words)


def test_first_has_no_default() -> None:
    with pytest.raises(TypeError):
        FirstLastPooler()  # type: ignore[call-arg]  # the case
