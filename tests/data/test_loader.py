"""The order of an epoch, the part of each rank, and the settings of a trainer that would change batches."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytorch_lightning as pl
import tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytorch_lightning.callbacks import BatchSizeFinder
from torch.utils.data import DataLoader

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, generator
from contrastive_text.data import KeyedRow, Step, TaskSize, consecutive_steps
from contrastive_text.data import loader as orders
from contrastive_text.data.loader import (
    PERMUTATION_ROWS,
    Bijection,
    EpochBatchSampler,
    EpochOrder,
    KeyedRows,
    ResumableLoader,
    draw_order,
)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Ranks, a batch size with a row for each, and rows for a batch or more."""
    world = draw(st.integers(1, 4))
    batch_size = draw(st.integers(world, 9))
    return world, batch_size, draw(st.integers(batch_size, 40))


def sampler(
    size: int,
    batch_size: int,
    seed: int = 7,
    rank: int = 0,
    world_size: int = 1,
    shuffle: bool = True,
    drop_last: bool = True,
) -> EpochBatchSampler:
    steps = consecutive_steps({"train": TaskSize(size, batch_size)}, drop_last)
    return EpochBatchSampler({"train": size}, steps, seed, shuffle, rank, world_size)


def epoch(
    size: int, batch_size: int, rank: int = 0, world_size: int = 1, number: int = 0, shuffle: bool = True
) -> list[list[KeyedRow]]:
    order = sampler(size, batch_size, 7, rank, world_size, shuffle)
    order.set_epoch(number)
    batches = list(order)
    assert len(batches) == len(order)
    return batches


def numbers(batches: Sequence[Sequence[KeyedRow]]) -> list[list[int]]:
    return [[key.number for key in batch] for batch in batches]


@given(case=sizes(), number=st.integers(0, 5), shuffle=st.booleans(), most=st.sampled_from([0, PERMUTATION_ROWS]))
def test_ranks_share_the_batches_of_one_process_and_no_row_comes_twice(
    case: tuple[int, int, int], number: int, shuffle: bool, most: int
) -> None:
    world, batch_size, size = case
    with tiny.computed_above(most):
        parts, (alone,) = (
            [epoch(size, batch_size, rank, ranks, number=number, shuffle=shuffle) for rank in range(ranks)]
            for ranks in (world, 1)
        )
    steps = list(zip(*parts, strict=True))
    assert [[key[:5] for part in step for key in part] for step in steps] == [
        [key[:5] for key in batch] for batch in alone
    ]
    for step in steps:
        lengths = [len(part) for part in step]
        assert {key.shares for part in step for key in part} == {tuple(lengths)}
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) >= 1
    rows = [key for batch in alone for key in batch]
    assert len({key.number for key in rows}) == len(rows) == size // batch_size * batch_size
    assert all(key.epoch == number and 0 <= key.number < size for key in rows)


