"""The progress bar of a run."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tiny
from covering import rest_slow
from pytorch_lightning.callbacks import Callback, TQDMProgressBar
from rich.console import Console

from contrastive_text import Run
from contrastive_text.training.callbacks.run_summary import RunProgressBar


class Totals(Callback):
    """Records the total of the bar in each epoch."""

    def __init__(self) -> None:
        self.seen: dict[int, float | None] = {}

    def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        assert isinstance(trainer.progress_bar_callback, RunProgressBar)
        self.seen[trainer.current_epoch] = trainer.progress_bar_callback.train_progress_bar.total


def run_of(folder: Path, **options: Any) -> Run:
    """Returns a run of forty texts in batches of eight: five an epoch."""
    return Run.from_recipe(
        "simcse",
        encoder=tiny.save_bert(folder / "bert"),
        train=tiny.write_texts(folder / "texts.txt"),
        batch_size=8,
        num_workers=0,
        accelerator="cpu",
        default_root_dir=str(folder),
        **options,
    )


def totals(run: Run) -> list[float | None]:
    """Trains as in a terminal, and returns the total of the bar in each epoch."""
    noted = Totals()
    vars(run.trainer)["callbacks"].append(noted)
    with mock.patch("rich._console", Console(force_terminal=True, file=io.StringIO())):
        run.fit()
    return [*noted.seen.values()]


@pytest.mark.parametrize(
    ("options", "wanted"),
    rest_slow(
        [
            ({"max_epochs": 3, "max_steps": 4, "accumulate_grad_batches": 2}, [5, 2]),
            ({"max_epochs": 2}, [5, 5]),
        ],
        quick=0,
    ),
)
def test_the_bar_ends_where_the_run_does(options: dict[str, int], wanted: list[int], tmp_path: Path) -> None:
    assert totals(run_of(tmp_path, **options)) == wanted


@pytest.mark.slow
def test_the_bar_of_a_resumed_run_begins_inside_the_epoch(tmp_path: Path) -> None:
    first = run_of(tmp_path, max_steps=2, max_epochs=1)
    first.fit()
    path = tmp_path / "at_2.ckpt"
    first.trainer.save_checkpoint(path)
    assert totals(run_of(tmp_path, max_steps=4, max_epochs=1, ckpt_path=str(path))) == [4]


def test_a_log_file_has_lines_in_place_of_a_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = RunProgressBar(seconds=1e-9)
    run_of(tmp_path, max_steps=3, validation=tiny.write_pairs(tmp_path / "pairs.tsv"), callbacks=[bar]).fit()
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith(("step ", "validation "))]
    assert lines[0].startswith("validation before the first step: batch 1 of ")
    assert re.fullmatch(r"step 2 of 3, loss \d\.\d+, \d:\d\d:\d\d left", lines[2]), lines
    assert "0:00:00 left" in lines[3] and lines[4].startswith("validation at step 3: batch 1 of ")
    assert "it/s" not in out


def test_a_terminal_has_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rich._console", Console(force_terminal=True))
    bar = RunProgressBar(seconds=1e-9)
    bar.setup(tiny.trainer(tmp_path), tiny.module(tiny.save_bert(tmp_path / "bert")), "fit")
    assert bar.is_enabled and not bar._is_due()


def test_a_run_by_steps_has_no_number_of_epochs() -> None:
    bar = RunProgressBar()
    bar._trainer = SimpleNamespace(max_epochs=-1)  # type: ignore[assignment]  # all that is read of it
    assert bar._get_train_description(1).strip() == "Epoch 1"
    bar._trainer.max_epochs = 3
    assert bar._get_train_description(1).strip() == "Epoch 1/2"


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"callbacks": ["TQDMProgressBar"]}, TQDMProgressBar), ({"enable_progress_bar": False}, type(None))],
)
def test_another_bar_or_none_takes_its_place(bert: str, texts: str, options: dict[str, Any], kind: type) -> None:
    run = Run.from_recipe("simcse", bert, train=texts, batch_size=8, accelerator="cpu", **options)
    assert type(run.trainer.progress_bar_callback) is kind
