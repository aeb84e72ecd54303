"""Wrong input at the shell: a few lines, the nearest right name, no traceback."""

from __future__ import annotations

import dataclasses
import errno
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch
from covering import rest_slow
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import DeviceStatsMonitor, EarlyStopping
from shells import Shell

from contrastive_text.cli.commands import RECORDS
from contrastive_text.cli.main import answer as answer_of
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.training.checkpoint_io import AtomicCheckpointIO
from contrastive_text.training.run_parser import naming_options


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_a_logger_without_its_library_is_one_line(shell: Shell) -> None:
    said = shell.refused("FIT TINY --trainer.logger WandbLogger")
    assert said.endswith("error: WandbLogger: expected the library wandb, got no such library; pip install wandb")


CALLBACKS = "--trainer.callbacks=pytorch_lightning.callbacks."
LATE = [
    ("--trainer.max_epochs -1 --trainer.max_steps -1", "set trainer.max_steps"),
    (f"{CALLBACKS}LearningRateMonitor --trainer.logger=false", "that has no logger; change that --trainer"),
    (f"{CALLBACKS}StochasticWeightAveraging --trainer.callbacks.swa_lrs=0", "`swa_lrs` should a positive"),
]


@pytest.mark.parametrize(("options", "said"), rest_slow(LATE))
def test_what_lightning_refuses_when_a_run_begins_is_answered(shell: Shell, options: str, said: str) -> None:
    assert said in shell.refused(f"FIT TINY {options}")


# What is not ours


def test_an_error_inside_a_user_s_own_part_keeps_its_traceback(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "faulty_of_mine", raising=False)
    (here / "faulty_of_mine.py").write_text(
        "from contrastive_text.views import TextView\n"
        "class Faulty(TextView):\n"
        "    def __call__(self, text, rng):\n"
        "        raise ValueError('a slip of mine')\n"
    )
    views = "'{anchor: [faulty_of_mine.Faulty]}'"
    assert shell.status(f"FIT TINY --model.views {views} --trainer.max_steps 1") == 1
    said = shell.capture.readouterr().err
    assert "Traceback" in said
    assert "faulty_of_mine.py" in said
    told = said[said.rindex("ValueError: a slip of mine") :].splitlines()
    assert told[1].startswith("on the text '") and told[1][len("on the text '") : -1] in tiny.TEXTS
    assert told[2] == "raised by views.anchor[0], Faulty"
    assert told[3].startswith("error: this is a bug in the library or in your own part")


def test_a_part_of_lightning_that_refuses_its_arguments_is_named() -> None:
    first = RuntimeError("no server at\n127.0.0.1")
    second = ValueError("in between")
    second.__cause__ = first
    path = "pytorch_lightning.loggers.MLFlowLogger"
    third = ValueError(
        f"Does not validate against any\nGiven value: Namespace(class_path='{path}', init_args=None)"
    )
    third.__cause__ = second
    assert answer_of(third) == (
        "MLFlowLogger: expected arguments that it takes, got RuntimeError: no server at 127.0.0.1"
    )
    own = ValueError("Does not validate against any\nGiven value: Namespace(class_path='my_parts.Own')")
    own.__cause__ = second
    assert answer_of(own) is None  # whose bug keeps its traceback


def test_a_figure_and_a_library_that_are_not_there_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ContrastiveTextError, match=r"metric `val/no` which is not available.* `val/yes`"),
        naming_options(),
    ):
        EarlyStopping("val/no")._validate_condition_metric({"val/yes": torch.zeros(())})
    monkeypatch.setattr("pytorch_lightning.callbacks.device_stats_monitor._PSUTIL_AVAILABLE", False)
    on_cpu: Any = SimpleNamespace(loggers=[1], strategy=SimpleNamespace(root_device=torch.device("cpu")))
    with pytest.raises(ContrastiveTextError, match="`psutil` is not installed"), naming_options():
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
        with pytest.raises(kind) as caught, naming_options():
            run()
        assert not isinstance(caught.value, ContrastiveTextError)


# Memory


LACKS = [
    (MemoryError("Unable to allocate 9 GiB"), "embed", "allocate 9 GiB; give a smaller --batch_size"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "fit", "or --chunk auto"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to get 2 GiB"), "fit", "CUDA out of memory; give"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "search", "give a smaller --batch_size"),
    (RuntimeError("caused by insufficient shared memory (shm)."), "fit", "--data.num_workers 0"),
    (MemoryError(), "export", "got MemoryError: none left; make batches smaller"),
]


@pytest.mark.parametrize(("error", "command", "expected"), LACKS)
def test_lack_of_memory_is_answered_as_such(error: Exception, command: str, expected: str) -> None:
    said = answer_of(error, command)
    assert said is not None and said.startswith("memory: expected enough memory, got ") and expected in said
    wrapped = InvalidValueError("a.ckpt: expected a checkpoint, got a damaged file")
    wrapped.__cause__ = error
    assert answer_of(wrapped, command) == said


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't allocate memory"), OSError(errno.ENOMEM, "")]
)
def test_lack_of_memory_is_no_damage_of_a_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    torch.save({}, tmp_path / "a.ckpt")
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(type(error)):
        read_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(type(error)):
        AtomicCheckpointIO().load_checkpoint(tmp_path / "a.ckpt")


def test_the_option_that_saves_memory_is_one_of_the_command() -> None:
    for command in ("embed", "search", "duplicates", "mine", "evaluate", "diagnose", "compare", "postprocess"):
        assert "batch_size" in {field.name for field in dataclasses.fields(RECORDS[command])}, command