@given(case=sizes(), rows=st.integers(1, 12), passes=st.integers(1, 4))
def test_rows_come_again_in_passes_of_their_own_on_any_number_of_ranks(
    case: tuple[int, int, int], rows: int, passes: int
) -> None:
    world, batch_size, _ = case
    steps = consecutive_steps({"train": TaskSize(max(rows * passes, batch_size), batch_size)}, drop_last=True)
    orders = [
        EpochBatchSampler({"train": rows}, steps, seed=7, rank=rank, world_size=world) for rank in range(world)
    ]
    flat = [key.number for step in zip(*orders, strict=True) for part in step for key in part]
    assert len(set(flat)) == len(flat) == len(steps) * batch_size
    for number in range(len(flat) // rows):
        assert sorted(flat[number * rows : (number + 1) * rows]) == list(
            range(number * rows, (number + 1) * rows)
        )
    assert flat[:rows] == [key.number for key in next(iter(sampler(rows, rows)))][: len(flat)]


def test_the_order_of_the_file_is_kept_without_shuffling() -> None:
    assert numbers(epoch(6, 2, shuffle=False)) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("size", [10**6, 10**9])
def test_any_batch_of_many_rows_is_computed_in_little_memory_on_any_number_of_ranks(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", size - 1)
    tracemalloc.start()
    try:
        samplers = [
            sampler(size, 64, rank=rank, world_size=world) for world in (1, 2, 3) for rank in range(world)
        ]
        taken = []
        for order in samplers:
            order.set_epoch(3)
            order.skip = len(order) // 2
            taken.append([[key.number for key in batch] for batch in islice(order, 2)])
            assert order.identity == samplers[0].identity
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    alone, first, second, *three = taken
    assert [a + b for a, b in zip(first, second, strict=True)] == alone
    assert [a + b + c for a, b, c in zip(*three, strict=True)] == alone
    assert len({number for batch in alone for number in batch}) == 128
    assert peak < 500_000  # a permutation of a million takes 4,000,000


@pytest.mark.parametrize("most", [0, PERMUTATION_ROWS])
def test_what_a_resumed_run_has_seen_is_left_out_once_and_of_its_epoch_alone(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", most)
    order = sampler(size=8, batch_size=2)
    whole = list(order)
    order.skip = 3
    assert list(order) == whole[3:]
    assert list(order) == whole
    order.skip = 3
    order.set_epoch(0)
    assert order.skip == 3
    order.set_epoch(1)
    assert list(order) == epoch(8, 2, number=1)


def test_any_other_order_has_another_identity_and_the_same_one_the_same() -> None:
    steps = [Step({"train": (0, 2)}), Step({"train": (2, 4)})]
    other_steps = [steps[::-1], steps[:1], [*steps, Step({"train": (4, 5)})], [Step({"train": (0, 4)})]]
    others = [
        *(EpochBatchSampler({"train": 5}, each, 7) for each in other_steps),
        EpochBatchSampler({"train": 5}, [Step({"train": (0, 2)}, ("x",)), *steps[1:]], 7),
        EpochBatchSampler({"train": 6}, steps, 7),
        EpochBatchSampler({"train": 5}, steps, 8),
        EpochBatchSampler({"train": 5}, steps, 7, shuffle=False),
        EpochBatchSampler({"train": 5}, steps, 7, same_order=True),
    ]
    order = EpochBatchSampler({"train": 5}, steps, 7)
    assert len({order.identity, *(other.identity for other in others)}) == 1 + len(others)
    assert sampler(5, 2).identity == order.identity  # the same steps, written out
    # What changes no order is no other.
    unordered = EpochBatchSampler({"train": 5}, steps, 7, shuffle=False).identity
    for rows in (4, 5):
        with tiny.computed_above(rows):
            assert (EpochBatchSampler({"train": 5}, steps, 7).identity == order.identity) is (rows == 5)
            assert EpochBatchSampler({"train": 5}, steps, 7, shuffle=False).identity == unordered


@given(case=sizes(), given_batches=st.integers(0, 60), number=st.integers(0, 3))
def test_a_place_in_a_run_is_the_same_on_every_rank_of_any_number(
    case: tuple[int, int, int], given_batches: int, number: int
) -> None:
    world, batch_size, size = case
    places = []
    for ranks in range(1, world + 1):
        for rank in range(ranks):
            steps = consecutive_steps({"train": TaskSize(size, batch_size)}, drop_last=True)
            order = EpochBatchSampler({"train": size}, steps, seed=7, rank=rank, world_size=ranks)
            loader = ResumableLoader(KeyedRows({"train": [{"text": "a"}] * size}), order, collate=list)  # type: ignore[arg-type]  # not run
            order.set_epoch(number)
            loader.batches_done = min(given_batches, len(steps))
            places.append(loader.state_dict())
    assert all(place == places[0] for place in places)


def test_sizes_that_cannot_be_served_are_refused() -> None:
    for options, message in (
        ((9, 2, 7, 0, 3), "expected a row of train for each of 3 ranks"),
        ((3, 4), "batch_size: expected at most the number of rows, 3, got 4"),
        ((9, 4, 7, 0, 2, True, False), "expected a row of train for each of 2 ranks in every step, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler(*options)  # type: ignore[arg-type]  # bools among the numbers


def test_rows_come_with_the_key_they_were_asked_for_by() -> None:
    rows = KeyedRows({"a": [{"text": "a"}], "b": [{"text": "b"}, {"text": "c"}]})
    assert len(rows) == 3
    key = KeyedRow(epoch=5, number=1, task="b", objectives=("x",))
    assert rows[key] == KeyedRow(epoch=5, number=1, row={"text": "c"}, task="b", objectives=("x",))


@pytest.mark.parametrize(
    "size",
    sorted({1, 2, 6, 1000, 10_007, *(2**bits + more for bits in (2, 3, 4, 7, 10, 12) for more in (-1, 0, 1))}),
)
def test_a_bijection_gives_every_number_once(size: int) -> None:
    order = Bijection(size, key=size)
    whole = order[:]
    assert len(order) == len(whole) == size
    assert np.array_equal(np.sort(whole), np.arange(size))
    cut = [0, size // 3, size // 3 + 1, size]
    assert np.array_equal(np.concatenate([order[start:stop] for start, stop in pairwise(cut)]), whole)


def test_places_beyond_32_bits_are_numbers_of_the_same_order() -> None:
    order = Bijection(3 * 2**40, key=1)
    numbers = order[2**40 : 2**40 + 4000]
    assert len(np.unique(numbers)) == 4000
    assert numbers.min() >= 0
    assert 2**41 < numbers.max() < 3 * 2**40
    assert abs(numbers.mean() / (3 * 2**40) - 0.5) < 0.02  # 0.0046 is the standard deviation


def deviations(size: int, keys: int = 20) -> dict[str, float]:
    """Statistic -> its mean over keys, in standard deviations of one: of random orders about 0."""
    places, found = np.arange(size), {"places": 0.0, "neighbors": 0.0, "distance": 0.0, "again": 0.0}
    for key in range(keys):
        order = Bijection(size, key)[:]
        found["places"] += uneven(np.histogram2d(places * 32 // size, order * 32 // size, bins=32)[0], 31 * 31)
        steps = np.diff(order) % size * 256 // size
        found["neighbors"] += uneven(np.bincount(steps, minlength=256), 255)
        found["distance"] += (np.abs(order - places).mean() / size - 1 / 3) * np.sqrt(size) / 0.2108
        found["again"] += (order == Bijection(size, keys + key)[:]).sum() - 1  # one place on average, Poisson
    return {name: total / keys for name, total in found.items()}


def uneven(counts: npt.NDArray[np.floating | np.integer], freedom: int) -> float:
    """Returns how far chi-squared of counts, all as likely, lies from its mean, in standard deviations."""
    expected = counts.sum() / counts.size
    chi = float(((counts - expected) ** 2 / expected).sum())
    return (chi - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [4096, 5000])
def test_a_bijection_looks_random(size: int) -> None:
    for name, deviation in deviations(size).items():
        assert abs(deviation) < 0.9, name  # four standard deviations of a mean over twenty keys


@pytest.mark.parametrize("size", [1, 2, 7, 255, 256, 65_535, 65_536, 70_000])
def test_a_permutation_is_numpy_s_bit_for_bit_in_less_memory(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, order = generator(5).permutation(size), draw_order(size, key=5)
    assert isinstance(order, np.ndarray)
    assert np.array_equal(order, drawn)
    assert order.itemsize < drawn.itemsize
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", size - 1)
    assert isinstance(draw_order(size, key=5), Bijection)


@pytest.mark.parametrize("bound", [0, 1 << 24])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the bound is the same for all
@given(size=st.integers(1, 30), start=st.integers(0, 90), count=st.integers(1, 90))
def test_passes_follow_each_other_each_in_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch, bound: int, size: int, start: int, count: int
) -> None:
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", bound)
    keys = [
        fold_key(7, 8),
        *(fold_key(7, 8, number) for number in range(1, 200)),
    ]  # the first as in runs of one pass
    passes = range(-(-(start + count) // size))
    whole = [number * size + draw_order(size, keys[number])[:].astype(int) for number in passes]
    order = EpochOrder(size, (7, 8))
    for _ in range(2):  # the last pass is kept, the others are computed again
        assert order(start, start + count).tolist() == np.concatenate(whole)[start : start + count].tolist()


@pytest.mark.parametrize("bound", [0, 1 << 24])
def test_every_epoch_seed_task_and_pass_has_an_order_of_its_own(
    monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(orders, "PERMUTATION_ROWS", bound)
    keys = [(1, 2, 3), (1, 2, 4), (1, 3, 3), (2, 2, 3)]
    orders_ = [EpochOrder(40, key) for key in keys]
    seen = [tuple(order(0, 40)) for order in orders_] + [tuple(orders_[0](40, 80) - 40)]
    assert len(set(seen)) == 5
    assert seen[0] == tuple(EpochOrder(40, keys[0])(0, 40))


class Texts(pl.Callback):
    """Notes the texts of each batch."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # Lightning's
        self.seen.append(batch.text_ids.tolist())


@pytest.mark.slow
def test_overfitting_takes_the_same_rows_in_every_epoch(bert: str, tmp_path: Path) -> None:
    seen = {}
    for batches in (0.0, 2):
        texts = Texts()
        trainer = tiny.trainer(
            tmp_path,
            callbacks=[texts],
            overfit_batches=batches,
            limit_train_batches=2,
            max_steps=-1,
            max_epochs=3,
        )
        trainer.fit(tiny.module(bert), tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
        assert len(texts.seen) == 6
        seen[batches] = texts.seen
    assert seen[2][:2] == seen[2][2:4] == seen[2][4:]
    assert seen[0.0][:2] == seen[2][:2]
    assert seen[0.0][2:4] != seen[2][2:4]


def test_lightning_s_own_sampler_is_refused_over_several_processes(bert: str, tmp_path: Path) -> None:
    data = tiny.data(
        tiny.write_texts(tmp_path / "texts.txt"), validation=tiny.write_pairs(tmp_path / "pairs.tsv")
    )
    for devices, injects, refused in ((2, True, True), (2, False, False), (1, True, False)):
        data.trainer = tiny.trainer(tmp_path, devices=devices, strategy="ddp", use_distributed_sampler=injects)
        data.trainer.strategy._lightning_module = tiny.module(bert)
        for stage in ("fit", "validate"):
            if refused:
                with pytest.raises(
                    InvalidValueError, match="use_distributed_sampler: expected False with several"
                ):
                    data.setup(stage)
            else:
                data.setup(stage)


def test_a_search_for_the_batch_size_is_refused_with_what_to_take(bert: str, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[BatchSizeFinder()])
    with pytest.raises(
        InvalidValueError, match=r"expected no BatchSizeFinder, got BatchSizeFinder\. .* --chunk auto"
    ):
        trainer.fit(tiny.module(bert), tiny.data(tiny.write_texts(tmp_path / "texts.txt")))


class Millions:
    """Three million rows, none of them in memory."""

    def __len__(self) -> int:
        return 3_000_000

    def __getitem__(self, number: int) -> dict[str, str]:
        return {"text": str(number)}


def test_rows_to_predict_come_in_order_without_a_list_of_them() -> None:
    tracemalloc.start()
    try:
        batches = iter(DataLoader(KeyedRows({"texts": Millions()}), batch_size=2, collate_fn=list))
        seen = [next(batches) for _ in range(2)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen[1] == [KeyedRow(0, number, {"text": str(number)}, "texts") for number in (2, 3)]
    assert peak < 1_000_000
