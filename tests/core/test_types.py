"""The records: aligned lists, roles and slots, parts of a batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.types import Batch, Encoded, Role, Slot, Tokens

SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))


def batch(lengths: list[int], extras: bool = True) -> Batch:
    """A batch whose token ids tell row and place: 100 * row + place."""
    ids = torch.tensor([100 * row + i for row, n in enumerate(lengths) for i in range(n)], dtype=torch.long)
    return Batch(
        ids=ids,
        lengths=torch.tensor(lengths),
        slots=SLOTS,
        row_slots=torch.arange(len(SLOTS)).repeat_interleave(len(lengths) // len(SLOTS)),
        draw_keys=torch.arange(len(lengths)) + 1000,
        text_ids=torch.arange(len(lengths)) + 2000,
        seed=5,
        positions=ids + 1 if extras else None,
        labels=ids + 2 if extras else None,
        target=torch.arange(len(lengths) // len(SLOTS)) if extras else None,
    )


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


@given(lengths=st.lists(st.integers(0, 4), min_size=6, max_size=6), rows=st.lists(st.integers(0, 5), max_size=7))
def test_a_split_carries_every_list_of_its_rows(lengths: list[int], rows: list[int]) -> None:
    whole = batch(lengths)
    part = whole.split(torch.tensor(rows, dtype=torch.long))
    assert len(part) == len(rows)
    assert part.ids.tolist() == [100 * row + i for row in rows for i in range(lengths[row])]
    assert part.lengths.tolist() == [lengths[row] for row in rows]
    assert part.row_slots.tolist() == [row // 2 for row in rows]
    assert part.draw_keys.tolist() == [1000 + row for row in rows]
    assert part.text_ids.tolist() == [2000 + row for row in rows]
    assert part.positions is not None
    assert part.labels is not None
    assert torch.equal(part.positions, part.ids + 1)
    assert torch.equal(part.labels, part.ids + 2)
    for role in ("anchor", "positive"):
        wanted = {"anchor": (0, 1), "positive": (2, 3, 4, 5)}[role]
        assert sorted(part.by_role(role).tolist()) == [i for i, row in enumerate(rows) if row in wanted]


@pytest.mark.parametrize(
    ("role", "rows"), [("anchor", [0, 1]), ("positive", [2, 3, 4, 5]), ("negative", []), ("original", [])]
)
def test_rows_of_a_role_come_slot_by_slot(role: Role, rows: list[int]) -> None:
    assert batch([1] * 6).by_role(role).tolist() == rows


def test_moving_a_batch_moves_every_tensor_and_keeps_the_rest() -> None:
    moved = batch([1, 2, 3, 4, 5, 6]).to("meta")
    for name, value in vars(moved).items():
        if isinstance(value, torch.Tensor):
            assert value.device.type == "meta", name
    assert (moved.slots, moved.seed) == (SLOTS, 5)
    bare = batch([1] * 6, extras=False).to("meta")
    assert (bare.positions, bare.labels, bare.target) == (None, None, None)


def test_vectors_and_ids_of_a_role_are_grouped_by_example() -> None:
    encoded = Encoded(torch.arange(12.0).reshape(6, 2), SLOTS, text_ids=torch.arange(6))
    assert encoded.role("anchor").tolist() == [[[0, 1]], [[2, 3]]]
    assert encoded.role("positive").tolist() == [[[4, 5], [8, 9]], [[6, 7], [10, 11]]]
    assert encoded.role_ids("positive").tolist() == [[2, 4], [3, 5]]
    assert encoded.role("negative").shape == (2, 0, 2)


def test_records_cannot_be_changed_in_place() -> None:
    tokens = Tokens(ids=(1,), words=(0,))
    with pytest.raises(AttributeError):
        tokens.ids = (2,)  # type: ignore[misc]  # the point of the test
    assert replace(tokens, ids=(2,)).ids == (2,)
