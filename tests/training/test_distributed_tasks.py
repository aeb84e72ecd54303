"""Several data sets over two gloo processes against one: the gradient of every mixture and combiner."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import several
import torch
from processes import means, of_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrastive_text.core.batch import StepBatch
from contrastive_text.data import AllTasks, BatchRoundRobin, EpochRoundRobin, Fusion, Mixture
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.losses import CoSENT
from contrastive_text.objectives import PairRegression
from contrastive_text.training import Combine, PCGrad, Uncertainty, WeightedSum
from contrastive_text.training.module import ContrastiveModule

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
STEPS = 5
SUPERVISED = ["sentiment", "paraphrase", "similarity", "ranked"]
CASES: dict[str, tuple[Mixture, Combine]] = {
    "all": (AllTasks(), WeightedSum(reduction="mean")),
    "by size": (AllTasks(temperature=1.0), WeightedSum()),
    "batch round robin": (BatchRoundRobin(), WeightedSum()),
    "epoch round robin": (EpochRoundRobin(downsample=True), WeightedSum()),
    "fusion": (Fusion([SUPERVISED, ["contrastive"]]), WeightedSum()),
    "uncertainty": (AllTasks(), Uncertainty()),
    "pcgrad": (AllTasks(), PCGrad()),
    "pcgrad of everything, mean": (AllTasks(), PCGrad(scope="all", reduction="mean")),
    "pcgrad, fusion": (Fusion([SUPERVISED, ["contrastive"]]), PCGrad(reduction="mixed")),
}


def module(bert: str, combine: Combine) -> ContrastiveModule:
    torch.manual_seed(0)
    objectives = several.objectives()
    objectives["ranked"] = PairRegression(loss=CoSENT(), task="sts")
    weights = {"contrastive": 0.3}
    encoder = TransformerEncoder(bert, dropout=0.0)
    return ContrastiveModule(encoder, objectives=objectives, weights=weights, combine=combine).double()


def batches(parts: ContrastiveModule, folder: str, mixture: Mixture) -> Iterator[StepBatch]:
    """This rank's parts of the first steps; seven rows don't go evenly into two."""
    data = several.data(several.write_tasks(Path(folder)), mixture, batch_size=7, drop_last=False)
    data.attach(parts)
    data.setup("fit")
    yield from itertools.islice(data.train_dataloader(), STEPS)


def gradients(bert: str, folder: str, name: str) -> list[dict[str, Tensor]]:
    """Loss and gradients of each step at the first weights, both as means over the ranks."""
    mixture, combine = CASES[name]
    each = []
    parts = module(bert, type(combine)(**arguments(combine)))
    for number, batch in enumerate(batches(parts, folder, mixture)):
        parts.zero_grad(set_to_none=True)
        loss = parts.training_step(batch, number)
        loss.backward()
        found = {key: p.grad for key, p in parts.named_parameters() if p.grad is not None}
        each.append(means({"loss": loss, **found}))
    return each


def arguments(combine: Combine) -> dict[str, Any]:
    if isinstance(combine, PCGrad):
        return {"scope": combine.scope, "reduction": combine.reduction, "seed": combine.seed}
    return {"reduction": combine.reduction} if isinstance(combine, WeightedSum) else {}


class Step(nn.Module):
    """The training step as a forward pass, for DDP to wrap."""

    def __init__(self, parts: ContrastiveModule) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, batch: StepBatch, number: int) -> Tensor:
        return self.parts.training_step(batch, number)


def through_ddp(bert: str, folder: str, name: str) -> list[dict[str, Tensor]]:
    """The same gradients as DDP itself leaves them."""
    mixture, combine = CASES[name]
    parts = module(bert, type(combine)(**arguments(combine)))
    wrapped = DistributedDataParallel(Step(parts), find_unused_parameters=True)
    each = []
    for number, batch in enumerate(batches(parts, folder, mixture)):
        parts.zero_grad(set_to_none=True)
        wrapped(batch, number).backward()
        each.append({key: p.grad.clone() for key, p in parts.named_parameters() if p.grad is not None})
    return each


DDP_CASES = ("batch round robin", "pcgrad", "fusion", "uncertainty")
QUICK = ("all", "batch round robin", "fusion", "pcgrad")


def work(number: int, bert: str, folder: str, cases: Sequence[str]) -> dict[str, list[dict[str, Tensor]]]:
    """One rank's results."""
    own = Path(folder) / f"data{number}"
    results = {name: gradients(bert, str(own), name) for name in cases}
    return results | {f"ddp {name}": through_ddp(bert, str(own), name) for name in cases if name in DDP_CASES}


Results = list[dict[str, list[dict[str, Tensor]]]]


@pytest.fixture(scope="module")
def ranks(bert: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of both ranks in the quick cases."""
    folder = tmp_path_factory.mktemp("ranks")
    return of_two_ranks(work, folder, bert, str(folder), QUICK)


def check(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Holds gradients against each other, relative to the largest of all parameters."""
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= PROMISE * largest, name


def check_case(name: str, ranks: Results, bert: str, folder: Path) -> None:
    """Holds the gradient of two ranks, and what DDP leaves of it, against that of one process."""
    alone = gradients(bert, str(folder), name)
    for rank in ranks:
        for found, expected in zip(rank[name], alone, strict=True):
            check(found, expected)
    if name not in DDP_CASES:
        return
    absent = 0  # where no objective of the step has a gradient for it
    for rank in ranks:
        for found, expected in zip(rank[f"ddp {name}"], alone, strict=True):
            check(found, {key: value for key, value in expected.items() if key != "loss"})
            absent += "objectives.sentiment.head.network.0.weight" not in found
    assert (absent > 0) == (name in ("batch round robin", "fusion"))


@pytest.mark.parametrize("name", QUICK)
def test_the_gradient_of_two_ranks_is_that_of_one_process(
    name: str, ranks: Results, bert: str, tmp_path: Path
) -> None:
    check_case(name, ranks, bert, tmp_path)


@pytest.mark.slow
def test_so_it_is_under_every_mixture_and_combiner(bert: str, tmp_path: Path) -> None:
    rest = [name for name in CASES if name not in QUICK]
    ranks = of_two_ranks(work, tmp_path, bert, str(tmp_path), rest)
    for name in rest:
        check_case(name, ranks, bert, tmp_path / "alone")
