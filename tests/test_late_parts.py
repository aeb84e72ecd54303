"""Siblings, guides, queues, momentum, prompts, widths, adapters and split weights, every two of them together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from covering import covering
from executions import RANKS, Execution, Outcome, compare, execute, module_of
from objective_cases import CASES, TRIPLE, Case, How, Known
from processes import free_ports, meeting, start_all
from torch import nn

from contrastive_text.encoders import LoRA
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    FalseNegatives,
    Matryoshka,
    Momentum,
    Objective,
    Queue,
    Siblings,
)
from contrastive_text.training.module import ContrastiveModule

RANKS_OF = "two uneven ranks"


class Parts(NamedTuple):
    """What is there; an empty name is absent."""

    siblings: str
    guide: str
    queue: str
    momentum: str
    prompts: str
    widths: str
    adapters: str
    split: str

    def __str__(self) -> str:
        return ", ".join(filter(None, self)) or "none"

    def objectives(self, how: How) -> dict[str, Objective]:
        objective: Objective = Contrastive(
            InfoNCE(0.2, **how),
            columns=[
                Duplicates(),
                Siblings("positive" if self.siblings else "mask"),
                *([FalseNegatives("teacher", absolute_margin=0.1)] if self.guide else []),
                *([Queue(40)] if self.queue else []),
                *([Momentum(0.5)] if self.momentum else []),
            ],
        )
        return {"c": Matryoshka(objective, dims=[4, 16], per_step=None) if self.widths else objective}

    @property
    def case(self) -> Case:
        guides: dict[str, Any] = {"guides": {"teacher": Known(7)}} if self.guide else {}
        return Case(self.objectives, slots=TRIPLE, prompted=bool(self.prompts), parts=lambda: guides)


EVERY = [Parts(*names) for names in itertools.product(*(("", name) for name in Parts._fields))]
COVERING = covering(EVERY[::-1])


def module_for(parts: Parts, execution: Execution, bert: str) -> ContrastiveModule:
    """Returns the module; its adapters have learned something."""
    adapted = {"model_name_or_path": bert, "adapters": LoRA(rank=4, alpha=8.0)} if parts.adapters else {}
    module = module_of(execution, **adapted)
    for name, weight in module.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    module.momentum.restart()
    return module


def cases() -> Any:
    return mock.patch.dict(CASES, {str(parts): parts.case for parts in COVERING})


def execution_of(parts: Parts) -> Execution:
    return Execution(str(parts), "no views", "packed", "chunked", "dense", RANKS_OF)


def work(number: int, port: int, bert: str, folder: str, wanted: list[tuple[str, ...]]) -> None:
    """One of two ranks."""
    found = {}
    plain = torch.load(Path(folder) / "plain.pt", weights_only=False)
    with cases(), meeting(number, world=len(RANKS[RANKS_OF]), port=port):
        for parts in itertools.starmap(Parts, wanted):
            execution = execution_of(parts)
            each = execute(execution, module_for(parts, execution, bert), split=bool(parts.split))
            found[tuple(parts)] = tuple(compare(each, plain[parts], moved=1e-3))
    torch.save(found, Path(folder) / f"{number}.pt")


@pytest.mark.slow
def test_what_came_late_is_right_together(bert: str, tmp_path: Path) -> None:
    plain = {}
    with cases():
        for parts in COVERING:
            alone = execution_of(parts).plain
            plain[parts] = execute(alone, module_for(parts, alone, bert))
    torch.save(plain, tmp_path / "plain.pt")
    start_all(work, 2, *free_ports(1), bert, str(tmp_path), [tuple(parts) for parts in plain])
    for path in (tmp_path / "0.pt", tmp_path / "1.pt"):
        found = torch.load(path, weights_only=True)
        assert len(found) == len(COVERING)
        for names, values in found.items():
            assert not Outcome(*values).wrong, Parts(*names)
