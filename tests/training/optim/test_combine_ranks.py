"""One gradient out of many, on two ranks against one process.

Objective ``third`` has rows on the first rank only, with a head that nothing else uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
import torch
from processes import of_two_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.training import Combine, PCGrad, Uncertainty, WeightedSum
from contrastive_text.training.optim import gradient_figures

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10

SCOPES = ("shared", "all")
REDUCTIONS = ("sum", "mean", "mixed")
COMBINERS = {
    "sum": lambda: WeightedSum(),
    "mean": lambda: WeightedSum(reduction="mean"),
    "uncertainty": lambda: Uncertainty(),
    **{f"pcgrad {s} {r}": lambda s=s, r=r: PCGrad(scope=s, reduction=r) for s, r in product(SCOPES, REDUCTIONS)},
}
ROWS = {"first": 7, "second": 5, "third": 3}
PARTS = {"first": (4, 3), "second": (2, 3), "third": (3, 0)}


class Step(nn.Module):
    """A trunk, a layer of two objectives, a head of one, an idle layer, and the combiner after them."""

    def __init__(self, combine: Combine) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.trunk = nn.Linear(3, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)
        self.idle = nn.Linear(2, 2)
        self.combine = combine
        combine.build(list(ROWS))
        self.double()

    def values(self, rows: Mapping[str, slice]) -> dict[str, Tensor]:
        """Losses as the module scales them: this rank's total times W over the global count."""
        values = {}
        for number, (name, total) in enumerate(ROWS.items()):
            noise = torch.Generator().manual_seed(number)
            x = torch.randn(total, 3, generator=noise, dtype=torch.float64)[rows[name]]
            y = self.trunk(x).tanh()
            if name != "first":
                y = self.middle(y)
            if name == "third":
                y = self.head(y)
            scale = world_size() / total
            terms = ((-1) ** number * y + 0.3 * y**2 * (1 + y)).sum()
            # A rank without rows has a loss without a graph.
            values[name] = terms * scale if len(x) else torch.zeros((), dtype=torch.float64)
        return values

    def forward(self, rows: Mapping[str, slice], figures: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        """The combined loss, and figures of the gradients."""
        values = self.values(rows)
        parameters = [p for p in self.parameters() if p.requires_grad]
        logs = gradient_figures(values, parameters) if figures else {}
        return self.combine(values, parameters, key=11), logs


def run(name: str, rows: Mapping[str, slice]) -> dict[str, Tensor]:
    """The loss of all ranks and the gradients after ``backward``."""
    step = Step(COMBINERS[name]())
    shell = DistributedDataParallel(step, find_unused_parameters=True) if world_size() > 1 else step
    loss, _ = shell(rows)
    loss.backward()
    gradients = {key: p.grad for key, p in step.named_parameters() if p.grad is not None}
    return {"loss": sum_over_ranks(loss) / world_size(), **gradients}


def work(number: int) -> dict[str, dict[str, Tensor]]:
    rows = {name: slice(sum(part[:number]), sum(part[: number + 1])) for name, part in PARTS.items()}
    results: dict[str, dict[str, Tensor]] = {name: run(name, rows) for name in COMBINERS}
    return {**results, "figures": Step(WeightedSum())(rows, figures=True)[1]}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """What each of two ranks found."""
    return of_two_ranks(work, tmp_path_factory.mktemp("combine"))


@pytest.mark.slow  # the default run has combiners on ranks in test_one_gradient.py and test_distributed_tasks.py
@pytest.mark.parametrize("name", COMBINERS)
def test_two_ranks_give_the_gradient_of_one_process(ranks: list[dict[str, dict[str, Tensor]]], name: str) -> None:
    alone = run(name, dict.fromkeys(ROWS, slice(None)))
    assert {"trunk.weight", "middle.weight", "head.weight"} < alone.keys()
    assert not any(key.startswith("idle") for key in alone)
    scale = max(float(g.abs().max()) for key, g in alone.items() if key != "loss")
    for results in ranks:
        reached = results[name]
        assert reached.keys() == alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(reached[key], expected.detach(), rtol=0, atol=PROMISE * scale)


def test_the_combiners_of_two_ranks_differ_from_each_other() -> None:
    found = [run(name, dict.fromkeys(ROWS, slice(None)))["trunk.weight"] for name in COMBINERS]
    alike = [(i, j) for i in range(len(found)) for j in range(i) if torch.allclose(found[i], found[j])]
    # All three use the trunk: there mean and mixed are one.
    names = list(COMBINERS)
    assert {(names[j], names[i]) for i, j in alike} <= {
        ("sum", "uncertainty"),  # log variances start at 0
        *((f"pcgrad {scope} mean", f"pcgrad {scope} mixed") for scope in SCOPES),
    }


@pytest.mark.slow
def test_figures_of_two_ranks_are_those_of_one_process(ranks: list[dict[str, dict[str, Tensor]]]) -> None:
    _, alone = Step(WeightedSum())(dict.fromkeys(ROWS, slice(None)), figures=True)
    assert len(alone) == 6
    for results in ranks:
        assert results["figures"].keys() == alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(results["figures"][key], expected, rtol=PROMISE, atol=0)
