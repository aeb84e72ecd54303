"""Mixtures: which rows of which task a step takes, how many steps there are, and how steps are stored."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise

import parts
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.data import (
    AllTasks,
    BatchRoundRobin,
    EpochRoundRobin,
    Fusion,
    Mixture,
    Proportional,
    Rounds,
    Step,
    Steps,
    TaskSize,
)
from contrastive_text.data.loader import EpochBatchSampler

CS224N = {"sst": TaskSize(8544, 16), "quora": TaskSize(141_506, 16), "sts": TaskSize(6041, 16)}
"""The sizes of the report, section 5a."""

some_sizes = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(TaskSize, rows=st.integers(9, 60), batch_size=st.integers(1, 9)),
    min_size=1,
)
mixtures: list[Mixture] = [
    AllTasks(),
    AllTasks(temperature=2.0),
    BatchRoundRobin(),
    BatchRoundRobin(downsample=False),
    EpochRoundRobin(),
    EpochRoundRobin(downsample=True),
    Fusion([["x"], ["y"]]),
    Fusion([["x"], ["y"]], mixture=BatchRoundRobin()),
]


def rows(steps: Sequence[Step]) -> Counter[str]:
    """Counts the rows of each task, each place once."""
    parts = {(task, *part) for step in steps for task, part in step.parts.items()}
    counts: Counter[str] = Counter()
    for task, start, stop in parts:
        counts[task] += stop - start
    return counts


def listed(mixture: Mixture, sizes: Mapping[str, TaskSize], drop_last: bool) -> list[Step]:
    """Returns the steps of a mixture written out one by one."""
    if isinstance(mixture, Fusion):
        inner = listed(mixture.mixture, sizes, drop_last)
        return [replace(step, objectives=tuple(turn)) for step in inner for turn in mixture.turns]
    if isinstance(mixture, AllTasks):
        sizes = mixture._shared_out(sizes)
        return batches(sizes, drop_last)
    together = batches(sizes, drop_last) if mixture.downsample else []  # type: ignore[attr-defined]  # both have it
    each = [
        [Step({task: step.parts[task]}) for step in together] or batches({task: size}, drop_last)
        for task, size in sizes.items()
    ]
    if isinstance(mixture, EpochRoundRobin):
        return [step for steps in each for step in steps]
    return [steps[i] for i in range(max(map(len, each))) for steps in each if i < len(steps)]


def batches(sizes: Mapping[str, TaskSize], drop_last: bool) -> list[Step]:
    steps: list[Step] = []
    taken = dict.fromkeys(sizes, 0)
    while all(taken[task] + size.batch_size <= size.rows for task, size in sizes.items()):
        steps.append(Step({task: (taken[task], taken[task] + size.batch_size) for task, size in sizes.items()}))
        taken = {task: stop for task, (_, stop) in steps[-1].parts.items()}
    shortest = min(sizes.values(), key=lambda size: size.rows / size.batch_size)
    rest = shortest.rows % shortest.batch_size
    if rest and not drop_last:
        more = {task: max(1, rest * size.batch_size // shortest.batch_size) for task, size in sizes.items()}
        steps.append(Step({task: (at, min(at + more[task], sizes[task].rows)) for task, at in taken.items()}))
    return steps


@pytest.mark.parametrize("mixture", mixtures, ids=lambda m: type(m).__name__)
@given(sizes=some_sizes, drop_last=st.booleans())
def test_computed_steps_are_those_written_out_and_take_no_row_twice_or_one_that_is_not_there(
    mixture: Mixture, sizes: Mapping[str, TaskSize], drop_last: bool
) -> None:
    steps = mixture.steps(sizes, drop_last)
    assert list(map(repr, steps)) == list(map(repr, listed(mixture, sizes, drop_last)))
    turns = 2 if isinstance(mixture, Fusion) else 1
    taken = Counter(
        (task, i) for step in steps for task, (start, stop) in step.parts.items() for i in range(start, stop)
    )
    assert set(taken.values()) == {turns}
    for task, (start, stop) in ((task, part) for step in steps for task, part in step.parts.items()):
        assert 0 <= start < stop <= sizes[task].rows


def test_m10_an_epoch_of_the_report_has_378_steps() -> None:
    steps = AllTasks().steps(CS224N, drop_last=False)
    assert len(steps) == 378
    assert steps[-1].parts["sts"] == (6032, 6041)
    assert rows(steps) == {"sst": 6041, "quora": 6041, "sts": 6041}
    assert len(AllTasks().steps(CS224N, drop_last=True)) == 377


def test_m11_batch_round_robin_takes_three_steps_in_the_order_of_the_tasks() -> None:
    steps = BatchRoundRobin().steps(CS224N, drop_last=False)
    assert len(steps) == 3 * 378
    assert [next(iter(step.parts)) for step in steps] == ["sst", "quora", "sts"] * 378


def test_m11_epoch_round_robin_takes_the_tasks_one_after_another() -> None:
    steps = EpochRoundRobin().steps(CS224N, drop_last=False)
    order = [next(iter(step.parts)) for step in steps]
    lengths = {task: math.ceil(size.rows / 16) for task, size in CS224N.items()}
    assert order == [task for task in CS224N for _ in range(lengths[task])]
    assert rows(steps) == {task: size.rows for task, size in CS224N.items()}
    reduced = EpochRoundRobin(downsample=True).steps(CS224N, drop_last=False)
    assert rows(reduced) == dict.fromkeys(CS224N, 6041)


@pytest.mark.parametrize(
    ("mixture", "shares"),
    [
        (AllTasks(weights={"a": 1.0, "b": 3.0}), (8, 24)),
        (AllTasks(temperature=1.0), (4, 28)),  # 100 : 700
        (AllTasks(temperature=2.0), (9, 23)),  # 10 : 26.46, 8.78 and 23.22 of 32
        (AllTasks(temperature=1e9), (16, 16)),
    ],
)
def test_a_step_is_shared_out_by_weights_or_by_size(mixture: Mixture, shares: tuple[int, int]) -> None:
    steps = mixture.steps({"a": TaskSize(100, 16), "b": TaskSize(700, 16)}, drop_last=True)
    assert tuple(stop - start for start, stop in steps[0].parts.values()) == shares


@given(sizes=some_sizes, temperature=st.floats(0.2, 5.0))
def test_sharing_out_keeps_the_rows_of_a_step(sizes: Mapping[str, TaskSize], temperature: float) -> None:
    total = sum(size.batch_size for size in sizes.values())
    steps = AllTasks(temperature=temperature).steps(sizes, drop_last=False)
    whole = steps[0] if len(steps) > 1 else None
    if whole is not None and total >= 4 * len(sizes):
        taken = [stop - start for start, stop in whole.parts.values()]
        assert sum(taken) >= total
        assert sum(taken) - total < len(sizes)  # a task has at least one row


def tasks_of(steps: Sequence[Step]) -> list[str]:
    """The task of each step of a mixture with one task a step."""
    return [task for step in steps for task in step.parts]


@pytest.mark.parametrize(
    ("temperature", "counts"),
    [
        (1.0, {"a": 100, "b": 1000}),
        (2.0, {"a": 264, "b": 836}),  # 1 : sqrt(10), 264.3 and 835.7 of 1,100
        (1e9, {"a": 550, "b": 550}),
        (0.01, {"a": 1, "b": 1100}),  # every task has a step
    ],
)
def test_steps_of_a_task_are_in_proportion_to_its_rows(temperature: float, counts: dict[str, int]) -> None:
    steps = Proportional(temperature).steps({"a": TaskSize(1000, 10), "b": TaskSize(10_000, 10)}, drop_last=True)
    assert Counter(tasks_of(steps)) == counts
    assert {task: steps.step_count(task) for task in counts} == counts
    assert {task: steps.rows_taken(task) for task in counts} == {t: 10 * n for t, n in counts.items()}


def test_the_small_set_is_seen_until_the_end_of_the_epoch() -> None:
    sizes = {"a": TaskSize(1000, 10), "b": TaskSize(10_000, 10)}
    places = [i for i, task in enumerate(tasks_of(Proportional().steps(sizes, drop_last=True))) if task == "a"]
    assert places[0] == 5
    assert places[-1] == 1094
    assert {later - earlier for earlier, later in pairwise(places)} == {11}
    in_turn = tasks_of(BatchRoundRobin(downsample=False).steps(sizes, drop_last=True))
    assert max(i for i, task in enumerate(in_turn) if task == "a") == 198


@given(sizes=some_sizes, temperature=st.floats(0.3, 9.0), drop_last=st.booleans())
def test_proportional_steps_are_sorted_by_position_and_stay_near_their_share(
    sizes: Mapping[str, TaskSize], temperature: float, drop_last: bool
) -> None:
    steps = Proportional(temperature).steps(sizes, drop_last)
    counts = Counter(tasks_of(steps))
    assert counts.keys() == sizes.keys()
    places = [(Fraction(2 * j + 1, 2 * counts[t]), i, t) for i, t in enumerate(sizes) for j in range(counts[t])]
    assert tasks_of(steps) == [task for *_, task in sorted(places)]
    for task, size in sizes.items():  # whole batches, each with the rows after the last
        width = min(size.batch_size, size.rows)
        own = [step.parts[task] for step in steps if task in step.parts]
        assert own == [(width * j, width * (j + 1)) for j in range(counts[task])]
    taken: Counter[str] = Counter()
    for number, task in enumerate(tasks_of(steps), start=1):
        taken[task] += 1
        for name in sizes:
            share = counts[name] / len(steps)
            bound = 0.5 + share * max(len(sizes) - 2, 0) / 2
            assert abs(taken[name] - share * number) <= bound + 1e-9  # rounding of the share


@given(sizes=some_sizes, ranks=st.sampled_from([1, 2, 3]), done=st.integers(0, 30))
def test_ranks_share_each_step_of_a_proportional_epoch_and_a_resumed_run_takes_the_rest(
    sizes: Mapping[str, TaskSize], ranks: int, done: int
) -> None:
    sizes = {task: replace(size, batch_size=max(size.batch_size, 3)) for task, size in sizes.items()}
    steps = Proportional(2.0).steps(sizes, drop_last=True)
    rows_of = {task: size.rows for task, size in sizes.items()}

    def epoch(rank: int, world_size: int, skip: int = 0) -> list[list[tuple[str, int]]]:
        sampler = EpochBatchSampler(rows_of, steps, seed=1, rank=rank, world_size=world_size)
        sampler.set_epoch(3)
        sampler.skip = skip
        return [[(key.task, key.number) for key in keys] for keys in sampler]

    whole = epoch(0, 1)
    assert [{task for task, _ in batch} for batch in whole] == [{task} for task in tasks_of(steps)]
    shares = [epoch(rank, ranks) for rank in range(ranks)]
    assert [sorted(chain.from_iterable(own)) for own in zip(*shares, strict=True)] == list(map(sorted, whole))
    assert epoch(ranks - 1, ranks, skip=done) == shares[-1][done:]


def test_every_step_of_a_proportional_epoch_comes_once_for_each_group_of_objectives() -> None:
    sizes, turns = {"a": TaskSize(4, 2), "b": TaskSize(9, 2), "c": TaskSize(30, 3)}, [["x"], ["y", "z"]]
    alone = Proportional().steps(sizes, drop_last=True)
    fused = Fusion(turns, mixture=Proportional()).steps(sizes, drop_last=True)
    assert list(fused) == [replace(step, objectives=tuple(turn)) for step in alone for turn in turns]
    assert list(fused.filter(lambda step: "b" not in step.parts)) == [s for s in fused if "b" not in s.parts]
    assert fused.filter(lambda step: bool(step.parts)) is fused


REFUSALS: list[parts.Refused] = [
    (lambda: Proportional(0.0), ValueError, ["Proportional.temperature", "above 0, got 0.0"]),
    (lambda: Proportional().steps({"a": TaskSize(9, 2), "b": TaskSize(0, 2)}, drop_last=True), ValueError,
     ["batch_size: expected at most the number of rows, 0, got 2 for b"]),
    (lambda: AllTasks(weights={"a": 1.0}, temperature=1.0), ValueError, ["weights or a temperature, got both"]),
    (lambda: AllTasks(temperature=0.0), ValueError, ["AllTasks.temperature", "above 0, got 0.0"]),
    (lambda: AllTasks(weights={"a": 0.0}), ValueError, ["AllTasks.weights.a", "above 0"]),
    (lambda: Fusion([["a"]]), ValueError, ["Fusion.turns", "two groups of objectives or more"]),
    (lambda: Fusion([["a"], []]), ValueError, ["Fusion.turns", "two groups of objectives or more"]),
    (lambda: AllTasks(weights={"a": 1.0}).steps({"b": TaskSize(4, 2)}, drop_last=True), ValueError,
     ["AllTasks.weights: expected one for each of b, got a"]),
]  # fmt: skip


@pytest.mark.parametrize("refused", REFUSALS)
def test_what_makes_no_sense_is_refused(refused: parts.Refused) -> None:
    parts.check_refused(*refused)


some_steps = st.lists(
    st.builds(
        Step,
        st.dictionaries(
            st.sampled_from("ab"),
            st.sampled_from([(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (4, 5), (4, 6)]),
            min_size=1,
        ),
        st.sampled_from([None, ("x",)]),
    ),
    max_size=9,
)


def same(steps: Steps, listed: list[Step]) -> bool:
    """Returns whether steps equal a list, including the order of the tasks in each step."""
    return list(map(repr, steps)) == list(map(repr, listed))


@given(listed=some_steps)
def test_a_list_in_the_form_of_rounds_is_the_same_list(listed: list[Step]) -> None:
    steps = Steps.of(listed)
    assert same(steps, listed)
    assert Steps.of(steps) is steps
    assert [steps[-i - 1] for i in range(len(listed))] == listed[::-1]
    assert steps[1:-1] == listed[1:-1]
    for wrong in (len(listed), -len(listed) - 1):
        with pytest.raises(IndexError):
            steps[wrong]
    assert set(map(repr, steps.kinds)) <= set(map(repr, listed))
    for task in "ab":
        parts = [step.parts[task] for step in listed if task in step.parts]
        assert steps.rows_taken(task) == max((stop for _, stop in parts), default=0)
        assert steps.largest_step(task) == max((stop - start for start, stop in parts), default=0)
    with_a = steps.filter(lambda step: "a" in step.parts)
    assert same(with_a, [step for step in listed if "a" in step.parts])


def test_rounds_go_on_where_the_last_ended_each_task_by_its_own_batches() -> None:
    steps = Steps([Rounds((Step({"a": (4, 6)}), Step({"b": (0, 3), "a": (1, 2)})), 2), Rounds((), 5)])
    assert [step.parts for step in steps] == [
        {"a": (4, 6)},
        {"b": (0, 3), "a": (1, 2)},
        {"a": (6, 8)},
        {"b": (3, 6), "a": (2, 3)},
    ]


@pytest.mark.parametrize(
    "mixture",
    [
        BatchRoundRobin(downsample=False),
        EpochRoundRobin(),
        Fusion([["x"], ["y"]], mixture=BatchRoundRobin(downsample=False)),
        Proportional(),
    ],
)
def test_the_steps_of_a_billion_rows_take_the_memory_of_a_few(mixture: Mixture) -> None:
    sizes = {"a": TaskSize(10**9 + 1, 64), "b": TaskSize(10**8, 48), "c": TaskSize(10**7 + 5, 7)}
    tracemalloc.start()
    try:
        steps = mixture.steps(sizes, drop_last=False)
        taken = [steps[i] for i in (0, len(steps) // 3, len(steps) // 2, -1)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(steps) == sum(-(-size.rows // size.batch_size) for size in sizes.values()) * len(
        getattr(mixture, "turns", "1")
    )
    if not isinstance(mixture, Proportional):  # whole batches, of which the last takes rows of the next pass
        assert {(task, part[1]) for task, part in taken[-1].parts.items()} <= {(t, sizes[t].rows) for t in sizes}
    assert peak < 50_000
