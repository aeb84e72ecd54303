"""The progress bar of a run."""

from __future__ import annotations

from types import SimpleNamespace

from pytorch_lightning.callbacks import TQDMProgressBar

from contrastive_text import Run
from contrastive_text.training.callbacks.run_summary import RunProgressBar


def test_a_run_by_steps_has_no_number_of_epochs() -> None:
    bar = RunProgressBar()
    bar._trainer = SimpleNamespace(max_epochs=-1)  # type: ignore[assignment]  # all that is read of it
    assert bar._get_train_description(1).strip() == "Epoch 1"
    bar._trainer.max_epochs = 3
    assert bar._get_train_description(1).strip() == "Epoch 1/2"


def test_another_bar_or_none_takes_its_place(bert: str, texts: str) -> None:
    for options, kind in (
        ({}, RunProgressBar),
        ({"callbacks": ["TQDMProgressBar"]}, TQDMProgressBar),
        ({"enable_progress_bar": False}, type(None)),
    ):
        run = Run.from_recipe("simcse", bert, train=texts, batch_size=8, accelerator="cpu", **options)
        assert type(run.trainer.progress_bar_callback) is kind
