"""Logged figures over ranks: those of one process, also where ranks have different numbers of rows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import several
import tiny
import torch
from processes import of_two_ranks
from torch import Tensor

from contrastive_text.data import AllTasks
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import ProjectorHead
from contrastive_text.losses import BarlowTwins
from contrastive_text.objectives import Contrastive, Duplicates, MaskedLM, Momentum, Queue, Siblings, WholeBatch
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import MaskTokens

STEPS = 3
ROUNDING = 1e-9
"""Sums in float64 are taken in another order."""


def figures(_: int, folder: str, masked: str) -> list[dict[str, Tensor]]:
    """Returns the figures of the first steps: seven rows of each task, four and three on two ranks."""
    torch.manual_seed(0)
    keyed = Contrastive(
        task="sst", head=ProjectorHead(), columns=[Duplicates(), Siblings(), Queue(20), Momentum(0.9)]
    )
    several_tasks = several.objectives(contrastive=keyed)
    objectives = {**several_tasks, "barlow": WholeBatch(BarlowTwins(), task="sst"), "mlm": MaskedLM(task="quora")}
    views = {"quora": {"anchor": [MaskTokens(0.5)]}}
    module = ContrastiveModule(
        TransformerEncoder(masked, dropout=0.0),
        objectives=objectives,
        views=views,  # type: ignore[arg-type]  # of roles
    ).double()
    data = several.data(several.write_tasks(Path(folder)), AllTasks(), batch_size=7, drop_last=False)
    data.attach(module)
    data.setup("fit")
    found = []
    for number, batch in enumerate(itertools.islice(data.train_dataloader(), STEPS)):
        module.training_step(batch, number)
        found.append(dict(module.figures))
    return found


@pytest.mark.slow
def test_figures_of_uneven_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    masked = tiny.save_masked_lm(tmp_path / "masked")
    whole = figures(0, str(tmp_path / "whole"), masked)
    for ranks in of_two_ranks(figures, tmp_path, str(tmp_path / "shared"), masked):
        for once, each in zip(whole, ranks, strict=True):
            assert once.keys() == each.keys()
            assert {"contrastive/uniformity", "sentiment/accuracy", "mlm/accuracy"} <= once.keys()
            for name, figure in once.items():
                torch.testing.assert_close(each[name], figure, rtol=ROUNDING, atol=ROUNDING, msg=name)
