"""Masking: which tokens are chosen, what becomes of them, and what the labels say."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.random import generator
from contrastive_text.core.types import NO_LABEL, Tokens, Vocabulary
from contrastive_text.views.masking import MaskTokens

MASK, DEL = 3, 4
SPECIAL = frozenset({0, 1, 2, MASK, DEL})
VOCABULARY = Vocabulary(size=1000, mask_id=MASK, special_ids=SPECIAL, added={"[DEL]": DEL})
SEEDS = st.integers(0, 2**31)


def built(view: MaskTokens) -> MaskTokens:
    view.build(VOCABULARY)
    return view


@st.composite
def token_lists(draw: st.DrawFn) -> Tokens:
    """Ordinary tokens and marks, in words of one to three pieces, some with labels of an earlier masking."""
    sizes = draw(st.lists(st.integers(1, 3), max_size=6))
    words = tuple(word for word, size in enumerate(sizes) for _ in range(size))
    some_ids = st.sampled_from([100, 101, 102, DEL, MASK])
    some_labels = st.sampled_from([NO_LABEL, 200, 201])
    n = len(words)
    return Tokens(
        ids=tuple(draw(st.lists(some_ids, min_size=n, max_size=n))),
        words=words,
        labels=draw(st.none() | st.lists(some_labels, min_size=n, max_size=n).map(tuple)),
    )


def test_s12_the_shares_of_bert_of_ten_thousand_tokens(vectors: dict[str, Any]) -> None:
    case = vectors["mlm_masking"]
    view, rng = built(MaskTokens()), np.random.default_rng(0)
    tokens = Tokens(ids=tuple(int(i) for i in rng.integers(5, 1000, size=10_000)), words=tuple(range(10_000)))
    masked = view(tokens, rng)
    assert masked.labels is not None
    chosen = [(now, label) for now, label in zip(masked.ids, masked.labels, strict=True) if label != NO_LABEL]
    expected = case["expected_per_10000_eligible"]
    # The vector gives two standard deviations; four are allowed.
    assert abs(len(chosen) - expected["selected"]) < 2 * case["two_sigma_selected"]
    counts = {
        "mask": sum(now == MASK for now, _ in chosen),
        "keep": sum(now == label for now, label in chosen),
    }
    counts["random"] = len(chosen) - sum(counts.values())
    for name, share in case["shares"].items():
        # Of the chosen ones, so binomial given their number. One random token in 995 is the old one: 0.15.
        sigma = (len(chosen) * share * (1 - share)) ** 0.5
        assert abs(counts[name] - share * len(chosen)) < 4 * sigma


@given(tokens=token_lists(), rate=st.sampled_from([0.0, 0.4, 1.0]), whole_word=st.booleans(), seed=SEEDS)
def test_labels_are_the_old_ids_at_changed_places_and_special_tokens_are_left_alone(
    tokens: Tokens, rate: float, whole_word: bool, seed: int
) -> None:
    view = built(MaskTokens(rate, whole_word=whole_word))
    masked = view(tokens, generator(seed))
    assert view(tokens, generator(seed)) == masked
    assert (masked.words, masked.positions) == (tokens.words, tokens.positions)
    earlier = tokens.labels or (NO_LABEL,) * len(tokens)
    assert masked.labels is not None
    for before, now, old, label in zip(tokens.ids, masked.ids, earlier, masked.labels, strict=True):
        assert label in (old, before)
        # An earlier label stays, because an id that was put in is no original.
        assert old in (NO_LABEL, label)
        if before in SPECIAL:
            assert (now, label) == (before, old)
        elif rate == 1.0:
            assert label != NO_LABEL
        if now != before:
            assert label != NO_LABEL
            assert now == MASK or now not in SPECIAL


def test_random_tokens_are_drawn_from_the_whole_vocabulary_without_special_ones() -> None:
    small = Vocabulary(size=8, mask_id=MASK, special_ids=SPECIAL)
    view = MaskTokens(rate=1.0, mask=0.0, random=1.0)
    view.build(small)
    drawn = view(Tokens(ids=(5,) * 3000, words=tuple(range(3000))), generator(0)).ids
    # Three ordinary tokens, 1,000 each, standard deviation 26; five of them.
    assert set(drawn) == {5, 6, 7}
    assert all(abs(drawn.count(i) - 1000) < 5 * 26 for i in (5, 6, 7))


def test_whole_words_are_chosen_at_the_rate_with_all_their_ordinary_tokens() -> None:
    n = 6000
    ids = tuple(DEL if i % 5 == 4 else 100 + i % 7 for i in range(n))
    tokens = Tokens(ids=ids, words=tuple(i // 3 for i in range(n)))
    masked = built(MaskTokens(rate=0.3, whole_word=True))(tokens, generator(0))
    assert masked.labels is not None
    words = [
        {masked.labels[i] != NO_LABEL for i in places if ids[i] != DEL}
        for _, places in groupby(range(n), key=lambda i: tokens.words[i])
    ]
    assert all(len(word) == 1 for word in words)
    # 600 of 2,000 words, standard deviation 20.5; four of them.
    assert abs(sum(True in word for word in words) - 600) < 4 * 20.5
