"""What a step on two ranks says from one to the other, beside the mean of the gradients that DDP takes."""

from __future__ import annotations

from unittest import mock

import pytest
from collectives import Collectives
from executions import CASES, Execution, batch_of, module_of, part_of
from objective_cases import TRIPLE, Case, Known, hard
from processes import of_two_ranks

from contrastive_text.heads import ProjectorHead
from contrastive_text.losses import BarlowTwins, CoSENT, InfoNCE
from contrastive_text.objectives import Contrastive, FalseNegatives, Momentum, PairRegression, WholeBatch

RANKS = (8, 4)
"""Examples of each."""

STEPS: dict[str, Case] = {
    "SimCSE": Case(lambda how: {"c": Contrastive(InfoNCE(0.2, **how))}),
    "hard negatives": Case(lambda how: {"c": Contrastive(hard(how))}, slots=TRIPLE),
    "masked tokens too": CASES["NTXent and masked tokens"],
    "classes too": CASES["NTXent, hard, siblings attract, and SupCon"],
    "two views of each text": CASES["NTXent, between views"],
    "projector": Case(
        lambda how: {"c": WholeBatch(BarlowTwins(), head=ProjectorHead([10, 6]))}  # noqa: ARG005  # as each case is called
    ),
    "queue of keys": Case(lambda how: {"c": Contrastive(InfoNCE(0.2, **how), queue=40, keys=Momentum(0.5))}),
    "scores of pairs": Case(lambda how: {"c": PairRegression(CoSENT(0.2))}, classes=6),  # noqa: ARG005  # as each case is called
    "a guide": Case(
        lambda how: {"c": Contrastive(InfoNCE(0.2, **how), false_negatives=FalseNegatives("teacher"))},
        slots=TRIPLE,
        parts=lambda: {"guides": {"teacher": Known(7)}},
    ),
}

COUNTS: dict[str, dict[str, int]] = {
    "SimCSE": {"gather": 2, "reduce": 1, "reduce-scatter": 1},
    "hard negatives": {"gather": 2, "reduce": 1, "reduce-scatter": 1},
    "masked tokens too": {"gather": 2, "reduce": 2, "reduce-scatter": 1},
    "classes too": {"gather": 4, "reduce": 2, "reduce-scatter": 2},
    "two views of each text": {"gather": 2, "reduce": 1, "reduce-scatter": 1},
    "projector": {"gather": 4, "reduce": 1, "reduce-scatter": 2},
    "queue of keys": {"gather": 2, "reduce": 1},  # which have no gradient
    "scores of pairs": {"gather": 2, "reduce": 1, "reduce-scatter": 1},
    "a guide": {"gather": 2, "reduce": 1, "reduce-scatter": 1},
}


def counted(number: int) -> dict[str, dict[str, int]]:
    """Returns what a rank takes part in, by case."""
    start, found = sum(RANKS[:number]), {}
    for name, case in STEPS.items():
        with mock.patch.dict(CASES, {"one": case}):
            module = module_of(Execution("one", "no views", "packed", "whole", "dense", "two uneven ranks"))
        batch = part_of(batch_of(case, "no views", 0), slice(start, start + RANKS[number]))
        with Collectives() as seen:
            module.training_step(batch, 0).backward()
        found[name] = dict(seen.counts)
    return found


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, int]]]:
    """Of each rank, by case."""
    return of_two_ranks(counted, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", STEPS)
def test_a_step_takes_so_many_collectives(counts: list[dict[str, dict[str, int]]], name: str) -> None:
    for found in counts:
        assert found[name] == COUNTS[name]
