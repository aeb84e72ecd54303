"""The folder of a run: a run starts, resumes or has finished there, under SLURM too, and writes there alone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.rank_zero import rank_zero_only as of_fabric
from pytorch_lightning.utilities import rank_zero_only
from shells import Shell

from contrastive_text import Run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.core.storage.disk import hold_lock
from contrastive_text.data import TextDataModule
from contrastive_text.recipes.layers import read_config
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run_folder import LockFolders, RunFolder
from contrastive_text.training.run_log import LogRows, RunLogger


class Killed(Exception):
    """Stands for a kill."""


def kill_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Ends the next run in a step, without a word to any callback."""

    def start(self: Any, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG001  # Lightning's
        if trainer.global_step == step:
            raise Killed

    patch.setattr(LockFolders, "on_train_batch_start", start, raising=False)


def assert_same_run(one: Path, other: Path) -> None:
    whole, again = (read_checkpoint(best_checkpoint(folder, "test")).weights for folder in (one, other))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_a_run_that_is_killed_before_its_first_validation_resumes_in_its_folder(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = here / "runs"
    shell("FIT TINY")
    assert not list(runs.glob("*/resume*"))
    with monkeypatch.context() as patch:
        kill_at(4, patch)
        assert shell.status("FIT TINY --resumable.minutes 0") == 1
    (path,) = (runs / "version_1").glob("*.ckpt")
    assert path.name == "resume-step=4.ckpt"  # one of four
    shutil.copytree(runs / "version_1", here / "damaged")
    said = shell("fit --resume runs/version_1").out
    assert "Resuming runs/version_1 from runs/version_1/resume-step=4.ckpt: step 4" in said
    assert_same_run(runs / "version_0", runs / "version_1")
    said = shell("fit --resume runs/version_1").out
    assert "Finished before: runs/version_1, whose model is runs/version_1/model" in said

    # A damaged checkpoint is skipped for an older one, and alone it is refused.
    newest = here / "damaged" / "resume-step=4.ckpt"
    newest.write_bytes(newest.read_bytes()[:-9])
    older = newest.with_name("resume-step=3.ckpt")
    os.link(best_checkpoint(runs / "version_0", "test"), older)
    said = shell.refused("fit --resume nowhere")
    assert "expected a run folder with config.yaml, found none at nowhere" in said
    said = shell.refused("fit --resume damaged --model.optimizer.lr 1")
    assert "got model.optimizer.lr 1.0 instead of 3e-05" in said
    said = shell("fit --resume damaged --trainer.max_steps 5").out
    assert "Left out: damaged/resume-step=4.ckpt: expected a whole checkpoint" in said
    assert "Resuming damaged from damaged/resume-step=3.ckpt: step 5" in said


@pytest.mark.slow
def test_a_run_whose_folder_was_moved_keeps_its_best_checkpoint(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rate changes no order of the cosines, so the first stays the best.
    validated = "--data.validation PAIRS --trainer.val_check_interval 1 --model.optimizer.lr 1e-9"
    with monkeypatch.context() as patch:
        kill_at(4, patch)
        assert shell.status(f"FIT TINY {validated} --resumable.minutes 0") == 1
    run, moved = here / "runs" / "version_0", here / "elsewhere"
    (path,) = run.glob("resume-step=4.ckpt")
    assert Path(read_checkpoint(path).best.path) == Path("runs", "version_0", "checkpoints", "step=1.ckpt")
    best = (run / "checkpoints" / "step=1.ckpt").read_bytes()
    shutil.move(run, moved)
    # Another run has taken the folder's place.
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step=1.ckpt").write_bytes(b"of another run")
    shell(f"fit --resume {moved}")
    (kept,) = (moved / "checkpoints").glob("*.ckpt")
    assert (kept.name, kept.read_bytes()) == ("step=1.ckpt", best)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")  # runs share it here
def test_a_run_never_resumes_from_a_checkpoint_of_another_run(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = "FIT TINY --checkpoint.dirpath kept --export.dirpath model"
    with monkeypatch.context() as patch:
        kill_at(2, patch)
        assert shell.status(f"{shared} --folder stopped --resumable.minutes 0") == 1
        assert shell.status(f"{shared} --folder begun") == 1
    shell(f"{shared} --folder other")
    (kept,) = (here / "kept").glob("*.ckpt")
    (here / "other" / "finished").unlink()  # killed just before its end
    former = (here / "other" / "config.yaml").stat().st_mtime - 1

    def resumed(folder: str) -> str | None:
        checkpoint = RunFolder(Path(folder), read_config(Path(folder, "config.yaml"))).checkpoint
        return None if checkpoint is None else str(checkpoint.path)

    assert [resumed(folder) for folder in ("stopped", "begun", "other")] == [
        "stopped/resume-step=2.ckpt", None, f"kept/{kept.name}",
    ]  # fmt: skip
    os.utime(kept, (former, former))
    assert resumed("other") is None  # its folder was another run's before


@pytest.mark.slow
def test_no_run_goes_on_from_weights_alone(shell: Shell, finished: dict[str, str], here: Path) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    for name in ("optimizer_states", "lr_schedulers", "callbacks"):  # as ModelCheckpoint(save_weights_only=True)
        del saved[name]
    torch.save(saved, "weights.ckpt")
    expected = "expected a checkpoint with the state of a run, got one without optimizer_states"
    assert f"error: weights.ckpt: {expected}" in shell.refused("fit --ckpt_path weights.ckpt")
    assert not (here / "runs").exists()
    (here / "run").mkdir()
    shutil.copy(Path(finished["folder"], "config.yaml"), "run")
    os.link("weights.ckpt", "run/resume-step=9.ckpt")
    assert f"got run/resume-step=9.ckpt: {expected}" in shell.refused("fit --resume run")
    module = ContrastiveModule.load_from_checkpoint("weights.ckpt")
    data = TextDataModule.load_from_checkpoint("weights.ckpt")
    trainer = pl.Trainer(accelerator="cpu", max_steps=9, logger=False, enable_checkpointing=False)
    with pytest.raises(ContrastiveTextError, match=rf"weights\.ckpt: {expected}"):
        trainer.fit(module, data, ckpt_path="weights.ckpt", weights_only=True)
    shell("test --ckpt_path weights.ckpt --data.test PAIRS")


def test_a_disk_without_room_is_told_before_the_first_step(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SaveWhenStopped, "on_train_start", lambda *_: pytest.fail("a step was begun"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    assert "expected room for" in shell.refused("FIT TINY")


@pytest.mark.slow
def test_two_runs_never_write_to_one_folder(shell: Shell, here: Path) -> None:
    (here / "real").mkdir()
    (here / "link").symlink_to("real")  # by another of its names
    for option, place, name in (("export", "real", "link"), ("checkpoint", "kept", "kept")):
        with hold_lock(here / place):
            said = shell.refused(f"FIT TINY --{option}.dirpath {name}")
        assert f"{option}.dirpath: expected a folder that no other run writes to, got " in said
    # one run, whose folders are one
    shell("FIT TINY --checkpoint.dirpath real --export.dirpath kept/../link --trainer.max_steps 1")
    assert not [path for path in here.rglob(".*") if path.suffix == ".lock"]
    first, second = (RunLogger(here / "races", name="") for _ in range(2))
    assert [first.version, second.version] == [0, 1]


def test_a_checkpoint_by_the_clock_is_never_taken_before_what_a_resumed_run_would_leave_out() -> None:
    with pytest.raises(ContrastiveTextError, match=r"resumable\.minutes: expected 0 or more"):
        SaveWhenStopped(minutes=-1)
    assert SaveWhenStopped().minutes == 15


# Under SLURM

ALONE = dict.fromkeys(("NTASKS", "NTASKS_PER_NODE", "STEP_NUM_TASKS", "NNODES"), 1)
FIRST = dict.fromkeys(("PROCID", "LOCALID", "NODEID"), 0)
OF_A_JOB = {"JOB_NAME": "train", "JOB_ID": 1234567, "NODELIST": "gpu[07-08],gpu12"}
SLURM = {f"SLURM_{name}": str(value) for name, value in (ALONE | FIRST | OF_A_JOB).items()}
"""Environment variables that srun sets for a single task."""
OF_FOUR = {"NTASKS": 4, "STEP_NUM_TASKS": 4, "NTASKS_PER_NODE": 2, "NNODES": 2}
LAST = {
    f"SLURM_{name}": str(value) for name, value in (OF_FOUR | {"PROCID": 3, "LOCALID": 1, "NODEID": 1}).items()
}
"""Environment variables that differ for the last of four tasks on two nodes."""


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


@pytest.mark.slow  # four runs
def test_the_same_command_goes_on_where_slurm_stopped_it(
    shell: Shell, here: Path, task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is sent Lightning's signal, saves, and is requeued; the log has every step once."""
    mine = "FIT TINY --folder mine"
    shell("FIT TINY --folder whole")
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
        assert shell.status(mine) == 128 + signal.SIGUSR1
    assert "Requeued: scontrol requeue 1234567" in shell.capture.readouterr().out
    assert (here / "requeued").read_text() == "requeue 1234567\n"
    assert not list(here.rglob("hpc_ckpt*"))
    said = shell.refused(f"{mine} --model.optimizer.lr 1")
    assert "got model.optimizer.lr 1.0 instead of 3e-05; give the same" in said
    assert "Resuming mine from mine/resume-step=3.ckpt: step 3" in shell(mine).out
    assert_same_run(here / "whole", here / "mine")
    assert not list((here / "mine").glob("resume*"))
    assert "Finished before: mine, whose model is mine/model" in shell(mine).out


@pytest.mark.slow
def test_a_folder_and_processes_that_cannot_be_a_run_s_are_refused(
    shell: Shell, here: Path, task: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "other").mkdir()
    (here / "other" / "notes.txt").write_text("mine")
    assert "got other with notes.txt and without config.yaml" in shell.refused("FIT TINY --folder other")
    named = "FIT TINY --folder mine"
    assert "got trainer.logger false; remove these options" in shell.refused(f"{named} --trainer.logger false")
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
        assert "would begin again; give --folder runs/NAME" in shell.refused("FIT TINY")
        patch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in shell.refused(named)
    task(SLURM_STEP_NUM_TASKS="2")
    said = shell.refused("FIT TINY")
    assert "expected 2 processes, as many as were started, got 1 on each of 1 machines" in said
    assert not (here / "runs").exists()
    assert not (here / "mine").exists()


@pytest.mark.slow
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
    again.truncate(count=1, step=2)
    again.log_metrics({"a": 3.0}, 2)
    again.save()
    assert (tmp_path / "metrics.csv").read_text().splitlines() == ["a,b,step", "1.0,,0", "2.0,0.5,1", "3.0,,2"]
    again.truncate(count=0, step=0)
    assert (again.count, (tmp_path / "metrics.csv").read_text().split()) == (0, ["a,b,step"])
