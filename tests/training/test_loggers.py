"""A run's own table of figures stays, whatever else logs."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import tiny

from contrastive_text import Run
from contrastive_text.cli import run

KEPT = """
from pytorch_lightning.loggers.logger import DummyLogger

class Kept(DummyLogger):
    rows = []

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, dict(metrics)))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kept_logs.py").write_text(KEPT, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "kept_logs", raising=False)
    tiny.save_bert(tmp_path / "encoder")
    tiny.write_texts(tmp_path / "texts.txt")
    return tmp_path


def logged(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["train/loss"]]


def made(logger: object) -> Run:
    """Returns a run of two steps that logs each."""
    return Run.from_recipe(
        "simcse", encoder="encoder/", train="texts.txt", batch_size=8, max_steps=2, num_workers=0,
        log_every_n_steps=1, accelerator="cpu", enable_progress_bar=False, logger=logger,
    )  # fmt: skip


@pytest.mark.slow
def test_a_logger_comes_beside_the_run_s_own(here: Path) -> None:
    made_run = made({"class_path": "kept_logs.Kept"})
    made_run.fit()
    from kept_logs import Kept

    rows = logged(here / "runs" / "version_0")
    losses = [(step, figures["train/loss"]) for step, figures in Kept.rows if "train/loss" in figures]
    assert [
        (step, pytest.approx(float(row["train/loss"]))) for (step, _), row in zip(losses, rows, strict=True)
    ] == losses
    assert made_run.trainer.log_dir == str(Path("runs/version_0"))
    assert (here / "runs" / "version_0" / "config.yaml").is_file()


@pytest.mark.slow
def test_a_csv_logger_of_one_s_own_is_the_run_s_and_without_any_there_is_no_table(here: Path) -> None:
    assert made(False).trainer.loggers == []
    own = {"class_path": "pytorch_lightning.loggers.CSVLogger", "init_args": {"save_dir": "own", "name": "mine"}}
    made_run = made([{"class_path": "kept_logs.Kept"}, own])
    assert [type(logger).__name__ for logger in made_run.trainer.loggers] == ["CSVLogger", "Kept"]
    made_run.fit()
    assert len(logged(here / "own" / "mine" / "version_0")) == 2 and not (here / "runs").exists()


def test_a_logger_that_can_t_begin_is_named_before_the_first_step(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "lost_logs.py").write_text(
        "from pytorch_lightning.loggers.logger import DummyLogger\n\n"
        "class Lost(DummyLogger):\n"
        "    @property\n"
        "    def experiment(self):\n"
        '        raise RuntimeError("no server at\\n127.0.0.1")\n',
        encoding="utf-8",
    )
    words = ["--encoder", "encoder/", "--train", "texts.txt", "--trainer.accelerator", "cpu"]
    assert run(["fit", "--recipe", "simcse", *words, "--trainer.logger", "lost_logs.Lost"]) == 2
    said = capsys.readouterr()
    assert (
        "trainer.logger: expected a Lost that starts without errors, got RuntimeError: no server at 127.0.0.1; "
        in said.err
    )
    assert "What makes the result" not in said.out and not list(here.glob("runs/*"))
