"""Two and three gloo processes against one: values, and gradients after DDP's mean."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrastive_text.distributed import (
    gather_rows,
    gather_sizes,
    is_distributed,
    rank,
    sum_over_ranks,
    world_size,
)
from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE, Loss, NTXent, reduce
from contrastive_text.objectives import Contrastive
from contrastive_text.types import Encoded, Slot

# The house's promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
SPLITS = {2: {"equal": (3, 3), "uneven": (5, 2)}, 3: {"equal": (2, 2, 2), "uneven": (4, 1, 2)}}


@dataclass(frozen=True)
class Case:
    """What is compared: a loss, hard negatives and positives per example, a train-only head, duplicates."""

    loss: Loss
    negatives: int = 0
    positives: int = 1
    head: bool = False
    duplicates: bool = False


CASES = {
    "info_nce": Case(InfoNCE(temperature=0.2)),
    "info_nce hard": Case(InfoNCE(temperature=0.2, hard_negative_log_weight=0.7), negatives=2),
    "info_nce two-sided hard": Case(InfoNCE(temperature=0.2, reduction="two_sided"), negatives=1),
    "info_nce sum duplicates": Case(InfoNCE(temperature=0.2, reduction="sum"), negatives=1, duplicates=True),
    "nt_xent": Case(NTXent(temperature=0.2)),
    "nt_xent hard": Case(NTXent(temperature=0.2), negatives=2, duplicates=True),
    "nt_xent sum": Case(NTXent(temperature=0.2, reduction="sum")),
    "nt_xent two-sided positives": Case(NTXent(temperature=0.2, reduction="two_sided"), positives=2),
    "nt_xent head": Case(NTXent(temperature=0.2), negatives=1, head=True),
}


class Model(nn.Module):
    """A linear encoder and the objective behind it, as DDP wraps them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(5, 4)
        self.objective = Contrastive(loss=case.loss, head=TanhHead() if case.head else None)
        self.objective.build(4)
        self.double()

    def forward(self, x: Tensor, slots: tuple[Slot, ...], ids: Tensor) -> Tensor:
        """The loss as the module scales it: this rank's total times W over the global count."""
        terms = self.objective(Encoded(self.encoder(x), slots, text_ids=ids))
        count = sum_over_ranks(torch.tensor(float(terms.count)))
        return reduce(terms.total * world_size(), count, terms.reduction)


def data(case: Case, total: int) -> tuple[Tensor, tuple[Slot, ...], Tensor]:
    """Inputs (slots, N, 5) and ids (slots, N) of all ranks."""
    slots = (
        Slot("anchor", 0),
        *(Slot("positive", i) for i in range(case.positives)),
        *(Slot("negative", i) for i in range(case.negatives)),
    )
    noise = torch.Generator().manual_seed(total)
    x = torch.randn(len(slots), total, 5, generator=noise, dtype=torch.float64)
    ids = torch.arange(len(slots) * total).reshape(len(slots), total)
    if case.duplicates:
        ids = ids % 5  # a text of one rank occurs again on another
    return x, slots, ids


def step(case: Case, total: int, part: slice) -> dict[str, Tensor]:
    """Loss and gradients of one step on a part of the examples; DDP takes the mean over ranks."""
    x, slots, ids = data(case, total)
    model = Model(case)
    wrapped = DistributedDataParallel(model) if is_distributed() else model
    loss = wrapped(x[:, part].flatten(0, 1), slots, ids[:, part].flatten())
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": sum_over_ranks(loss) / world_size(), **gradients}


def ddp_gather(vectors: dict[str, Any], gather: str) -> Tensor:
    """The gradient of V:ddp_gather's example with one of three gathers, after the mean over two ranks."""
    weight = torch.tensor(vectors["W"], dtype=torch.float64, requires_grad=True)
    rows = vectors[f"rank{rank()}_rows"]
    a, p = (
        torch.tensor(vectors[name], dtype=torch.float64)[rows] @ weight for name in ("anchors_x", "positives_x")
    )
    if gather == "full":
        slots = (Slot("anchor", 0), Slot("positive", 0))
        encoded = Encoded(torch.cat([a, p]), slots, text_ids=4 * rank() + torch.arange(4))
        terms = Contrastive(loss=NTXent(vectors["tau"]))(encoded)
        loss = terms.total * world_size() / sum_over_ranks(torch.tensor(float(terms.count)))
    else:
        pick = reference.own_gradient_gather if gather == "own" else (lambda rows: rows)
        loss = NTXent(vectors["tau"])(pick(a), pick(p))
    loss.backward()
    assert weight.grad is not None
    return sum_over_ranks(weight.grad) / world_size()


