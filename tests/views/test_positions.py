"""Shuffled positions: a permutation of the real tokens' places, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from architectures import PAIR, encoder_of, ragged
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from contrastive_text.core.random import generator
from contrastive_text.core.types import NO_LABEL, NO_WORD, Tokens
from contrastive_text.views import ShufflePositions

SEEDS = st.integers(0, 2**31)


@st.composite
def rows(draw: st.DrawFn) -> Tokens:
    """A text between special tokens, at times with positions and labels of an earlier view."""
    words = [NO_WORD, *draw(st.lists(st.integers(0, 4), max_size=8)), NO_WORD]
    n = len(words)
    return Tokens(
        ids=tuple(range(50, 50 + n)),
        words=tuple(words),
        positions=tuple(draw(st.permutations(range(n)))) if draw(st.booleans()) else None,
        labels=(NO_LABEL,) * n if draw(st.booleans()) else None,
    )


@pytest.mark.parametrize("specials", [True, False])
@given(tokens=rows(), seed=SEEDS)
def test_k6_shuffling_permutes_positions_and_leaves_ids_words_and_labels(
    specials: bool, tokens: Tokens, seed: int
) -> None:
    before = replace(tokens)
    view = ShufflePositions(specials)(tokens, generator(seed))
    assert view.positions is not None
    assert sorted(view.positions) == list(range(len(tokens)))
    assert replace(view, positions=tokens.positions) == tokens == before
    assert ShufflePositions(specials)(tokens, generator(seed)) == view


@given(tokens=rows(), seed=SEEDS)
def test_without_specials_their_positions_stay(tokens: Tokens, seed: int) -> None:
    view = ShufflePositions(specials=False)(tokens, generator(seed))
    natural = tokens.positions or range(len(tokens))
    assert view.positions is not None
    assert (view.positions[0], view.positions[-1]) == (natural[0], natural[len(tokens) - 1])


def test_k5_a_token_keeps_its_place_once_in_n_the_first_too() -> None:
    tokens, rng = Tokens(ids=(0,) * 5, words=(-1, 0, 1, 2, -1)), np.random.default_rng(0)
    drawn = np.array([ShufflePositions()(tokens, rng).positions for _ in range(4000)])
    kept = (drawn == np.arange(5)).sum(axis=0)
    # Each place with probability 1/5: 800 of 4,000, standard deviation 25; five of them.
    assert (abs(kept - 800) < 5 * 25).all()


@pytest.mark.parametrize(("name", "first"), [("bert", 0), ("roberta", 2)])
@torch.no_grad()
def test_k5_the_network_gets_a_permutation_behind_its_padding_row_and_padding_its_own(
    name: str, first: int, vectors: dict[str, Any]
) -> None:
    vector = vectors["position_shuffle"]
    n, longest = vector["input_real_tokens"], vector["padded_to"]
    assert {"bert": 0, "roberta": vector["roberta_correct_positions_start"]}[name] == first
    texts = [Tokens(ids=tuple(range(5, 5 + size)), words=tuple(range(size))) for size in (n, longest)]
    views = [ShufflePositions()(text, generator(7)) for text in texts]
    batch = ragged(*(view.ids for view in views), slots=PAIR[:1])
    batch = batch.replace(positions=torch.tensor([place for view in views for place in view.positions or ()]))
    encoder = encoder_of(name, layout="padded")
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, options: dict[str, Tensor]) -> None:  # noqa: ARG001  # the base's signature
        seen.extend((options["position_ids"], options["input_ids"]))

    with encoder.model.register_forward_pre_hook(keep, with_kwargs=True):
        encoder(batch)
    positions, ids = (each.tolist() for each in seen)
    assert positions[0][:n] != list(range(first, first + n))
    assert sorted(positions[0][:n]) == list(range(first, first + n))
    assert positions[0][n:] == list(range(first + n, first + longest))
    assert sorted(positions[1]) == list(range(first, first + longest))
    assert [tuple(row[:size]) for row, size in zip(ids, (n, longest), strict=True)] == [
        text.ids for text in texts
    ]
