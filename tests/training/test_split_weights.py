"""Weights split over ranks: the gradient of one process, and as many parts of a step on every rank."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny
import torch
import torch.distributed as dist
from covering import Pair, covering, pairs, turn_of
from executions import PARTS, RANKS, VIEWS, Execution, Outcome, compare, execute, module_of
from objective_cases import CASES
from processes import free_ports, meeting, of_two_ranks, start_all
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from contrastive_text.core.distributed import full_tensor, local_tensor
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders import LoRA
from contrastive_text.encoders.packing import equalize_groups
from contrastive_text.training import LogGradients, PCGrad
from contrastive_text.training.callbacks.chunk_size import ChunkSize
from contrastive_text.training.fsdp2 import average_gradients, clip_gradients, unshared_blocks
from contrastive_text.training.module import ContrastiveModule


class Way(NamedTuple):
    """One choice of every axis, by name."""

    case: str
    views: str
    layout: str
    parts: str
    trained: str

    def execution(self, ranks: str) -> Execution:
        return Execution(self.case, self.views, self.layout, self.parts, "dense", ranks)


EVERY = [
    way
    for names in itertools.product(CASES, VIEWS, ("packed", "padded"), PARTS, ("all weights", "LoRA"))
    if "PCGrad" not in (way := Way(*names)).case
    and not (way.trained == "LoRA" and "decoder" in way.case)
    and not CASES[way.case].asymmetric  # refused with split weights
    and not (CASES[way.case].in_context and way.views != "no views")
]


def once(way: tuple[str, ...]) -> set[Pair]:
    """Returns every two choices of a way, but of its objectives these alone."""
    case, *_ = enumerate(way)
    return {pair for pair in pairs(way) if case not in pair} | {(case, case)}


WAYS = {"two uneven ranks": covering(EVERY, once), "three uneven ranks": covering(EVERY[::-1], once)}


def module_for(way: Way, ranks: str, bert: str) -> ContrastiveModule:
    """Returns the module of a way; its adapters have learned something."""
    adapted = {"model_name_or_path": bert, "adapters": LoRA(rank=4, alpha=8.0)}
    module = module_of(way.execution(ranks), **(adapted if way.trained == "LoRA" else {}))
    for name, weight in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    return module


def work(number: int, port: int, ranks: str, bert: str, folder: str, ways: list[tuple[str, ...]]) -> None:
    """One of some ranks."""
    found = {}
    plain = torch.load(Path(folder) / "plain.pt", weights_only=False)
    with meeting(number, world=len(RANKS[ranks]), port=port):
        for way in itertools.starmap(Way, ways):
            split = execute(way.execution(ranks), module_for(way, ranks, bert), split=True)
            found[tuple(way)] = tuple(compare(split, plain[way.case, way.views, way.trained], moved=1e-3))
    torch.save(found, Path(folder) / f"{number}.pt")


def run(ranks: str, ways: list[Way], bert: str, folder: Path) -> dict[Way, list[Outcome]]:
    """Returns the outcomes of ways on every rank, against the plain step of one process."""
    alone = {(way.case, way.views, way.trained): way for way in ways}
    plain = {
        key: execute(way.execution(ranks).plain, module_for(way._replace(layout="padded"), "one process", bert))
        for key, way in alone.items()
    }
    for found in plain.values():  # the gradients of single objectives are not logged with split weights
        found.loss = {"loss": found.loss["loss"]}
    torch.save(plain, folder / "plain.pt")
    start_all(work, len(RANKS[ranks]), *free_ports(1), ranks, bert, str(folder), [tuple(way) for way in ways])
    found = [torch.load(path, weights_only=True) for path in sorted(folder.glob("[0-9].pt"))]
    return {way: [Outcome(*each[tuple(way)]) for each in found] for way in ways}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", turn_of(WAYS, 2))
def test_split_weights_give_the_plain_step_s_gradient_and_weights_with_every_objective(
    ranks: str, bert: str, tmp_path: Path
) -> None:
    assert {way.case for way in WAYS[ranks]} == {way.case for way in EVERY}
    assert len(WAYS[ranks]) <= 26
    for way, outcomes in run(ranks, WAYS[ranks], bert, tmp_path).items():
        assert not any(outcome.wrong for outcome in outcomes), (way, outcomes)
        if way.parts == "chunked":
            assert all(outcome.seen["checkpoints"] for outcome in outcomes), way
            assert len({len(outcome.seen["shapes"]) for outcome in outcomes}) == 1, way


PARTS_OF = [([5], [3]), ([2, 2, 2, 1], [4]), ([1, 1, 1, 1, 1], [1, 1]), ([3, 2], [2, 2])]
"""Rows of each part on two ranks, before they agree."""


def on_two_ranks(number: int) -> dict[str, Any]:
    """Returns what a rank finds."""
    found: dict[str, Any] = {"parts": []}
    for sizes in PARTS_OF:
        parts = equalize_groups([*torch.arange(sum(sizes[number])).split(sizes[number])], torch.device("cpu"))
        assert torch.cat(parts).tolist() == list(range(sum(sizes[number])))
        found["parts"].append([len(part) for part in parts])
    mesh = init_device_mesh("cpu", (2,))
    split, alone = (
        nn.Parameter(distribute_tensor(torch.zeros(5), mesh, [Shard(0)])),
        nn.Parameter(torch.zeros(())),
    )
    gradient = torch.arange(5.0) - 1
    split.grad, alone.grad = distribute_tensor(gradient, mesh, [Shard(0)]), torch.tensor(7.0) if number else None
    average_gradients([alone, nn.Parameter(torch.zeros(()))])
    clip_gradients([split, alone], 2.0, None)
    found["norm"] = [full_tensor(split.grad), alone.grad]
    split.grad, alone.grad = distribute_tensor(gradient, mesh, [Shard(0)]), torch.tensor(3.5)
    clip_gradients([split, alone], 2.0, "value")
    found["value"] = [full_tensor(split.grad), alone.grad]
    assert isinstance(split.grad, DTensor) and len(local_tensor(split.grad)) == 3 - number
    return found


def test_ranks_agree_on_parts_and_on_clipped_gradients(tmp_path: Path) -> None:
    first, second = of_two_ranks(on_two_ranks, tmp_path)
    assert first["parts"] == [[5], [2, 2, 2, 1], [1, 4], [3, 2]]
    assert second["parts"] == [[3], [1, 1, 1, 1], [1, 1], [2, 2]]
    for found in (first, second):
        weights = [nn.Parameter(torch.zeros(5)), nn.Parameter(torch.zeros(()))]
        weights[0].grad, weights[1].grad = torch.arange(5.0) - 1, torch.tensor(3.5)
        nn.utils.clip_grad_norm_(weights, 2.0)
        for got, weight in zip(found["norm"], weights, strict=True):
            torch.testing.assert_close(got, weight.grad)
        assert found["value"][0].tolist() == [-1, 0, 1, 2, 2] and float(found["value"][1]) == 2


def test_blocks_whose_weights_others_have_too_are_not_split_alone() -> None:
    def module(case: str) -> ContrastiveModule:
        return module_of(Execution(case, "no views", "packed", "whole", "dense", "one process"))

    plain, keyed = module("InfoNCE"), module("queue of keys, and queue of keys alone")
    assert unshared_blocks(plain) == [*plain.encoder.model.encoder.layer]
    assert len(unshared_blocks(keyed)) == 6  # of the encoder and of two that follow it
    tied = module("denoising decoder, InfoNCE")
    assert unshared_blocks(tied) == []  # all are the decoder's as well


@pytest.mark.parametrize(
    ("parts", "callbacks", "expected"),
    [
        ({"combine": PCGrad()}, [], r"model\.combine: expected no PCGrad with fsdp2"),
        ({}, [LogGradients()], r"trainer\.callbacks: expected no LogGradients with fsdp2"),
        ({}, [ChunkSize()], "chunk: expected a number of tokens with fsdp2"),
    ],
)
def test_what_needs_whole_weights_is_refused(
    parts: dict[str, Any], callbacks: list[Any], expected: str, bert: str, tmp_path: Path
) -> None:
    module: ContrastiveModule = tiny.module(bert, **parts)
    trainer = tiny.trainer(tmp_path, strategy="fsdp2", callbacks=callbacks)
    try:
        with pytest.raises(InvalidValueError, match=expected):
            trainer.fit(module, tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    finally:
        dist.destroy_process_group()