def work(number: int, world: int, port: int, folder: str, vectors: dict[str, Any]) -> None:
    """One rank: every check of this file, its results written to the folder."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=number,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    results: dict[str, Any] = {"place": (is_distributed(), rank(), world_size())}
    for split, sizes in SPLITS[world].items():
        start = sum(sizes[:number])
        part = slice(start, start + sizes[number])
        for name, case in CASES.items():
            results[f"{split} {name}"] = step(case, total=sum(sizes), part=part)
    rows = torch.arange(3.0 * (number + 1)).reshape(number + 1, 3) + 100 * number
    sizes = gather_sizes(len(rows), device=rows.device)
    results["sizes"], results["rows"] = sizes, gather_rows(rows, sizes)
    results["ids"] = gather_rows(torch.arange(number + 1) + 2**60, sizes)
    empty = gather_sizes(0 if number == 0 else 2, device=rows.device)
    some = torch.ones(empty[number], 3, requires_grad=True)
    gather_rows(some, empty).sum().backward()
    results["empty"] = some.grad
    total = torch.tensor(float(number + 1), requires_grad=True)
    results["sum"] = sum_over_ranks(total)
    if world == 2 and vectors:
        results["ddp_gather"] = {gather: ddp_gather(vectors, gather) for gather in ("own", "full", "none")}
    torch.save(results, Path(folder) / f"{number}.pt")
    dist.destroy_process_group()


Results = list[dict[str, Any]]


def spawn(world: int, folder: Path, vectors: dict[str, Any]) -> Results:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, args=(world, port, str(folder), vectors), nprocs=world)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(world)]


@pytest.fixture(scope="module", params=[2, 3], ids=["two ranks", "three ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """The results of every rank; one start of the processes serves all tests."""
    world: int = request.param
    vectors = request.getfixturevalue("vectors")["ddp_gather"] if world == 2 else {}
    yield spawn(world, tmp_path_factory.mktemp("ranks"), vectors)


@pytest.mark.parametrize("split", ["equal", "uneven"])
@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_many_ranks_is_that_of_one_process(ranks: Results, split: str, name: str) -> None:
    total = sum(SPLITS[len(ranks)][split])
    alone = step(CASES[name], total=total, part=slice(None))
    scale = max(float(g.abs().max()) for key, g in alone.items() if key != "loss")
    assert scale > 0
    for results in ranks:
        reached = results[f"{split} {name}"]
        assert reached.keys() == alone.keys()
        for key, expected in alone.items():
            torch.testing.assert_close(reached[key], expected.detach(), rtol=0, atol=PROMISE * scale)


def test_l10_own_gradients_give_half_and_no_gather_a_third_value(ranks: Results, vectors: dict[str, Any]) -> None:
    if len(ranks) != 2:
        pytest.skip("the published example has two ranks")
    case = vectors["ddp_gather"]
    full, own, none = (
        torch.tensor(case[name], dtype=torch.float64)
        for name in (
            "full_batch_grad_W",
            "gather_with_own_grads_then_ddp_mean_grad_W",
            "no_gather_ddp_mean_grad_W",
        )
    )
    for results in ranks:
        reached = results["ddp_gather"]
        # Printed with ten digits; the sheet's tolerance is 1e-6.
        torch.testing.assert_close(reached["full"], full, rtol=0, atol=1e-6)
        torch.testing.assert_close(reached["own"], own, rtol=0, atol=1e-6)
        torch.testing.assert_close(reached["none"], none, rtol=0, atol=1e-6)
        # Ours against the reference: float64.
        torch.testing.assert_close(
            reached["own"], reached["full"] / 2, rtol=0, atol=PROMISE * float(full.abs().max())
        )


def test_every_rank_sees_all_rows_in_rank_order(ranks: Results) -> None:
    world = len(ranks)
    rows = torch.cat([torch.arange(3.0 * (r + 1)).reshape(r + 1, 3) + 100 * r for r in range(world)])
    ids = torch.cat([torch.arange(r + 1) + 2**60 for r in range(world)])
    for number, results in enumerate(ranks):
        assert results["place"] == (True, number, world)
        assert results["sizes"] == list(range(1, world + 1))
        assert torch.equal(results["rows"], rows)
        assert torch.equal(results["ids"], ids)  # 64-bit ids come whole, not through a float


def test_a_rank_without_rows_takes_part(ranks: Results) -> None:
    world = len(ranks)
    assert ranks[0]["empty"].shape == (0, 3)
    # Every rank's sum sees every row once: the gradient counts the ranks.
    assert all(torch.equal(results["empty"], torch.full((2, 3), float(world))) for results in ranks[1:])


def test_sum_over_ranks_adds_up_and_carries_no_gradient(ranks: Results) -> None:
    for results in ranks:
        assert float(results["sum"]) == sum(range(1, len(ranks) + 1))
        assert not results["sum"].requires_grad


def test_one_process_gathers_nothing_and_keeps_the_tensor() -> None:
    rows = torch.ones(2, 3, requires_grad=True)
    assert (is_distributed(), rank(), world_size()) == (False, 0, 1)
    assert gather_sizes(2, device=rows.device) == [2]
    assert gather_rows(rows, [2]) is rows
    total = sum_over_ranks(rows)
    assert torch.equal(total, rows)
    assert not total.requires_grad
