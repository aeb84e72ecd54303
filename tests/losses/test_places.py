"""Columns that are hidden from a row: as places, tile by tile, and as a mask."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.losses import Forbid
from contrastive_text.losses.relations import HIDDEN_ID
from contrastive_text.losses.tiles import Places, Tiling


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    size=st.integers(1, 5),
    places=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20),
)
def test_places_of_all_tiles_are_the_places(
    rows: int, columns: int, size: int, places: list[tuple[int, int]]
) -> None:
    inside = [(row, column) for row, column in places if row < rows and column < columns]
    pairs = torch.tensor(inside, dtype=torch.long).reshape(-1, 2)
    shape = (rows, columns)
    ordered = Places.sort(pairs[:, 0], pairs[:, 1], size, shape)
    tiling = Tiling.of(shape, size, target=torch.zeros(rows, dtype=torch.long))
    found = []
    for down in tiling.down:
        for across in tiling.across:
            row, column = ordered.within(down, across)
            assert ((row >= 0) & (row < down.stop - down.start)).all()
            assert ((column >= 0) & (column < across.stop - across.start)).all()
            found += list(zip((row + down.start).tolist(), (column + across.start).tolist(), strict=True))
    assert sorted(found) == sorted(inside)


@given(seed=st.integers(0, 2**31), ids=st.integers(1, 12), rows=st.integers(0, 8), columns=st.integers(1, 9))
def test_places_are_those_of_the_mask(seed: int, ids: int, rows: int, columns: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    forbid = Forbid(
        torch.randint(ids, (rows, 2), generator=noise), torch.randint(ids, (columns,), generator=noise)
    )
    target = torch.randint(columns, (rows,), generator=noise)
    places = forbid.places(target, most=1000)
    assert places is not None
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    mask[places] = True
    assert torch.equal(mask, forbid.mask(target))
    assert (forbid.places(target, most=0) is None) == bool((forbid.rows.unsqueeze(2) == forbid.columns).any())


@pytest.mark.parametrize("ids", [700, 1])
def test_large_dense_matrices_hide_the_same_columns_as_small_ones(ids: int) -> None:
    noise = torch.Generator().manual_seed(8)
    texts = torch.randint(ids, (300,), generator=noise)
    forbid, target = Forbid(torch.stack([texts, texts.roll(150)], dim=1), texts), torch.arange(300).roll(150)
    hidden = forbid.hide(torch.zeros(300, 300), target)
    assert torch.equal(hidden == -torch.inf, forbid.mask(target))


def test_a_hidden_column_is_seen_by_the_row_whose_target_it_is() -> None:
    columns, target = torch.tensor([HIDDEN_ID, HIDDEN_ID, 5]), torch.tensor([0, 1])
    forbid = Forbid(torch.tensor([[1], [2]]), columns, hides=True)
    places = forbid.places(target, most=100)
    assert places is not None
    marked = torch.zeros(2, 3, dtype=torch.bool).index_put_(places, torch.tensor(True))
    assert torch.equal(marked, forbid.mask(target))
    assert marked.tolist() == [[False, True, False], [True, False, False]]
