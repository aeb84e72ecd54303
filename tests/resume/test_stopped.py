"""A run told to stop finishes its step, writes a checkpoint, and is taken up there."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from covering import rest_slow
from pytorch_lightning.callbacks import Callback
from resume.runs import check_equal, check_same, run
from torch import Tensor

from contrastive_text.cli import run as shell
from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.data import TextTask
from contrastive_text.training.callbacks import BestCheckpoint
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own


class Signal(Callback):
    """Sends this process a signal in a step, or in the validation after it."""

    def __init__(self, step: int, number: int = signal.SIGTERM, validating: bool = False) -> None:
        self.step, self.number, self.validating = step, number, validating

    def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        if trainer.global_step == self.step - 1 and not self.validating:
            os.kill(os.getpid(), self.number)

    def on_validation_batch_start(self, trainer: Any, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        if trainer.global_step == self.step and self.validating:
            os.kill(os.getpid(), self.number)


SCORED: dict[str, Any] = {"val_check_interval": 2, "check_val_every_n_epoch": None}


@pytest.mark.parametrize(
    ("signalled", "stopped", "options"),
    rest_slow(
        [
            (Signal(1), 1, {"accumulate": 2, "steps": 3}),
            (Signal(4, validating=True), 5, SCORED),
            (Signal(3, signal.SIGINT), 4, {}),  # the end of an epoch, which is finished
            (Signal(4), 4, SCORED),  # validated after it
        ],
    ),
    ids=["accumulation", "in validation", "Ctrl-C at an epoch's end", "validation due"],
)
def test_a_run_told_to_stop_is_taken_up_there(
    signalled: Signal,
    stopped: int,
    options: dict[str, Any],
    bert: str,
    tasks: dict[str, TextTask],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = {"steps": 6, **options, "data": {"validation": tiny.write_pairs(tmp_path / "pairs.tsv")}}
    best: dict[str, BestCheckpoint] = {}

    def fit(name: str, *callbacks: Callback, resume: str | None = None) -> dict[str, Tensor]:
        best[name] = BestCheckpoint(str(tmp_path / name / "best"))
        callbacks = (best[name], SaveWhenStopped(), *callbacks)
        return run(tmp_path / name, bert, tasks, resume=resume, callbacks=callbacks, **options)

    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(SystemExit) as left:
        fit("stopped", signalled)
    assert left.value.code == 128 + signalled.number
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    (path,) = (tmp_path / "stopped").glob("resume*.ckpt")
    assert path.name == f"resume-step={stopped}.ckpt"
    said = capfd.readouterr()
    assert f"{signal.Signals(signalled.number).name}: the step is finished and a checkpoint written" in said.err
    assert ("once more ends it at once" in said.err) == (signalled.number == signal.SIGINT)
    assert f"Stopped after step {stopped}. To go on exactly there:\n  trainer.fit(" in said.out
    check_equal(fit("whole"), fit("again", resume=str(path)))
    assert best["again"].best_model_score == best["whole"].best_model_score
    assert Path(best["again"].best_model_path).name == Path(best["whole"].best_model_path).name


@pytest.mark.slow
def test_a_run_told_to_stop_in_its_last_step_is_finished(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    for name, step, options in (("steps", 4, {}), ("epochs", 6, {"max_steps": -1, "max_epochs": 2})):
        run(tmp_path / name, bert, tasks, steps=step, callbacks=(SaveWhenStopped(), Signal(step)), **options)
        assert not list((tmp_path / name).glob("resume*"))


@pytest.mark.slow
def test_the_shell_says_how_to_go_on_from_where_it_was_stopped(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.batch_size", "8"]
    words += ["--data.train", tiny.write_texts(tmp_path / "my texts.txt"), "--data.num_workers", "0"]
    words += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    words += ["--export.dirpath", "model"]
    assert shell(words) == 0
    whole = best_checkpoint(tmp_path / "runs" / "version_0", "test")
    with monkeypatch.context() as patch:
        start = SaveWhenStopped.on_train_batch_start

        def signalled(self: SaveWhenStopped, trainer: Any, *rest: Any) -> None:
            start(self, trainer, *rest)
            Signal(3).on_train_batch_start(trainer)

        patch.setattr(SaveWhenStopped, "on_train_batch_start", signalled)
        with pytest.raises(SystemExit) as left:
            shell(words)
    assert left.value.code == 143
    command = shlex.split(capfd.readouterr().out.strip().splitlines()[-1])
    assert command[0] == "contrastive-text"
    assert command[1:] == ["fit", "--resume", "runs/version_1"]
    assert shell(command[1:]) == 0
    assert "Resuming runs/version_1 from runs/version_1/resume-step=3.ckpt: step 3" in capfd.readouterr().out
    again = best_checkpoint(tmp_path / "runs" / "version_1", "test")
    check_same(dict(read_checkpoint(whole).weights), dict(read_checkpoint(again).weights))
