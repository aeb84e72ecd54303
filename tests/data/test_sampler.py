"""The order of an epoch: every row once at most, the same global batches however many ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.data import EpochBatchSampler, KeyedRow, KeyedRows

Batches = list[list[tuple[int, int]]]


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Ranks, a batch size with a row for each, and rows for a batch or more."""
    world = draw(st.integers(1, 4))
    batch_size = draw(st.integers(world, 9))
    return world, batch_size, draw(st.integers(batch_size, 40))


def epoch(
    size: int, batch_size: int, rank: int = 0, world_size: int = 1, number: int = 0, **options: bool
) -> Batches:
    sampler = EpochBatchSampler(
        size=size, batch_size=batch_size, seed=7, rank=rank, world_size=world_size, **options
    )
    sampler.set_epoch(number)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches


@given(case=sizes(), number=st.integers(0, 5), shuffle=st.booleans())
def test_ranks_share_the_batches_of_one_process_and_no_row_comes_twice(
    case: tuple[int, int, int], number: int, shuffle: bool
) -> None:
    world, batch_size, size = case
    alone = epoch(size, batch_size, number=number, shuffle=shuffle)
    parts = [
        epoch(size, batch_size, rank=r, world_size=world, number=number, shuffle=shuffle) for r in range(world)
    ]
    assert [[key for part in step for key in part] for step in zip(*parts, strict=True)] == alone
    for step in zip(*parts, strict=True):
        lengths = [len(part) for part in step]
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) >= 1
    rows = [key for batch in alone for key in batch]
    assert len(set(rows)) == len(rows) == size // batch_size * batch_size
    assert all(e == number and 0 <= index < size for e, index in rows)


@given(case=sizes())
def test_every_row_comes_when_the_last_batch_is_kept(case: tuple[int, int, int]) -> None:
    world, batch_size, size = case
    parts = [
        epoch(size, batch_size, rank=r, world_size=world, shuffle=False, drop_last=False) for r in range(world)
    ]
    rows = sorted(index for part in parts for batch in part for _, index in batch)
    assert rows == list(range(size))
    assert all(batch for part in parts for batch in part)


def test_epochs_have_orders_of_their_own_that_come_again() -> None:
    first, second = epoch(40, 4, number=0), epoch(40, 4, number=1)
    assert [[i for _, i in batch] for batch in first] != [[i for _, i in batch] for batch in second]
    assert epoch(40, 4, number=1) == second
    assert {i for batch in first for _, i in batch} == {i for batch in second for _, i in batch}


def test_the_order_depends_on_the_seed_and_not_on_the_batch_size() -> None:
    other = list(EpochBatchSampler(size=40, batch_size=4, seed=8))
    assert other != epoch(40, 4)
    flat = [[key for batch in epoch(40, size) for key in batch] for size in (4, 10)]
    assert flat[0] == flat[1]


def test_the_order_of_the_file_is_kept_without_shuffling() -> None:
    assert epoch(6, 2, shuffle=False) == [[(0, 0), (0, 1)], [(0, 2), (0, 3)], [(0, 4), (0, 5)]]


def test_lightning_finds_the_sampler_that_takes_the_epoch() -> None:
    sampler = EpochBatchSampler(size=8, batch_size=2, seed=0)
    sampler.sampler.set_epoch(3)
    assert {e for batch in sampler for e, _ in batch} == {3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 9, "batch_size": 2, "world_size": 3}, "batch_size: expected a row for each of 3 ranks"),
        ({"size": 9, "batch_size": 0}, "batch_size: expected a row for each of 1 ranks or more, got 0"),
        ({"size": 3, "batch_size": 4}, "batch_size: expected at most the number of rows, 3, got 4"),
        (
            {"size": 9, "batch_size": 4, "world_size": 2, "drop_last": False},
            "drop_last: expected a last batch with a row for each of 2 ranks, got 1 rows",
        ),
    ],
)
def test_sizes_that_cannot_be_served_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EpochBatchSampler(seed=0, **options)


def test_rows_come_with_the_key_they_were_asked_for_by() -> None:
    rows = KeyedRows([{"text": "a"}, {"text": "b"}])
    assert len(rows) == 2
    assert rows[(5, 1)] == KeyedRow(epoch=5, number=1, row={"text": "b"})
