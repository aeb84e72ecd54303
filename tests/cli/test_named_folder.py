"""A run in a folder of its name goes on there, whoever starts it again; and runs as tasks of SLURM."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only as of_fabric
from pytorch_lightning.utilities import rank_zero_only

from contrastive_text import Run
from contrastive_text.cli import run as shell
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.run_log import LogRows

SLURM = {
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_ID": "1234567",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_NNODES": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "gpu[07-08],gpu12",
}
"""What srun gives to a single task."""
OF_FOUR = {"NTASKS": 4, "STEP_NUM_TASKS": 4, "NTASKS_PER_NODE": 2, "NNODES": 2}
LAST = {
    f"SLURM_{name}": str(value) for name, value in (OF_FOUR | {"PROCID": 3, "LOCALID": 1, "NODEID": 1}).items()
}
"""What is another way for the last of four tasks on two nodes."""


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes this process a task of SLURM's; afterwards it is none."""
    for found in (rank_zero_only, of_fabric):
        monkeypatch.setattr(found, "rank", 0)
    for name in ("MASTER_ADDR", "MASTER_PORT"):  # Lightning's SLURMEnvironment sets them
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def become(**changes: str) -> None:
        for name, value in (SLURM | changes).items():
            monkeypatch.setenv(name, value)

    return become


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(best_checkpoint(folder, "test")).weights)


@pytest.mark.slow  # four runs
def test_the_same_command_goes_on_where_slurm_stopped_it(
    tiny_words: list[str],
    here: Path,
    task: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A task is sent Lightning's signal, saves, and is requeued; the log has every step once."""
    words = ["fit", "--recipe", "simcse", *tiny_words]
    assert shell([*words, "--folder", "whole"]) == 0
    task()
    (here / "scontrol").write_text('#!/bin/sh\necho "$@" > requeued\n')
    (here / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here}{os.pathsep}{os.environ['PATH']}")
    with monkeypatch.context() as patch:
        start = SaveWhenStopped.on_train_batch_start

        def signalled(self: SaveWhenStopped, trainer: Any, *rest: Any) -> None:
            start(self, trainer, *rest)
            if trainer.global_step == 2:
                os.kill(os.getpid(), signal.SIGUSR1)

        patch.setattr(SaveWhenStopped, "on_train_batch_start", signalled)
        with pytest.raises(SystemExit) as left:
            shell([*words, "--folder", "mine"])
    assert left.value.code == 128 + signal.SIGUSR1
    assert (here / "requeued").read_text() == "requeue 1234567\n"
    assert not list(here.rglob("hpc_ckpt*"))
    assert "Requeued: scontrol requeue 1234567" in capfd.readouterr().out
    assert shell([*words, "--folder", "mine", "--model.optimizer.lr", "1"]) == 2
    assert "got others: model.optimizer.lr 1.0 instead of 3e-05; give the same" in capfd.readouterr().err
    assert shell([*words, "--folder", "mine"]) == 0
    assert "Going on in mine from mine/resume-step=3.ckpt: step 3" in capfd.readouterr().out
    whole, mine = weights(here / "whole"), weights(here / "mine")
    assert all(torch.equal(whole[name], mine[name]) for name in whole)
    assert (here / "mine" / "metrics.csv").read_bytes() == (here / "whole" / "metrics.csv").read_bytes()
    assert not list((here / "mine").glob("resume*"))
    assert shell([*words, "--folder", "mine"]) == 0
    assert "Finished before: mine, whose model is mine/model" in capfd.readouterr().out


def test_a_folder_and_processes_that_cannot_be_a_run_s_are_refused(
    tiny_words: list[str],
    here: Path,
    task: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Sequence[str]], str],
) -> None:
    words = ["fit", "--recipe", "simcse", *tiny_words]
    (here / "other").mkdir()
    (here / "other" / "notes.txt").write_text("mine")
    assert "got other with notes.txt and without config.yaml" in answer([*words, "--folder", "other"])
    named = [*words, "--folder", "mine"]
    assert "got trainer.logger false; drop that" in answer([*named, "--trainer.logger", "false"])
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
        assert "would begin anew; give --folder runs/NAME" in answer(words)
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in answer(named)
    task(SLURM_STEP_NUM_TASKS="2")
    assert "expected 2 processes, as many as were started, got 1 on each of 1 machines" in answer(words)
    assert not (here / "runs").exists()
    assert not (here / "mine").exists()


def test_a_task_of_slurm_knows_its_place_before_processes_meet(
    files: dict[str, str], here: Path, task: Callable[..., None]
) -> None:
    task(**LAST)
    options: dict[str, Any] = {"accelerator": "cpu", "num_workers": 0, "strategy": "ddp", "num_nodes": 2}
    with pytest.raises(
        ContrastiveTextError, match="expected 4 processes, as many as were started, got 1 on each"
    ):
        Run.from_recipe("simcse", encoder=files["bert"], train=files["texts"], **options)
    run = Run.from_recipe("simcse", encoder=files["bert"], train=files["texts"], devices=2, **options)
    trainer, environment = run.trainer, run.trainer.strategy.cluster_environment  # type: ignore[attr-defined]  # DDP's
    assert (trainer.world_size, trainer.global_rank, trainer.node_rank, trainer.local_rank) == (4, 3, 1, 1)
    assert not trainer.is_global_zero
    assert (environment.main_address, environment.main_port) == ("gpu07", 15000 + 4567)
    assert trainer.loggers[0].version == 0
    assert not (here / "runs").exists()  # the first process makes the folder


def test_a_log_is_taken_up_after_the_rows_of_a_checkpoint(tmp_path: Path) -> None:
    log = LogRows(str(tmp_path))
    log.log_metrics({"a": 1.0}, 0)
    assert log.save_for_checkpoint() == 1  # after the second step, whose figures come
    log.log_metrics({"a": 2.0, "b": 0.5}, 1)  # a figure that comes first now
    assert (log.count, log.metrics_keys) == (2, ["a", "b", "step"])
    log.log_metrics({"a": 3.0}, 2)
    log.save()
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4.0,")  # killed in the middle of a row
    again = LogRows(str(tmp_path))
    again.keep(count=1, step=2)
    again.log_metrics({"a": 3.0}, 2)
    again.save()
    assert (tmp_path / "metrics.csv").read_text().splitlines() == ["a,b,step", "1.0,,0", "2.0,0.5,1", "3.0,,2"]
    again.keep(count=0, step=0)
    assert (again.count, (tmp_path / "metrics.csv").read_text().split()) == (0, ["a,b,step"])
