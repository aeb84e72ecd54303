"""Options of the Trainer and of the seed that can't be: answered in one line, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import DeviceStatsMonitor, EarlyStopping

from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.training.run_parser import answering

Answer = Callable[[Sequence[str]], str]


CALLBACK = "--trainer.callbacks=pytorch_lightning.callbacks."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--trainer.logger=false", f"{CALLBACK}LearningRateMonitor"],
            "that has no logger; change that --trainer",
        ),
        (
            [f"{CALLBACK}StochasticWeightAveraging", "--trainer.callbacks.swa_lrs=0"],
            "`swa_lrs` should a positive",
        ),
    ],
)
def test_what_a_callback_of_lightning_can_not_do_is_answered(
    answer: Answer, tiny_words: list[str], options: list[str], said: str
) -> None:
    assert said in answer(["fit", "--recipe", "simcse", *tiny_words, *options])


def test_a_figure_and_a_library_that_are_not_there_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ContrastiveTextError, match=r"metric `val/no` which is not available.* `val/yes`"),
        answering(),
    ):
        EarlyStopping("val/no")._validate_condition_metric({"val/yes": torch.zeros(())})
    monkeypatch.setattr("pytorch_lightning.callbacks.device_stats_monitor._PSUTIL_AVAILABLE", False)
    on_cpu: Any = SimpleNamespace(loggers=[1], strategy=SimpleNamespace(root_device=torch.device("cpu")))
    with pytest.raises(ContrastiveTextError, match="`psutil` is not installed"), answering():
        DeviceStatsMonitor().setup(on_cpu, pl.LightningModule(), "fit")


def test_a_bug_of_a_part_keeps_its_traceback() -> None:
    class Bug(EarlyStopping):
        def setup(self, *_: Any) -> None:  # Any: Lightning's
            raise RuntimeError("mine")

    module: Any = pl.LightningModule()
    module.trainer = pl.Trainer(accelerator="cpu", logger=False, max_steps=1)
    no_numbers: Any = {"a": torch.zeros(2)}
    bugs: list[tuple[type[Exception], Callable[[], object]]] = [
        (RuntimeError, lambda: Bug("a").setup()),
        (RuntimeError, lambda: EarlyStopping("a")._evaluate_stopping_criteria(no_numbers["a"])),
        (MisconfigurationException, lambda: module.log("a", 1.0)),
        (ModuleNotFoundError, lambda: __import__("no_such_library")),
        (ValueError, lambda: int("a")),
        (TypeError, lambda: len(no_numbers)()),
    ]
    for kind, run in bugs:
        with pytest.raises(kind) as caught, answering():
            run()
        assert not isinstance(caught.value, ContrastiveTextError)
