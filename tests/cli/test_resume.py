"""A run goes on from its folder alone, and has its folders for itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from contrastive_text.cli import run as shell
from contrastive_text.cli.resume import resume_words
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.core.storage.disk import held
from contrastive_text.data import TextDataModule
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run_folders import OwnFolders
from contrastive_text.training.run_log import RunLogger


class Killed(Exception):
    """Stands for a kill."""


@pytest.fixture
def words(tiny_words: list[str], here: Path) -> list[str]:  # noqa: ARG001  # works in a folder of its own
    """A fit of five steps that is never validated."""
    return ["fit", *tiny_words, "--recipe", "simcse"]


def kill_at(step: int, patch: pytest.MonkeyPatch) -> None:
    """Ends the next run in a step, without a word to any callback."""

    def start(self: Any, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG001  # Lightning's
        if trainer.global_step == step:
            raise Killed

    patch.setattr(OwnFolders, "on_train_batch_start", start, raising=False)


def test_a_run_that_is_killed_before_its_first_validation_goes_on_from_its_folder(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = here / "runs"
    assert shell(words) == 0
    assert not list(runs.glob("*/resume*"))
    with monkeypatch.context() as patch:
        kill_at(4, patch)
        assert shell([*words, "--resumable.minutes", "0"]) == 1
    (path,) = (runs / "version_1").glob("*.ckpt")
    assert path.name == "resume-step=4.ckpt"  # one of four
    capfd.readouterr()
    assert shell(["fit", "--resume", str(runs / "version_1")]) == 0
    assert "resume-step=4.ckpt: step 4" in capfd.readouterr().out
    whole, again = (best_checkpoint(runs / f"version_{number}", "test") for number in (0, 2))
    weights, others = read_checkpoint(whole).weights, read_checkpoint(again).weights
    assert all(torch.equal(weights[name], others[name]) for name in weights)

    # What can't be resumed is told, and why.
    newest = path.read_bytes()
    path.write_bytes(newest[:-9])
    older = path.with_name("resume-step=3.ckpt")
    os.link(whole, older)
    for given, said in (
        ([str(runs / "version_9")], "expected the folder of a run, with config.yaml in it, found none"),
        ([str(runs / "version_0")], "which has finished: its model is"),
        ([str(runs / "version_1"), "--model.optimizer.lr", "1"], "no option beside it but --trainer.max_steps"),
    ):
        assert shell(["fit", "--resume", *given]) == 2
        assert said in capfd.readouterr().err
    assert shell(["fit", "--resume", str(runs / "version_1"), "--trainer.max_steps", "5"]) == 0
    said = capfd.readouterr().out
    assert "Left out: " in said
    assert "resume-step=4.ckpt: expected a whole checkpoint" in said
    assert "Resuming" in said
    assert "resume-step=3.ckpt: step 5" in said
    older.unlink()
    assert shell(["fit", "--resume", str(runs / "version_1")]) == 2
    assert "expected a whole checkpoint in" in capfd.readouterr().err


def test_a_run_whose_folder_was_moved_keeps_its_best_checkpoint(
    words: list[str], files: dict[str, str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated = ["--data.validation", files["pairs"], "--trainer.val_check_interval", "1"]
    validated += ["--model.optimizer.lr", "1e-9"]  # changes no order of the cosines, so the first stays the best
    with monkeypatch.context() as patch:
        kill_at(4, patch)
        assert shell([*words, *validated, "--resumable.minutes", "0"]) == 1
    run, moved = here / "runs" / "version_0", here / "elsewhere"
    (path,) = run.glob("resume-step=4.ckpt")
    assert Path(read_checkpoint(path).best.path) == Path("runs", "version_0", "checkpoints", "step=1.ckpt")
    best = (run / "checkpoints" / "step=1.ckpt").read_bytes()
    shutil.move(run, moved)
    # Another run has taken the folder's place.
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step=1.ckpt").write_bytes(b"of another run")
    assert shell(["fit", "--resume", str(moved)]) == 0
    (kept,) = (here / "runs" / "version_1" / "checkpoints").glob("*.ckpt")
    assert (kept.name, kept.read_bytes()) == ("step=1.ckpt", best)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")  # runs share it here
def test_a_run_never_goes_on_from_another_run_and_goes_on_from_where_it_began(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def taken(number: int) -> str:
        given = resume_words(["--resume", f"runs/version_{number}"])
        return given[given.index("--ckpt_path") + 1]

    shared = ["--checkpoint.dirpath", "kept", "--export.dirpath", "model"]
    with monkeypatch.context() as patch:
        kill_at(2, patch)
        assert shell([*words, *shared, "--resumable.minutes", "0"]) == 1
        assert shell([*words, *shared]) == 1
    assert shell([*words, *shared]) == 0
    (kept,) = (here / "kept").glob("*.ckpt")
    first = "runs/version_0/resume-step=2.ckpt"
    assert (taken(0), taken(2)) == (first, f"kept/{kept.name}")
    with pytest.raises(ContrastiveTextError, match="got none, and none of it in kept; start it anew"):
        taken(1)
    with monkeypatch.context() as patch:
        kill_at(2, patch)
        assert shell(["fit", "--resume", "runs/version_0"]) == 1  # before it has a checkpoint of its own
    assert f"Resuming {first}: step 2" in capfd.readouterr().out
    assert taken(3) == first
    (here / first).unlink()
    with pytest.raises(ContrastiveTextError, match=f"found none at {first}"):
        taken(3)
    former = (here / "runs" / "version_2" / "config.yaml").stat().st_mtime - 1
    os.utime(kept, (former, former))
    with pytest.raises(ContrastiveTextError, match="none of it in kept"):
        taken(2)  # the folder has been given to another run since


@pytest.mark.slow
def test_no_run_goes_on_from_weights_alone(
    finished: dict[str, str], files: dict[str, str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = torch.load(finished["checkpoint"], weights_only=True)
    for name in ("optimizer_states", "lr_schedulers", "callbacks"):  # as ModelCheckpoint(save_weights_only=True)
        del saved[name]
    torch.save(saved, "weights.ckpt")
    expected = (
        r"expected a checkpoint that a run can go on from, got one with weights and without optimizer_states"
    )
    assert shell(["fit", "--ckpt_path", "weights.ckpt"]) == 2
    assert f"error: weights.ckpt: {expected}" in capfd.readouterr().err
    assert not (here / "runs").exists()
    (here / "run").mkdir()
    shutil.copy(Path(finished["folder"], "config.yaml"), "run")
    os.link("weights.ckpt", "run/resume-step=9.ckpt")
    with pytest.raises(ContrastiveTextError, match=f"got run/resume-step=9.ckpt: {expected}"):
        resume_words(["--resume", "run"])
    module = ContrastiveModule.load_from_checkpoint("weights.ckpt")
    data = TextDataModule.load_from_checkpoint("weights.ckpt")
    trainer = pl.Trainer(accelerator="cpu", max_steps=9, logger=False, enable_checkpointing=False)
    with pytest.raises(ContrastiveTextError, match=rf"weights\.ckpt: {expected}"):
        trainer.fit(module, data, ckpt_path="weights.ckpt", weights_only=True)
    assert shell(["test", "--ckpt_path", "weights.ckpt", "--data.test", files["pairs"]]) == 0


def test_places_that_cannot_be_written_to_are_told_before_the_first_step(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("in the way")
    monkeypatch.setattr(SaveWhenStopped, "on_train_start", lambda *_: pytest.fail("a step was begun"))
    for option, place in (
        ("--export.dirpath", "file"),
        ("--export.dirpath", "file/model"),
        ("--checkpoint.dirpath", "file/checkpoints"),
        ("--trainer.default_root_dir", "file/runs"),
    ):
        assert shell([*words, option, place]) == 2
        said = capfd.readouterr().err
        assert "expected a folder" in said
        assert "file" in said.partition("expected")[0] or option.removeprefix("--") in said
        assert "Traceback" not in said
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    assert shell(words) == 2
    assert "expected room for" in capfd.readouterr().err


@pytest.mark.slow
def test_two_runs_never_write_to_one_folder(
    words: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for option, place in (("--export.dirpath", "model"), ("--checkpoint.dirpath", "kept")):
        with held(here / place):
            assert shell([*words, option, place]) == 2
        said = capfd.readouterr().err
        assert (
            f"{option.removeprefix('--')}: expected a folder that no other run writes to, got {here / place}"
            in said
        )
    (here / "real").mkdir()
    (here / "link").symlink_to("real")
    with held(here / "real"):  # by another of its names
        assert shell([*words, "--export.dirpath", "link"]) == 2
    assert "export.dirpath: expected a folder that no other run writes to" in capfd.readouterr().err
    both = ["--checkpoint.dirpath", "real", "--export.dirpath", "kept/../link"]
    assert shell([*words, *both, "--trainer.max_steps", "1"]) == 0  # one run, whose folders are one
    assert not [path for path in here.rglob(".*") if path.suffix == ".lock"]
    first, second = (RunLogger(here / "races", name="") for _ in range(2))
    assert [first.version, second.version] == [0, 1]


def test_a_checkpoint_by_the_clock_is_never_taken_before_what_a_resumed_run_would_leave_out() -> None:
    with pytest.raises(ContrastiveTextError, match=r"resumable\.minutes: expected 0 or more"):
        SaveWhenStopped(minutes=-1)
    assert SaveWhenStopped().minutes == 15
