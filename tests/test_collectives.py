"""Tests of the collective operations in a step on two ranks, in addition to DDP's mean of the gradients."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from executions import CASES, Execution, batch_of, module_of, part_of
from objective_cases import TRIPLE, Case, Known
from processes import of_two_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from contrastive_text.core.distributed import gather_sizes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.heads import ProjectorHead
from contrastive_text.losses import BarlowTwins, CoSENT, InfoNCE
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    FalseNegatives,
    Momentum,
    PairRegression,
    Queue,
    Siblings,
    WholeBatch,
)

_NAMES = {
    "allgather_": "gather",
    "_allgather_base_": "gather",
    "allreduce_": "reduce",
    "reduce_scatter_": "reduce-scatter",
    "_reduce_scatter_base_": "reduce-scatter",
    "broadcast_": "broadcast",
    "barrier": "barrier",
}


class Collectives(TorchDispatchMode):
    """Counts the collectives of a block by their kind, those of backward passes on a CPU too.

    Args:
        counts: How often each was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # Any: torch's
        """Runs an operation, and counts it where ranks take part."""
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            self.counts[_NAMES.get(name, name)] += 1
        return func(*args, **(kwargs or {}))


RANKS = (8, 4)
"""Examples of each."""

STEPS: dict[str, Case] = {
    "SimCSE": CASES["InfoNCE"],
    "masked tokens too": CASES["NTXent and masked tokens"],
    "classes too": CASES["NTXent, hard, siblings attract, and SupCon"],
    "projector": Case(
        lambda how: {"c": WholeBatch(BarlowTwins(), head=ProjectorHead([10, 6]))}  # noqa: ARG005  # as each case is called
    ),
    "queue of keys": Case(
        lambda how: {
            "c": Contrastive(InfoNCE(0.2, **how), columns=[Duplicates(), Siblings(), Queue(40), Momentum(0.5)])
        }
    ),
    "scores of pairs": Case(lambda how: {"c": PairRegression(CoSENT(0.2))}, classes=6),  # noqa: ARG005  # as each case is called
    "a guide": Case(
        lambda how: {
            "c": Contrastive(InfoNCE(0.2, **how), columns=[Duplicates(), Siblings(), FalseNegatives("teacher")])
        },
        slots=TRIPLE,
        parts=lambda: {"guides": {"teacher": Known(7)}},
    ),
}

COMPARED = {"gather": 1, "reduce": 2, "reduce-scatter": 1}
"""An objective's columns, the counts of all objectives and all figures of the log, the gradients of columns."""

COUNTS: dict[str, dict[str, int]] = {
    "SimCSE": COMPARED,
    "masked tokens too": COMPARED,
    "classes too": {"gather": 2, "reduce": 2, "reduce-scatter": 2},  # two objectives compare
    "projector": {"gather": 2, "reduce": 2, "reduce-scatter": 2},  # a layer of batch normalization
    # Keys have no gradient; a logged step gathers the trained vectors.
    "queue of keys": {"gather": 2, "reduce": 2},
    "scores of pairs": COMPARED,
    "a guide": COMPARED,
}
UNKNOWN = "SimCSE of shares that nobody knows"


def counted(number: int) -> dict[str, dict[str, int]]:
    """Returns what a rank takes part in, by case."""
    start, found = sum(RANKS[:number]), {}
    for name, case in {**STEPS, UNKNOWN: STEPS["SimCSE"]}.items():
        with mock.patch.dict(CASES, {"one": case}):
            module = module_of(Execution("one", "no views", "packed", "whole", "dense", "two uneven ranks"))
        batch = part_of(batch_of(case, "no views", 0), slice(start, start + RANKS[number]))
        batch = batch.replace(rank_sizes=None if name == UNKNOWN else RANKS)
        with Collectives() as seen:
            module.training_step(batch, 0).backward()
        found[name] = dict(seen.counts)
    return found


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, int]]]:
    """Of each rank, by case."""
    return of_two_ranks(counted, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_step_takes_so_many_collectives(counts: list[dict[str, dict[str, int]]], name: str) -> None:
    for found in counts:
        assert found[name] == COUNTS[name]


def test_ranks_ask_for_shares_that_nobody_knows(counts: list[dict[str, dict[str, int]]]) -> None:
    for found in counts:
        assert found[UNKNOWN] == {**COMPARED, "gather": 2}


def test_shares_that_are_no_longer_true_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {"is_initialized": True, "get_world_size": 2, "get_rank": 1}.items():
        monkeypatch.setattr(dist, name, lambda answer=answer: answer)
    assert gather_sizes(3, device=torch.device("cpu"), known=[5, 3]) == [5, 3]
    with pytest.raises(InvalidValueError, match=r"Batch.rank_sizes: expected 4 examples of rank 1, .* got 3"):
        gather_sizes(4, device=torch.device("cpu"), known=[5, 3])


def test_a_batch_whose_rows_are_chosen_anew_has_no_shares() -> None:
    batch = batch_of(STEPS["a guide"], "no views", 0).replace(rank_sizes=(12, 12))
    assert batch.keep(batch.slots[:2]).rank_sizes == (12, 12)  # of the same examples
    assert batch.split(torch.arange(6)).rank_sizes is None
