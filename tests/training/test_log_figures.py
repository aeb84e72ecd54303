"""Tests of the steps at which metrics are computed, reduced over ranks and logged."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
from covering import rest_slow
from pytorch_lightning.callbacks import Callback

from contrastive_text import ContrastiveModule
from contrastive_text.losses import ListNet
from contrastive_text.objectives import RankDistillation
from contrastive_text.pairings import Given
from contrastive_text.training import LogGradients
from contrastive_text.training import module as module_file
from contrastive_text.training.run_log import RunLogger

STEPS = 8
"""Of an epoch: 40 texts in batches of 5."""


class Seen(Callback):
    """Notes what callbacks and the progress bar see after each step."""

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.bar: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        if pl_module.logs_step:
            self.computed.append(trainer.global_step)
        shown = trainer.progress_bar_metrics.get("train/loss")
        if shown is not None:  # none before the first step of accumulated batches
            assert isinstance(shown, float)
            self.bar.append(shown)


class EveryThird(Callback):
    """Asks for figures, as a user's callback may."""

    reads_figures_every = 3


class StopAt(Callback):
    """Ends a run at a step that nobody foresaw."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
        trainer.should_stop = trainer.global_step == self.step


def fit(
    bert: str, folder: Path, *callbacks: Callback, module: ContrastiveModule | None = None, **options: Any
) -> tuple[dict[int, dict[str, str]], Seen]:
    """Trains, and returns the rows of the log by step, and what was seen."""
    seen = Seen()
    logger = RunLogger(folder, name="logs", version="one")
    options = {"max_steps": STEPS, "log_every_n_steps": 5, "logger": logger, **options}
    data = tiny.data(tiny.write_texts(folder / "texts.txt"), batch_size=5)
    pl.seed_everything(3, verbose=False)
    tiny.trainer(folder, callbacks=[*callbacks, seen], **options).fit(module or tiny.module(bert), data)
    with open(folder / "logs" / "one" / "metrics.csv", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("train/loss")]
    return {int(row["step"]): row for row in rows}, seen


@pytest.mark.slow
def test_figures_are_those_of_a_run_that_logs_every_step(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all").mkdir()
    every, _ = fit(bert, tmp_path / "all", log_every_n_steps=1)
    assert [*every] == [*range(STEPS)]
    sums: list[Any] = []
    monkeypatch.setattr(module_file, "means_over_ranks", lambda figures, _: sums.append(figures) or figures)
    rows, seen = fit(bert, tmp_path)
    assert len(sums) == 3  # ranks share those of logged steps alone
    assert seen.computed == [1, 5, STEPS]  # the first, the fifth, the last
    assert [*rows] == [4]
    names = [name for name in rows[4] if name.startswith("train/") and rows[4][name]]
    assert {"train/loss", "train/contrastive/uniformity"} <= {*names}
    assert {name: rows[4][name] for name in names} == {name: every[4][name] for name in names}
    assert [*dict.fromkeys(seen.bar)] == [float(every[step]["train/loss"]) for step in (0, 4, 7)]


@pytest.mark.slow
def test_a_callback_asks_for_more(bert: str, tmp_path: Path) -> None:
    _, seen = fit(bert, tmp_path, EveryThird())
    assert seen.computed == [1, 3, 5, 6, STEPS]


@pytest.mark.slow
def test_a_run_that_never_logs_has_its_last_figures(bert: str, tmp_path: Path) -> None:
    module = tiny.module(bert)
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    trainer = tiny.trainer(tmp_path, max_epochs=1, max_steps=-1, log_every_n_steps=0)
    trainer.fit(module, data)
    assert float(trainer.callback_metrics["train/loss"]) == float(module.figures["loss"])
    assert module.logs_step


@pytest.mark.slow
def test_no_row_repeats_the_figures_of_an_earlier_step(bert: str, tmp_path: Path) -> None:
    rows, seen = fit(bert, tmp_path, StopAt(7))  # Lightning logs the step that ends a run
    assert seen.computed == [1, 5]
    assert [*rows] == [4]


def test_accumulated_batches_are_logged_with_their_step(bert: str, tmp_path: Path) -> None:
    rows, seen = fit(bert, tmp_path, accumulate_grad_batches=2, log_every_n_steps=2, max_steps=4)
    assert [*rows] == [1, 3]
    assert {*seen.computed} >= {2, 4}


@pytest.mark.parametrize(("every", "wanted"), rest_slow([(4, [1, 5]), (1, [1, 3, 5, 7]), (100, [1])]))
def test_gradients_are_logged_in_steps_that_are_logged(
    bert: str, tmp_path: Path, every: int, wanted: list[int]
) -> None:
    objectives = {name: tiny.module(bert).objectives["contrastive"] for name in ("one", "other")}
    module = tiny.module(bert, objectives=objectives)
    rows, _ = fit(bert, tmp_path, LogGradients(every), module=module, log_every_n_steps=2)
    name = "train/gradient/norm/one"
    assert [step for step, row in rows.items() if row.get(name) not in ("", "nan", None)] == wanted


def test_a_temperature_that_does_not_fit_the_scores_is_warned_about_once(bert: str, tmp_path: Path) -> None:
    texts = tiny.TEXTS
    rows = [
        {"anchor": texts[i], "positive": texts[i + 1], "negative": texts[i + 2], "scores": [9.0, -9.0]}
        for i in range(16)
    ]
    module = tiny.module(bert, objectives={"ranks": RankDistillation(ListNet(guide_temperature=0.1))})
    with pytest.warns(
        UserWarning, match=r"ranks: guide_temperature 0\.1 doesn't fit .* Try guide_temperature 4\.5"
    ) as warned:
        tiny.trainer(tmp_path, max_steps=2, log_every_n_steps=1).fit(module, tiny.data(rows, pairing=Given()))
    assert len([warning for warning in warned if "guide_temperature" in str(warning.message)]) == 1
