"""Every view: repeatable, nothing at rate 0, a valid text at rate 1, aligned lists, untouched inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.random import RowRandom, generator
from contrastive_text.core.types import NO_LABEL, Tokens
from contrastive_text.views import DeleteTokens, EmbeddingView, FeatureCutoff, SwapWords, TextView, TokenView
from contrastive_text.views.reorder import ReorderSpans
from contrastive_text.views.repeat import RepeatTokens
from contrastive_text.views.tokens import CropTokens, DeleteSpans

TEXT_VIEWS: tuple[Callable[[float], TextView], ...] = (SwapWords,)
TOKEN_VIEWS: tuple[Callable[[float], TokenView], ...] = (
    DeleteTokens,
    partial(DeleteTokens, exact=False, unit="word"),
    lambda rate: DeleteSpans(rate=rate, mark=None),
    lambda rate: ReorderSpans(rate=rate),
    CropTokens,
    RepeatTokens,
    partial(RepeatTokens, unit="word"),
)
EMBEDDING_VIEWS: tuple[Callable[[float], EmbeddingView], ...] = (FeatureCutoff,)
RATES = st.floats(0, 1)
SEEDS = st.integers(0, 2**31)
SENTENCES = st.lists(st.text("abcdé", min_size=1, max_size=3), min_size=1, max_size=8).map(" ".join)


@st.composite
def token_lists(draw: st.DrawFn) -> Tokens:
    """Tokens whose four lists tell each token's first place, so that a misalignment shows."""
    n = draw(st.integers(1, 12))
    return Tokens(
        ids=tuple(range(100, 100 + n)),
        words=tuple(range(n)),
        positions=tuple(range(n)) if draw(st.booleans()) else None,
        labels=tuple(NO_LABEL if i % 2 else i for i in range(n)) if draw(st.booleans()) else None,
    )


@pytest.mark.parametrize("make", TEXT_VIEWS)
@given(text=SENTENCES, rate=RATES, seed=SEEDS)
def test_a_text_view_repeats_itself_with_the_same_generator(
    make: Callable[[float], TextView], text: str, rate: float, seed: int
) -> None:
    assert make(rate)(text, generator(seed)) == make(rate)(text, generator(seed))


@pytest.mark.parametrize("make", TEXT_VIEWS)
@given(text=st.text("ab é\t\n", max_size=20), seed=SEEDS)
def test_a_text_view_at_rate_zero_changes_nothing(
    make: Callable[[float], TextView], text: str, seed: int
) -> None:
    assert make(0.0)(text, generator(seed)) == text


@pytest.mark.parametrize("make", TEXT_VIEWS)
@given(text=SENTENCES, seed=SEEDS)
def test_a_text_view_at_rate_one_leaves_a_text(make: Callable[[float], TextView], text: str, seed: int) -> None:
    assert make(1.0)(text, generator(seed)).strip()


@pytest.mark.parametrize("make", TEXT_VIEWS)
@pytest.mark.parametrize("text", ["", " ", "word"])
def test_a_text_view_takes_a_text_of_no_or_one_word(make: Callable[[float], TextView], text: str) -> None:
    assert make(1.0)(text, generator(0)) == text


@given(text=SENTENCES, rate=RATES, seed=SEEDS)
def test_swap_words_keeps_every_word_and_moves_each_left_by_at_most_one(
    text: str, rate: float, seed: int
) -> None:
    swapped = SwapWords(rate)(text, generator(seed)).split()
    assert Counter(swapped) == Counter(text.split())
    words = [f"{i}" for i in range(len(text.split()))]
    moved = SwapWords(rate)(" ".join(words), generator(seed)).split()
    # A swap carries one word to the right and lets those it passes step one to the left.
    assert all(int(word) - place <= 1 for place, word in enumerate(moved))


def test_swap_words_swaps_at_its_rate() -> None:
    text = " ".join(str(i) for i in range(10_001))
    moved = SwapWords(0.3)(text, generator(5)).split()
    left = sum(int(word) == place + 1 for place, word in enumerate(moved))
    # A word steps left for each swap: 3,000 of 10,000, standard deviation 46; five of them.
    assert abs(left - 3000) < 5 * 46


@pytest.mark.parametrize("make", TOKEN_VIEWS)
@given(tokens=token_lists(), rate=RATES, seed=SEEDS)
def test_a_token_view_repeats_itself_and_leaves_its_input(
    make: Callable[[float], TokenView], tokens: Tokens, rate: float, seed: int
) -> None:
    before = deepcopy(tokens)
    first = make(rate)(tokens, generator(seed))
    assert make(rate)(tokens, generator(seed)) == first
    assert tokens == before


@pytest.mark.parametrize("make", TOKEN_VIEWS)
@given(tokens=token_lists(), seed=SEEDS)
def test_a_token_view_at_rate_zero_changes_nothing(
    make: Callable[[float], TokenView], tokens: Tokens, seed: int
) -> None:
    assert make(0.0)(tokens, generator(seed)) == tokens


