"""The steps of an epoch are computed: the same as a list of them, however they are kept."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.data import (
    BatchRoundRobin,
    EpochRoundRobin,
    Fusion,
    Mixture,
    Rounds,
    Step,
    Steps,
    TaskSize,
)

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
    """Whether steps are those of a list, the order of the tasks in each included."""
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
        assert steps.taken(task) == max((stop for _, stop in parts), default=0)
        assert steps.largest(task) == max((stop - start for start, stop in parts), default=0)
    with_a = steps.where(lambda step: "a" in step.parts)
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
    ],
    ids=["batch", "epoch", "fusion"],
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
    assert {(task, part[1]) for task, part in taken[-1].parts.items()} <= {(t, sizes[t].rows) for t in sizes}
    assert peak < 50_000
