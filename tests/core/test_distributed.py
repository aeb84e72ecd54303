"""Three and two gloo processes: what each gets of the others, and its gradient.

One start of three processes serves every test: they meet as three, then two of them as two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from processes import free_ports, meeting, start_all
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import (
    gather_all,
    gather_rows,
    gather_sizes,
    is_distributed,
    means_over_ranks,
    rank,
    sum_over_ranks,
    world_size,
)
from contrastive_text.core.types import Slot
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10


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


def meet(number: int, world: int, port: int, vectors: dict[str, Any]) -> dict[str, Any]:
    """One rank's results of every check of this file."""
    with meeting(number, world=world, port=port):
        results: dict[str, Any] = {"place": (is_distributed(), rank(), world_size())}
        rows = torch.arange(3.0 * (number + 1)).reshape(number + 1, 3) + 100 * number
        sizes = gather_sizes(len(rows), device=rows.device)
        results["sizes"] = sizes
        mixed = {"flags": rows[:, 0] > 50, "halves": rows.bfloat16(), "exact": rows.double() / 3}
        mixed["ids"] = torch.arange(number + 1) + 2**60
        leaf = mixed["exact"].requires_grad_()
        together = dict(zip(mixed, gather_all(list(mixed.values()), sizes), strict=True))
        results["together"] = {name: each.detach() for name, each in together.items()}
        results["differentiable"] = [name for name, each in together.items() if each.requires_grad]
        (together["exact"] * torch.arange(1.0, sum(sizes) + 1).double().unsqueeze(1)).sum().backward()
        results["together gradient"] = leaf.grad
        empty = gather_sizes(0 if number == 0 else 2, device=rows.device)
        some = torch.ones(empty[number], 3, requires_grad=True)
        gather_rows(some, empty).sum().backward()
        results["empty"] = some.grad
        total = torch.tensor(float(number + 1), requires_grad=True)
        results["sum"] = sum_over_ranks(total)
        figures = {"exact": total.double() / 3, "half": total.bfloat16()}
        results["means"] = means_over_ranks(figures if number else dict(reversed(figures.items())))
        if world == 2:
            results["ddp_gather"] = {gather: ddp_gather(vectors, gather) for gather in ("own", "full", "none")}
    return results


def work(number: int, ports: dict[int, int], folder: str, vectors: dict[str, Any]) -> None:
    """One process: a rank among three, then, but for the last, among two."""
    results = {
        world: meet(number, world=world, port=port, vectors=vectors)
        for world, port in ports.items()
        if number < world
    }
    torch.save(results, Path(folder) / f"{number}.pt")


Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def worlds(vectors: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Results]:
    """World size -> the results of every rank."""
    folder = tmp_path_factory.mktemp("ranks")
    ports = dict(zip((3, 2), free_ports(2), strict=True))
    start_all(work, 3, ports, str(folder), vectors["ddp_gather"])
    found = [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(3)]
    return {world: [results[world] for results in found[:world]] for world in ports}


@pytest.fixture(params=[2, 3], ids=["two", "three"])
def ranks(request: pytest.FixtureRequest, worlds: dict[int, Results]) -> Results:
    """The results of every rank."""
    return worlds[request.param]


def test_l10_own_gradients_give_half_and_no_gather_a_third_value(
    worlds: dict[int, Results], vectors: dict[str, Any]
) -> None:
    keys = {
        "full": "full_batch_grad_W",
        "own": "gather_with_own_grads_then_ddp_mean_grad_W",
        "none": "no_gather_ddp_mean_grad_W",
    }
    for results in worlds[2]:
        reached = results["ddp_gather"]
        for name, key in keys.items():
            expected = torch.tensor(vectors["ddp_gather"][key], dtype=torch.float64)
            # Printed with ten digits; the sheet's tolerance is 1e-6.
            torch.testing.assert_close(reached[name], expected, rtol=0, atol=1e-6)
        # Ours against the reference: float64.
        scale = float(reached["full"].abs().max())
        torch.testing.assert_close(reached["own"], reached["full"] / 2, rtol=0, atol=PROMISE * scale)


def test_every_rank_gets_the_rows_of_all_in_rank_order_whatever_their_type_and_their_gradient(
    ranks: Results,
) -> None:
    world = len(ranks)
    rows = torch.cat([torch.arange(3.0 * (r + 1)).reshape(r + 1, 3) + 100 * r for r in range(world)])
    expected = {"flags": rows[:, 0] > 50, "halves": rows.bfloat16(), "exact": rows.double() / 3}
    # 64-bit ids come whole, not through a float.
    expected["ids"] = torch.cat([torch.arange(r + 1) + 2**60 for r in range(world)])
    places = torch.arange(1.0, len(rows) + 1).split(list(range(1, world + 1)))
    for number, (results, own) in enumerate(zip(ranks, places, strict=True)):
        assert results["place"] == (True, number, world)
        assert results["sizes"] == list(range(1, world + 1))
        for name, each in expected.items():
            assert results["together"][name].dtype == each.dtype
            assert torch.equal(results["together"][name], each)
        assert results["differentiable"] == ["exact"]
        # Every rank's sum has each row by the number of its place.
        assert torch.equal(results["together gradient"], world * own.double().unsqueeze(1).expand(-1, 3))


def test_a_rank_without_rows_takes_part(ranks: Results) -> None:
    world = len(ranks)
    assert ranks[0]["empty"].shape == (0, 3)
    # Every rank's sum sees every row once: the gradient counts the ranks.
    assert all(torch.equal(results["empty"], torch.full((2, 3), float(world))) for results in ranks[1:])


def test_sum_over_ranks_adds_up_and_carries_no_gradient(ranks: Results) -> None:
    for results in ranks:
        assert float(results["sum"]) == sum(range(1, len(ranks) + 1))
        assert not results["sum"].requires_grad


def test_means_of_figures_are_of_their_names_and_in_their_precision(ranks: Results) -> None:
    mean = (len(ranks) + 1) / 2
    for results in ranks:
        exact, half = results["means"]["exact"], results["means"]["half"]
        assert (exact.dtype, half.dtype) == (torch.float64, torch.float32)
        assert float(exact) == pytest.approx(mean / 3, rel=1e-15)
        assert float(half) == mean
        assert not exact.requires_grad


def test_one_process_gathers_nothing_and_keeps_the_tensor() -> None:
    rows = torch.ones(2, 3, requires_grad=True)
    assert (is_distributed(), rank(), world_size()) == (False, 0, 1)
    assert gather_sizes(2, device=rows.device) == [2]
    assert gather_rows(rows, [2]) is rows
    total = sum_over_ranks(rows)
    assert torch.equal(total, rows)
    assert not total.requires_grad