@pytest.mark.parametrize("make", TOKEN_VIEWS)
@given(tokens=token_lists(), rate=st.sampled_from([0.5, 1.0]), seed=SEEDS)
def test_a_token_view_leaves_a_token_and_aligned_lists(
    make: Callable[[float], TokenView], tokens: Tokens, rate: float, seed: int
) -> None:
    view = make(rate)(tokens, generator(seed))
    assert len(view) >= 1
    places = [i - 100 for i in view.ids]
    assert view == tokens.take(places)


@pytest.mark.parametrize("make", TOKEN_VIEWS)
def test_a_token_view_takes_an_empty_text(make: Callable[[float], TokenView]) -> None:
    assert len(make(1.0)(Tokens(ids=(), words=()), generator(0))) == 0


@given(tokens=token_lists(), rate=RATES, seed=SEEDS)
def test_delete_tokens_removes_an_exact_share_and_keeps_the_order(tokens: Tokens, rate: float, seed: int) -> None:
    view = DeleteTokens(rate)(tokens, generator(seed))
    assert len(view) == max(len(tokens) - round(rate * len(tokens)), 1)
    assert list(view.ids) == sorted(view.ids)


def test_delete_tokens_deletes_every_place_equally_often() -> None:
    tokens, rng = Tokens(ids=tuple(range(5)), words=tuple(range(5))), np.random.default_rng(0)
    kept = Counter(i for _ in range(2000) for i in DeleteTokens(0.4)(tokens, rng).ids)
    # Each of five places is kept in 3/5 of 2,000 draws: 1,200, standard deviation 22; five of them.
    assert all(abs(kept[i] - 1200) < 5 * 22 for i in range(5))


def embeddings(
    n: int = 3, length: int = 4, features: int = 10
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    values = torch.randn(n, length, features, generator=noise) + 5  # no zero of its own
    return values, torch.arange(length) < torch.arange(2, 2 + n).unsqueeze(1), torch.arange(n)


@pytest.mark.parametrize("make", EMBEDDING_VIEWS)
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_an_embedding_view_repeats_itself_and_leaves_its_inputs(
    make: Callable[[float], EmbeddingView], rate: float
) -> None:
    values, mask, keys = embeddings()
    before = values.clone(), mask.clone(), keys.clone()
    first = make(rate)(values, mask, RowRandom(keys))
    assert torch.equal(make(rate)(values, mask, RowRandom(keys)), first)
    assert not torch.equal(first, values)
    # K6: nothing but the embeddings changes, and those not in place.
    assert all(torch.equal(now, then) for now, then in zip((values, mask, keys), before, strict=True))


@pytest.mark.parametrize("make", EMBEDDING_VIEWS)
def test_an_embedding_view_at_rate_zero_changes_nothing(make: Callable[[float], EmbeddingView]) -> None:
    values, mask, keys = embeddings()
    assert torch.equal(make(0.0)(values, mask, RowRandom(keys)), values)


@pytest.mark.parametrize("make", EMBEDDING_VIEWS)
def test_an_embedding_view_does_not_depend_on_other_rows_or_padding(
    make: Callable[[float], EmbeddingView],
) -> None:
    values, mask, keys = embeddings()
    whole = make(0.4)(values, mask, RowRandom(keys))
    for i in range(len(values)):
        n = int(mask[i].sum())
        alone = make(0.4)(values[i : i + 1, :n], mask[i : i + 1, :n], RowRandom(keys[i : i + 1]))
        assert torch.equal(alone[0], whole[i, :n])


@pytest.mark.parametrize(("features", "expected"), [(768, 153), (1024, 204)])
def test_k1_feature_cutoff_zeroes_an_exact_number_of_columns_different_in_each_text(
    features: int, expected: int
) -> None:
    values, mask = torch.ones(8, 5, features), torch.ones(8, 5, dtype=torch.bool)
    mask[:, 3:] = False
    cut = FeatureCutoff(rate=0.2)(values, mask, RowRandom(torch.arange(8))) == 0
    # The same columns in every token of a text, padding too.
    assert torch.equal(cut, cut[:, :1].expand_as(cut))
    columns = cut[:, 0]
    assert columns.sum(dim=1).tolist() == [expected] * 8
    assert len({tuple(row.tolist()) for row in columns}) == 8


def test_k1_what_feature_cutoff_leaves_is_not_rescaled() -> None:
    values, mask, keys = embeddings()
    view = FeatureCutoff(rate=0.5)(values, mask, RowRandom(keys))
    assert torch.equal(view[view != 0], values[view != 0])


def test_feature_cutoff_lets_the_gradient_through_what_is_left_only() -> None:
    values, mask, keys = embeddings()
    values.requires_grad_()
    view = FeatureCutoff(rate=0.5)(values, mask, RowRandom(keys))
    view.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, (view != 0).float())


@pytest.mark.parametrize("make", [*TEXT_VIEWS, *TOKEN_VIEWS, *EMBEDDING_VIEWS])
@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_that_is_no_share_is_refused(make: Callable[[float], object], rate: float) -> None:
    with pytest.raises(ValueError, match=rf"\w+\.rate: expected a share between 0 and 1, got {rate}"):
        make(rate)
