"""A batch: parts of it, roles, devices."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Slot

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
        types=ids + 3 if extras else None,
        labels=ids + 2 if extras else None,
        target=torch.arange(len(lengths) // len(SLOTS)) if extras else None,
    )


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
    assert part.types is not None
    assert torch.equal(part.positions, part.ids + 1)
    assert torch.equal(part.labels, part.ids + 2)
    assert torch.equal(part.types, part.ids + 3)
    for role in ("anchor", "positive"):
        wanted = {"anchor": (0, 1), "positive": (2, 3, 4, 5)}[role]
        assert sorted(part.by_role(role).tolist()) == [i for i, row in enumerate(rows) if row in wanted]


def test_moving_a_batch_moves_what_a_network_reads_and_leaves_on_the_host_how_rows_lie() -> None:
    whole = batch([1, 2, 3, 4, 5, 6])
    moved = whole.to("meta")
    for name, value in vars(moved).items():
        if isinstance(value, torch.Tensor):
            stays = name in ("lengths", "row_slots", "labels")
            assert value.device.type == ("cpu" if stays else "meta"), name
    assert (moved.slots, moved.seed) == (SLOTS, 5)
    rows = torch.tensor([4, 1])
    assert torch.equal(moved.split(rows).host_ids.ids, whole.split(rows).ids)
    assert torch.equal(moved.to("meta").host_ids.text_ids, whole.text_ids)
    assert whole.host_ids.ids is whole.ids
    others = moved.ids + 1
    assert moved.replace(ids=others).host_ids.ids is others  # the host doesn't know these
    bare = batch([1] * 6, extras=False).to("meta")
    assert (bare.positions, bare.types, bare.labels, bare.target) == (None,) * 4
