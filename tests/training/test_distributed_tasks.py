"""Several data sets over two gloo processes against one: gradients and figures of every mixture and combiner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import several
import tiny
import torch
from processes import means, of_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrastive_text.core.batch import StepBatch
from contrastive_text.data import AllTasks, BatchRoundRobin, EpochRoundRobin, Fusion, Mixture, Proportional
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.losses import BarlowTwins, CoSENT
from contrastive_text.objectives import MaskedLM, PairRegression, WholeBatch
from contrastive_text.training import Combine, PCGrad, Uncertainty, WeightedSum
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import MaskTokens

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
STEPS = 5
FIGURES = {"contrastive/uniformity", "sentiment/accuracy", "mlm/accuracy"}
SUPERVISED = ["sentiment", "paraphrase", "similarity", "ranked", "mlm"]
CASES: dict[str, Callable[[], tuple[Mixture, Combine]]] = {
    "all, mean": lambda: (AllTasks(), WeightedSum(reduction="mean")),
    "batch round robin": lambda: (BatchRoundRobin(), WeightedSum()),
    "proportional": lambda: (Proportional(2.0), WeightedSum()),
    "by size, uncertainty": lambda: (AllTasks(temperature=1.0), Uncertainty()),
    "epoch round robin, pcgrad of everything": lambda: (
        EpochRoundRobin(downsample=True), PCGrad(scope="all", reduction="mean"),
    ),
    "fusion, pcgrad": lambda: (Fusion([SUPERVISED, ["contrastive", "barlow"]]), PCGrad(reduction="mixed")),
}  # fmt: skip


def module(bert: str, combine: Combine) -> ContrastiveModule:
    torch.manual_seed(0)
    objectives = several.objectives()
    objectives["ranked"] = PairRegression(loss=CoSENT(), task="sts")
    objectives |= {"barlow": WholeBatch(BarlowTwins(), task="sst"), "mlm": MaskedLM(task="quora")}
    views: dict[str, Any] = {"quora": {"anchor": [MaskTokens(0.5)]}}
    parts: dict[str, Any] = {"objectives": objectives, "weights": {"contrastive": 0.3}, "views": views}
    return ContrastiveModule(TransformerEncoder(bert, dropout=0.0), combine=combine, **parts).double()


def batches(parts: ContrastiveModule, folder: str, mixture: Mixture) -> Iterator[StepBatch]:
    """This rank's parts of the first steps; seven rows don't go evenly into two."""
    data = several.data(several.write_tasks(Path(folder)), mixture, batch_size=7, drop_last=False)
    data.set_module(parts)
    data.setup("fit")
    yield from itertools.islice(data.train_dataloader(), STEPS)


class Step(nn.Module):
    """The training step as a forward pass, for DDP to wrap."""

    def __init__(self, parts: ContrastiveModule) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, batch: StepBatch, number: int) -> Tensor:
        return self.parts.training_step(batch, number)


def gradients(bert: str, folder: str, name: str, ddp: bool = False) -> list[dict[str, Tensor]]:
    """Figures, loss and gradients of each step at the first weights.

    The loss is a mean over the ranks. So are the gradients, which DDP averages itself if it wraps the step.
    """
    mixture, combine = CASES[name]()
    each = []
    parts = module(bert, combine)
    step: nn.Module = Step(parts)
    if ddp:
        step = DistributedDataParallel(step, find_unused_parameters=True)
    for number, batch in enumerate(batches(parts, folder, mixture)):
        parts.zero_grad(set_to_none=True)
        loss = step(batch, number)
        loss.backward()
        found = {key: p.grad.clone() for key, p in parts.named_parameters() if p.grad is not None}
        figures = {f"figure {key}": figure for key, figure in parts.figures.items()}
        averaged = means({"loss": loss}) | found if ddp else means({"loss": loss, **found})
        each.append(averaged | figures)
    return each


DDP_CASES = ("batch round robin", "by size, uncertainty", "fusion, pcgrad")


def work(number: int, bert: str, folder: str) -> dict[str, list[dict[str, Tensor]]]:
    """One rank's results."""
    own = str(Path(folder) / f"data{number}")
    return {name: gradients(bert, own, name, ddp=name in DDP_CASES) for name in CASES}


Results = list[dict[str, list[dict[str, Tensor]]]]


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_masked_lm(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def ranks(masked: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of both ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    return of_two_ranks(work, folder, masked, str(folder))


def check(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Holds gradients against each other, relative to the largest of all parameters."""
    assert found.keys() == expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert float((found[name] - value).abs().max()) <= PROMISE * largest, name


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_and_figures_of_two_ranks_and_what_ddp_leaves_are_those_of_one_process(
    name: str, ranks: Results, masked: str, tmp_path: Path
) -> None:
    alone = gradients(masked, str(tmp_path), name)
    assert {f"figure {figure}" for figure in FIGURES} <= set().union(*alone)
    absent = 0  # where no objective of the step has a gradient for it
    for rank in ranks:
        for found, expected in zip(rank[name], alone, strict=True):
            assert found.keys() == expected.keys()
            figures = {key for key in expected if key.startswith("figure ")}
            for figure in figures:  # sums are taken in another order; an accuracy is float32
                rounding = 1e-9 if expected[figure].dtype == torch.float64 else 1e-6
                torch.testing.assert_close(
                    found[figure], expected[figure], rtol=rounding, atol=rounding, msg=figure
                )
            check(
                *({key: value for key, value in each.items() if key not in figures} for each in (found, expected))
            )
            absent += "objectives.sentiment.head.network.0.weight" not in found
    assert (absent > 0) == (name not in ("all, mean", "by size, uncertainty"))
