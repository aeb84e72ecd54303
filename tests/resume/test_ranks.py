"""Over another number of ranks a run goes on with the same global batches; there rounding differs."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import several
import tiny
import torch
from processes import free_ports, start_all
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.strategies import DDPStrategy
from resume.runs import KeepValidated, check_equal, flat, run
from torch import Tensor
from torch.distributed.tensor import DTensor

from contrastive_text.core.errors import RunError
from contrastive_text.data import BatchRoundRobin, TextTask
from contrastive_text.training.callbacks.every_run import StopWhenDiverged

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own


RANK_STEPS = 8
TOLERANCE = 1e-9
"""Of weights in float64: sums over two ranks are rounded otherwise."""


def exact(folder: Path, bert: str, tasks: dict[str, TextTask], **options: Any) -> dict[str, Tensor]:
    """A run in float64 without dropout; seven rows a task don't go evenly into two, nor into the last batches."""
    data = {"batch_size": 7, "drop_last": False}
    fixed: dict[str, Any] = {"precision": "64-true", "dropout": 0.0, "data": data, "steps": RANK_STEPS}
    return run(folder, bert, several.fewer(tasks), **fixed, **options)


def become_rank(number: int, port: int, world: int = 2) -> None:
    """Makes this process one of some ranks, as far as Lightning asks."""
    # Forked before the mark above holds.
    warnings.filterwarnings("ignore", "The dirpath has changed")
    torch.set_num_threads(1)
    place = {
        "LOCAL_RANK": number,
        "NODE_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": world,
    }
    os.environ |= {name: str(value) for name, value in place.items()}


def start_ranks(function: Any, *words: object, world: int = 2) -> None:
    """Runs a function of the rank, a port and some words in some processes."""
    start_all(function, world, *free_ports(1), *words)


def two() -> dict[str, Any]:
    """Returns the trainer's options of two ranks."""
    strategy = DDPStrategy(process_group_backend="gloo", find_unused_parameters=True)
    return {"devices": 2, "strategy": strategy}


def rank_of_two(number: int, port: int, bert: str, folder: str, resume: str) -> None:
    """One of two ranks: a run from the start, and one from the checkpoint of a process alone."""
    become_rank(number, port)
    tasks = several.write_tasks(Path(folder) / f"data{number}")
    for name, start in (("two", None), ("one then two", resume)):
        weights = exact(Path(folder) / name, bert, tasks, resume=start, **two())
        torch.save(weights, Path(folder) / f"{name} {number}.pt")


@pytest.mark.slow  # two processes import torch and Lightning
def test_another_number_of_ranks_goes_on_with_the_same_global_batches(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = exact(tmp_path / "one", bert, tasks)
    start_ranks(rank_of_two, bert, str(tmp_path), str(tmp_path / "one" / "step=4.ckpt"))
    resume = str(tmp_path / "two" / "step=4.ckpt")
    reached = {"two then one": exact(tmp_path / "two then one", bert, tasks, resume=resume)}
    for name in ("two", "one then two"):
        each = [torch.load(tmp_path / f"{name} {number}.pt", weights_only=True) for number in range(2)]
        check_equal(*each)
        reached[name] = each[0]
    moved = dict(flat(torch.load(tmp_path / "one" / "step=4.ckpt", weights_only=True)["state_dict"]))
    assert max(float((whole[name] - moved[name]).abs().max()) for name in whole) > 1e-5
    for found in reached.values():
        for name, weight in whole.items():
            assert float((found[name] - weight).abs().max()) <= TOLERANCE, name


class LostOnOneRank(StopWhenDiverged):
    """Sees a loss of NaN on the second rank alone."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:
        lost = trainer.global_rank == 1 and trainer.global_step == 3
        super().on_train_batch_end(trainer, pl_module, outputs["loss"] * (math.nan if lost else 1.0), *rest)


def window_on_two_ranks(number: int, port: int, bert: str, folder: str) -> None:
    """One of two ranks: a run validated inside a step, the same resumed, and one that is lost."""
    become_rank(number, port)
    tasks = several.write_tasks(Path(folder) / f"data{number}")
    pairs = tiny.write_pairs(Path(folder) / f"pairs{number}.tsv")

    def fit(name: str, *callbacks: Callback, resume: str | None = None) -> dict[str, Tensor]:
        return run(
            Path(folder) / name,
            bert,
            tasks,
            steps=5,
            mixture=BatchRoundRobin(),
            accumulate=2,
            resume=resume,
            callbacks=(KeepValidated(Path(folder) / name / "validated"), *callbacks),
            data={"validation": pairs},
            val_check_interval=3,
            check_val_every_n_epoch=None,
            **two(),
        )

    torch.save(fit("whole"), Path(folder) / f"whole {number}.pt")
    inside = str(Path(folder) / "whole" / "validated" / "1.ckpt")
    torch.save(fit("again", resume=inside), Path(folder) / f"again {number}.pt")
    with pytest.raises(RunError, match=r"^step 3: expected a finite loss, got (nan|none on another rank)"):
        fit("lost", LostOnOneRank())


@pytest.mark.slow  # two processes import torch and Lightning
def test_two_ranks_keep_the_gradient_of_a_begun_step_and_end_together(bert: str, tmp_path: Path) -> None:
    start_ranks(window_on_two_ranks, bert, str(tmp_path))
    each = [torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pt"))]
    assert len(each) == 4
    for other in each[1:]:
        check_equal(each[0], other)


class AreSplit(Callback):
    """Sees to it that weights are split."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        split = [isinstance(weight, DTensor) for weight in pl_module.encoder.model.encoder.parameters()]
        assert split and all(split)


def split_ranks(number: int, port: int, bert: str, folder: str, runs: list[tuple[str, str | None]]) -> None:
    """One of some ranks with split weights: runs from the start or from a checkpoint."""
    world = int(runs[0][0].split()[-1])
    become_rank(number, port, world)
    tasks = several.write_tasks(Path(folder) / f"data{number}")
    for name, start in runs:
        options: dict[str, Any] = {"devices": world, "strategy": "fsdp2", "callbacks": (AreSplit(),)}
        weights = exact(Path(folder) / name, bert, tasks, resume=start, **options)
        torch.save(weights, Path(folder) / f"{name} of {number}.pt")


@pytest.mark.slow  # five processes import torch and Lightning
def test_split_weights_go_on_over_other_ranks_and_unsplit(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = exact(tmp_path / "one", bert, tasks)
    alone, of_two = str(tmp_path / "one" / "step=4.ckpt"), str(tmp_path / "split 2" / "step=4.ckpt")
    runs = [("split 2", None), ("1 then split 2", alone), ("again split 2", of_two)]
    start_ranks(split_ranks, bert, str(tmp_path), runs)
    start_ranks(split_ranks, bert, str(tmp_path), [("split 2 then split 3", of_two)], world=3)
    reached = {"split 2 then 1": exact(tmp_path / "split 2 then 1", bert, tasks, resume=of_two)}
    for name in (*(name for name, _ in runs), "split 2 then split 3"):
        each = [torch.load(path, weights_only=True) for path in sorted(tmp_path.glob(f"{name} of *.pt"))]
        assert len(each) == int(name[-1])
        for other in each[1:]:
            check_equal(each[0], other)
        reached[name] = each[0]
    check_equal(reached["split 2"], reached["again split 2"])  # to the last bit
    for name, found in reached.items():
        assert found.keys() == whole.keys()
        for weight, value in whole.items():
            assert float((found[weight] - value).abs().max()) <= TOLERANCE, (name, weight)
