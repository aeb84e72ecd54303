"""The records: aligned lists, vectors by role."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot, Tokens

SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))


@pytest.mark.parametrize("name", ["words", "positions", "labels"])
def test_lists_that_are_not_aligned_are_refused(name: str) -> None:
    lists = {"ids": (1, 2), "words": (0, 1), name: (0, 1, 2)}
    with pytest.raises(
        ValueError, match=rf"Tokens.{name}: expected one value per token \(2\), got 3; use tokens.take"
    ):
        Tokens(**lists)


@given(order=st.lists(st.integers(0, 3), max_size=6))
def test_take_moves_every_list_alike(order: list[int]) -> None:
    tokens = Tokens(ids=(10, 11, 12, 13), words=(0, 1, 2, 3), positions=(4, 5, 6, 7), labels=(8, 9, 10, 11))
    taken = tokens.take(order)
    assert len(taken) == len(order)
    assert taken.ids == tuple(10 + i for i in order)
    assert taken.words == tuple(order)
    assert taken.positions == tuple(4 + i for i in order)
    assert taken.labels == tuple(8 + i for i in order)


@given(start=st.integers(-4, 6), stop=st.integers(-4, 6), step=st.sampled_from([1, 2, -1]))
def test_take_gives_for_a_range_what_it_gives_for_its_places(start: int, stop: int, step: int) -> None:
    tokens = Tokens(ids=(7, 8, 9, 10), words=(0, 0, 1, 2), positions=(3, 2, 1, 0), labels=(5, -100, 6, -100))
    order = range(start, stop, step)
    if any(not -4 <= place < 4 for place in order):
        with pytest.raises(IndexError):
            tokens.take(order)
    else:
        assert tokens.take(order) == tokens.take(list(order))


def test_vectors_and_ids_of_a_role_are_grouped_by_example() -> None:
    encoded = Encoded(torch.arange(12.0).reshape(6, 2), SLOTS, text_ids=torch.arange(6))
    assert encoded.role("anchor").tolist() == [[[0, 1]], [[2, 3]]]
    assert encoded.role("positive").tolist() == [[[4, 5], [8, 9]], [[6, 7], [10, 11]]]
    assert encoded.role_ids("positive").tolist() == [[2, 4], [3, 5]]
    assert encoded.role("negative").shape == (2, 0, 2)
