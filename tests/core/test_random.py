"""Keyed randomness: the same key draws the same, whatever surrounds it, and draws look random."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.random import RowRandom, fold_key, fold_keys, generator, text_id

KEYS = st.integers(-(2**63), 2**63 - 1)
WORD = 1 << 64


def split_mix(value: int) -> int:
    """One output of SplitMix64 from the state ``value`` (Steele, Lea, Flood 2014, figure 17), unsigned."""
    z = (value + 0x9E3779B97F4A7C15) & (WORD - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (WORD - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (WORD - 1)
    return z ^ (z >> 31)


def finalize(z: int) -> int:
    """The finalizer of SplitMix64 alone, without the step of the state."""
    return split_mix((z - 0x9E3779B97F4A7C15) % WORD)


def masks(rows: int, places: int) -> st.SearchStrategy[torch.Tensor]:
    row = st.lists(st.booleans(), min_size=places, max_size=places)
    return st.lists(row, min_size=rows, max_size=rows).map(lambda values: torch.tensor(values, dtype=torch.bool))


@pytest.mark.parametrize(
    ("seed", "expected"), [(1234567, 6457827717110365317), (0, 16294208416658607535)], ids=["1234567", "0"]
)
def test_fold_of_one_number_is_the_published_first_output_of_splitmix64(seed: int, expected: int) -> None:
    # The reference program's outputs, as many implementations test them (Rosetta Code; xoshiro's authors).
    assert fold_key(seed) % WORD == expected


@given(parts=st.lists(KEYS, min_size=1, max_size=4))
def test_fold_equals_the_reference_and_is_a_signed_word(parts: list[int]) -> None:
    state = 0
    for part in parts:
        state = split_mix((state + part) % WORD)
    assert fold_key(*parts) % WORD == state
    assert -(1 << 63) <= fold_key(*parts) < 1 << 63


@given(keys=st.lists(KEYS, min_size=1, max_size=3), view=st.integers(0, 5))
def test_draws_on_tensors_equal_the_hash_on_integers(keys: list[int], view: int) -> None:
    rng = RowRandom(torch.tensor(keys), view=view)
    rng.rand(1)
    drawn = rng.rand(3, 2)
    assert drawn.dtype == torch.float32
    for i, key in enumerate(keys):
        row = finalize((key + fold_key(view, 2)) % WORD)
        for token in range(3):
            place = split_mix((row + token * 0x9E3779B97F4A7C15) % WORD)
            for feature in range(2):
                bits = split_mix((place + feature * 0x9E3779B97F4A7C15) % WORD)
                assert float(drawn[i, token, feature]) == (bits >> 40) / (1 << 24)


def test_text_id_is_a_fixed_hash_that_no_process_salts_and_differs_between_texts() -> None:
    # BLAKE2b of the UTF-8 bytes with a digest of 8, little-endian and signed, as b2sum -l 64 prints it.
    assert text_id("snow") == 3035364646875669206
    assert len({text_id(text) for text in ("snow", "Snow", "snow ", "")}) == 4


@given(key=KEYS, before=KEYS)
def test_generator_draws_what_numpys_philox_of_the_key_draws(key: int, before: int) -> None:
    generator(before).integers(7, size=3, dtype="uint32")  # leaves half a word and part of a block after
    own, theirs = generator(key), np.random.Generator(np.random.Philox(key=key % WORD))
    for _ in range(2):
        assert own.integers(30522, size=5).tolist() == theirs.integers(30522, size=5).tolist()
        assert own.random(3).tolist() == theirs.random(3).tolist()
        assert own.permutation(9).tolist() == theirs.permutation(9).tolist()
        assert own.binomial(9, 0.3) == theirs.binomial(9, 0.3)


def test_a_generator_that_nobody_holds_is_used_again() -> None:
    first = id(generator(1))
    assert {id(generator(key)) for key in range(9)} == {first}


@pytest.mark.parametrize(
    "hold",
    [
        lambda rng: rng,
        lambda rng: rng.bit_generator,
        lambda rng: rng.random,
        lambda rng: partial(rng.integers, 9),
    ],
    ids=["generator", "bits", "method", "partial"],
)
def test_a_generator_that_is_held_in_any_way_keeps_its_own_stream(hold: Callable[[Any], object]) -> None:
    held = hold(generator(5))
    state = str(generator(5).bit_generator.state)
    others = [generator(key).random() for key in range(9)]
    assert len(set(others)) == 9
    own = getattr(held, "bit_generator", getattr(held, "__self__", getattr(held, "func", held)))
    own = getattr(own, "__self__", own)
    assert str(getattr(own, "bit_generator", own).state) == state


def test_generators_of_a_list_are_as_many_and_of_another_thread_others() -> None:
    together = [generator(key) for key in range(5)]
    assert [rng.random() for rng in together] == [generator(key).random() for key in range(5)]
    del together
    here = id(generator(1))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: id(generator(1))).result() != here


def test_a_generator_has_no_children_that_its_key_would_not_determine() -> None:
    with pytest.raises(TypeError, match="spawning"):
        generator(1).spawn(1)


@given(seed=KEYS, keys=st.lists(KEYS, min_size=1, max_size=4), others=st.lists(KEYS, min_size=1, max_size=3))
def test_fold_each_is_fold_of_every_combination(seed: int, keys: list[int], others: list[int]) -> None:
    together = fold_keys(seed, np.array(keys), np.array(others)[:, np.newaxis])
    assert together.tolist() == [[fold_key(seed, key, other) for key in keys] for other in others]


@given(keys=st.lists(KEYS, min_size=2, max_size=6, unique=True), cut=st.integers(1, 5))
def test_chunks_of_rows_draw_what_the_whole_draws(keys: list[int], cut: int) -> None:
    whole, parts = RowRandom(torch.tensor(keys)), [RowRandom(torch.tensor(k)) for k in (keys[:cut], keys[cut:])]
    mask = torch.ones(len(keys), 4, dtype=torch.bool)
    for draw in (
        lambda rng, n: rng.rand(4)[:n],
        lambda rng, n: rng.randn(4, 2)[:n],
        lambda rng, n: rng.permutation(mask[:n]),
        lambda rng, n: rng.choose(mask[:n], torch.full((n,), 2)),
    ):
        chunked = [draw(rng, len(rng.keys)) for rng in parts if len(rng.keys)]
        assert torch.equal(torch.cat(chunked), draw(whole, len(keys)))


class Coarse(RowRandom):
    """Draws of three values only: most places tie."""

    def rand(self, *shape: int) -> torch.Tensor:
        return (super().rand(*shape) * 3).floor() / 3


@given(key=KEYS, eligible=masks(rows=3, places=9), wanted=st.lists(st.integers(0, 10), min_size=3, max_size=3))
def test_choose_takes_the_smallest_draws_and_of_equal_ones_the_first(
    key: int, eligible: torch.Tensor, wanted: list[int]
) -> None:
    keys = torch.tensor([key, key // 2, key // 3])
    for kind in (RowRandom, Coarse):
        drawn = kind(keys).rand(9).tolist()
        chosen = kind(keys).choose(eligible, torch.tensor(wanted))
        for row, draws, fit, count in zip(chosen.tolist(), drawn, eligible.tolist(), wanted, strict=True):
            best = sorted((draw, place) for place, draw in enumerate(draws) if fit[place])[:count]
            assert [place for place in range(9) if row[place]] == sorted(place for _, place in best)


@pytest.mark.parametrize("shape", [(0, 5), (0, 0), (2, 0)])
def test_choose_takes_no_rows_and_no_places(shape: tuple[int, int]) -> None:
    rows = torch.arange(shape[0])
    assert RowRandom(rows).choose(torch.ones(shape, dtype=torch.bool), rows + 1).shape == shape


@given(key=KEYS, mask=masks(rows=3, places=6))
def test_permutation_orders_the_tokens_and_keeps_padding(key: int, mask: torch.Tensor) -> None:
    order = RowRandom(torch.tensor([key, key // 2, key // 3])).permutation(mask)
    for row, real in zip(order.tolist(), mask.tolist(), strict=True):
        assert sorted(row) == list(range(6))
        tokens = [i for i in range(6) if real[i]]
        assert sorted(row[i] for i in tokens) == tokens
        assert all(row[i] == i for i in range(6) if not real[i])


@given(key=KEYS, length=st.integers(1, 5))
def test_permutation_does_not_depend_on_the_padded_length(key: int, length: int) -> None:
    keys = torch.tensor([key])
    tight = RowRandom(keys).permutation(torch.ones(1, length, dtype=torch.bool))
    padded = RowRandom(keys).permutation(torch.arange(8).unsqueeze(0) < length)
    assert torch.equal(padded[:, :length], tight)


ROWS = 20_000


def test_normal_draws_have_mean_zero_and_variance_one() -> None:
    drawn = RowRandom(torch.arange(ROWS)).randn(2).flatten().double()
    n = len(drawn)
    assert torch.isfinite(drawn).all()
    # Five standard deviations of the mean (1/sqrt(n)), the variance (sqrt(2/n)), the fourth moment (sqrt(96/n)).
    assert abs(float(drawn.mean())) < 5 / n**0.5
    assert abs(float(drawn.var()) - 1) < 5 * (2 / n) ** 0.5
    assert abs(float((drawn**4).mean()) - 3) < 5 * (96 / n) ** 0.5


def test_every_place_is_chosen_and_every_order_drawn_equally_often() -> None:
    keys = torch.arange(ROWS)
    mask = torch.ones(ROWS, 3, dtype=torch.bool)
    shares = RowRandom(keys).choose(mask, torch.ones(ROWS, dtype=torch.long)).double().mean(0)
    # Five standard deviations of a share p: sqrt(p (1 - p) / 20,000).
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 3), rtol=0, atol=5 * (2 / 9 / ROWS) ** 0.5)
    orders, counts = RowRandom(keys).permutation(mask).unique(dim=0, return_counts=True)
    assert len(orders) == 6
    shares = counts.double() / ROWS
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 6), rtol=0, atol=5 * (5 / 36 / ROWS) ** 0.5)
