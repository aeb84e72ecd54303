"""A run that is stopped and taken up again ends with the same weights, bit for bit.

Over another number of ranks it goes on with the same global batches; there rounding differs.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import several
import tiny
import torch
import torch.multiprocessing as mp
from covering import rest_slow
from pytorch_lightning.callbacks import BaseFinetuning, Callback, ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor

from contrastive_text.cli import run as shell
from contrastive_text.core.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.core.errors import RunError
from contrastive_text.core.setting import current_setting
from contrastive_text.data import AllTasks, BatchRoundRobin, EpochRoundRobin, Fusion, Mixture, TextTask
from contrastive_text.training import AtomicCheckpointIO, Combine, PCGrad, Uncertainty
from contrastive_text.training.callbacks import BestCheckpoint
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.divergence import EndWhenDiverged
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, SwapWords

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own

FUSION = Fusion([["sentiment", "paraphrase", "similarity"], ["contrastive"]])
MIXTURES: dict[str, Mixture] = {
    "all": AllTasks(),
    "by size": AllTasks(temperature=1.0),
    "batch round robin": BatchRoundRobin(),
    "epoch round robin": EpochRoundRobin(),
    "fusion": FUSION,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTask]:
    return several.write_tasks(tmp_path_factory.mktemp("tasks"))


def run(
    folder: Path,
    bert: str,
    tasks: dict[str, TextTask],
    steps: int,
    mixture: Mixture | None = None,
    combine: Combine | None = None,
    resume: str | None = None,
    workers: int = 0,
    accumulate: int = 1,
    dropout: float = 0.2,
    callbacks: tuple[Callback, ...] = (),
    data: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Trains with dropout and drawing views, keeping every step; gives the last weights."""
    module = several.module(
        bert,
        dropout=dropout,
        combine=combine,
        views={"sst": {"anchor": [SwapWords(0.3)], "positive": [FeatureCutoff(0.2)]}},
    )
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder,
        enable_checkpointing=True,
        callbacks=[*callbacks, keep],
        gradient_clip_val=1.0,
        accumulate_grad_batches=accumulate,
        plugins=[AtomicCheckpointIO()],
        **{"max_steps": steps, **options},
    )
    loaded = several.data(tasks, mixture, num_workers=workers, **(data or {}))
    trainer.fit(module, loaded, ckpt_path=resume, weights_only=True)
    assert trainer.global_step == steps
    return {name: weight.clone() for name, weight in module.state_dict().items()}


def check_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


@pytest.mark.parametrize("name", rest_slow(MIXTURES))
def test_a_resumed_run_ends_with_the_same_weights(
    name: str, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    mixture = MIXTURES[name]
    whole = run(tmp_path / "whole", bert, tasks, steps=11, mixture=mixture)
    for step in (1, 4):  # inside the first epoch and, where it has 3 steps, inside the second
        resumed = run(
            tmp_path / str(step),
            bert,
            tasks,
            steps=11,
            mixture=mixture,
            resume=str(tmp_path / "whole" / f"step={step}.ckpt"),
        )
        check_equal(whole, resumed)


def test_a_run_that_goes_on_under_another_setting_is_told_so(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=2)
    path = tmp_path / "whole" / "step=1.ckpt"
    saved = torch.load(path, weights_only=True)
    assert saved["setting"] == current_setting()
    saved["setting"] |= {"threads": "17"}
    torch.save(saved, path)
    said = "the run goes on under another setting, so its last bits may differ: threads 17 then, "
    with pytest.warns(UserWarning, match=said) as warned:
        check_equal(whole, run(tmp_path / "again", bert, tasks, steps=2, resume=str(path)))
    assert len([each for each in warned if "another setting" in str(each.message)]) == 1
    ContrastiveModule.load_from_checkpoint(path)  # nothing goes on, so nothing is said
    del saved["setting"]  # of an older version
    torch.save(saved, path)
    check_equal(whole, run(tmp_path / "older", bert, tasks, steps=2, resume=str(path)))


@pytest.mark.parametrize("combine", rest_slow([PCGrad(), Uncertainty()]), ids=["pcgrad", "uncertainty"])
def test_what_combines_gradients_resumes_too(
    combine: Combine, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=5, combine=type(combine)())
    resume = str(tmp_path / "whole" / "step=2.ckpt")
    check_equal(whole, run(tmp_path / "again", bert, tasks, steps=5, combine=type(combine)(), resume=resume))


def test_at_the_edge_of_an_epoch_the_next_one_begins(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=7)
    for step in (3, 6):
        resume = str(tmp_path / "whole" / f"step={step}.ckpt")
        check_equal(whole, run(tmp_path / str(step), bert, tasks, steps=7, resume=resume))


@pytest.mark.parametrize(
    "options", rest_slow([{"limit_train_batches": 2}, {}]), ids=["limited epochs", "whole epochs"]
)
def test_runs_by_epochs_are_taken_up_at_every_step(
    options: dict[str, int], bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    """Their schedule asks for the number of steps, for which the loader is made before its place is read."""
    options = {**options, "max_steps": -1, "max_epochs": 2}
    epoch = options.get("limit_train_batches", 3)
    steps = 2 * epoch

    def by_epochs(folder: Path, resume: str | None = None) -> dict[str, Tensor]:
        ends = ModelCheckpoint(folder, filename="end of {epoch}", save_top_k=-1, every_n_epochs=1)
        stop = (SaveWhenStopped(), ends)
        return run(folder, bert, tasks, steps=steps, resume=resume, callbacks=stop, **options)

    whole = by_epochs(tmp_path / "whole")
    for name in ("step=1", f"step={epoch}", "end of epoch=0", f"step={epoch + 1}"):
        resume = str(tmp_path / "whole" / f"{name}.ckpt")
        check_equal(whole, by_epochs(tmp_path / "again" / name, resume=resume))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
@pytest.mark.parametrize("workers", rest_slow([2, 1, 3]))
def test_another_number_of_workers_changes_nothing(
    workers: int, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=8)
    resume = str(tmp_path / "whole" / "step=5.ckpt")
    check_equal(whole, run(tmp_path / "more", bert, tasks, steps=8, resume=resume, workers=workers))
    resume = str(tmp_path / "more" / "step=7.ckpt")
    check_equal(whole, run(tmp_path / "none", bert, tasks, steps=8, resume=resume))


def test_float64_is_resumed_without_rounding(bert: str, tasks: dict[str, TextTask], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=4, precision="64-true")
    resume = str(tmp_path / "whole" / "step=2.ckpt")
    check_equal(whole, run(tmp_path / "again", bert, tasks, steps=4, precision="64-true", resume=resume))


class UnfreezeLater(BaseFinetuning):
    """Trains the encoder from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.encoder)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.encoder, optimizer)


def test_layers_that_are_unfrozen_later_follow_the_schedule(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    seen: list[list[float]] = []

    class Rates(Callback):
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:  # noqa: ARG002  # Lightning's
            seen.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    def fit(name: str, *callbacks: Callback, resume: str | None = None) -> dict[str, Tensor]:
        return run(tmp_path / name, bert, tasks, 7, resume=resume, callbacks=(UnfreezeLater(), *callbacks))

    whole = fit("whole", Rates())
    first, later = zip(*[(rates[0], rates[-1]) for rates in seen[3:]], strict=True)
    assert len(seen[3]) == len(seen[2]) + 1
    assert later == pytest.approx([rate / 10 for rate in first])  # as Lightning adds them, from there on
    start = several.module(bert).state_dict()
    assert any(not torch.equal(start[name], whole[name]) for name in start if name.startswith("encoder"))
    # Behind it Lightning's callback itself leaves frozen in a resumed run what it has unfrozen.
    check_equal(whole, fit("again", resume=str(tmp_path / "whole" / "step=2.ckpt")))


def test_under_accumulation_whole_steps_are_resumed(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    mixture = BatchRoundRobin()
    whole = run(tmp_path / "whole", bert, tasks, steps=4, mixture=mixture, accumulate=3)
    resume = str(tmp_path / "whole" / "step=2.ckpt")
    again = run(tmp_path / "again", bert, tasks, steps=4, mixture=mixture, accumulate=3, resume=resume)
    check_equal(whole, again)


# Validated inside a step of several batches


class KeepValidated(ModelCheckpoint):
    """Keeps a checkpoint of every validation, and notes how far from the end of a step it was."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, filename="validated", save_top_k=-1)
        self.inside: list[bool] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        self.inside.append(batches % trainer.accumulate_grad_batches > 0 and not trainer.is_last_batch)
        trainer.save_checkpoint(Path(self.dirpath or "") / f"{len(self.inside)}.ckpt")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Keeps nothing."""


def check_windows(
    folder: Path,
    bert: str,
    tasks: dict[str, TextTask],
    mixture: str,
    workers: int,
    accumulate: int,
    interval: int,
    **options: Any,
) -> None:
    """Resumes from validations inside a step and at its end, and expects the last weights and the best score."""
    pairs = tiny.write_pairs(folder / "pairs.tsv")
    scored: dict[str, Any] = {"val_check_interval": interval, "check_val_every_n_epoch": None, **options}

    def fit(name: str, resume: str | None = None) -> tuple[dict[str, Tensor], BestCheckpoint, KeepValidated]:
        best, validated = BestCheckpoint(str(folder / name / "best")), KeepValidated(folder / name / "validated")
        weights = run(
            folder / name,
            bert,
            tasks,
            steps=7,
            mixture=MIXTURES[mixture],
            workers=workers,
            accumulate=accumulate,
            resume=resume,
            callbacks=(best, validated),
            data={"validation": pairs},
            **scored,
        )
        return weights, best, validated

    whole, best, validated = fit("whole")
    assert any(validated.inside), "no validation came inside a step"
    steps = sorted(enumerate(validated.inside, start=1), key=lambda step: not step[1])  # first those inside
    for number, inside in [*steps[:2], steps[-1]]:
        path = folder / "whole" / "validated" / f"{number}.ckpt"
        assert ("accumulated" in torch.load(path, weights_only=True)) == inside
        again, chosen, _ = fit(f"again {number}", resume=str(path))
        check_equal(whole, again)
        assert chosen.best_model_score == best.best_model_score
        assert Path(chosen.best_model_path).name == Path(best.best_model_path).name


@pytest.mark.filterwarnings("ignore:Be aware that when using")  # where a callback is left out
def test_a_validation_inside_a_step_loses_none_of_its_gradient(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    check_windows(tmp_path, bert, tasks, "batch round robin", workers=0, accumulate=2, interval=3)
    resume = str(tmp_path / "whole" / "validated" / "1.ckpt")
    with pytest.raises(ValueError, match=r"accumulate_grad_batches: expected 2, .* got 3; resume with 2"):
        run(tmp_path / "other", bert, tasks, 7, mixture=BatchRoundRobin(), accumulate=3, resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mixture", ["batch round robin", "epoch round robin", "fusion"])
@pytest.mark.parametrize(("accumulate", "interval"), [(2, 3), (3, 2), (4, 5)])
def test_every_validation_inside_a_step_is_resumed_exactly(
    mixture: str,
    workers: int,
    accumulate: int,
    interval: int,
    bert: str,
    tasks: dict[str, TextTask],
    tmp_path: Path,
) -> None:
    check_windows(tmp_path, bert, tasks, mixture, workers=workers, accumulate=accumulate, interval=interval)


def test_other_data_in_mid_epoch_are_refused(bert: str, tasks: dict[str, TextTask], tmp_path: Path) -> None:
    run(tmp_path / "whole", bert, tasks, steps=2)
    resume = str(tmp_path / "whole" / "step=2.ckpt")
    with pytest.raises(
        ValueError, match=r"expected the 3 batches an epoch of the checkpoint, .* got 9, or others"
    ):
        run(tmp_path / "again", bert, tasks, steps=4, mixture=BatchRoundRobin(), resume=resume)
    run(tmp_path / "turns", bert, tasks, steps=4, mixture=BatchRoundRobin())
    resume = str(tmp_path / "turns" / "step=4.ckpt")
    with pytest.raises(ValueError, match=r"the 9 batches an epoch of the checkpoint, .* got 9, or others"):
        other = EpochRoundRobin(downsample=True)  # as many steps in another order
        run(tmp_path / "again", bert, tasks, steps=6, mixture=other, resume=resume)


# Told to stop


class Signal(Callback):
    """Sends this process a signal in a step, or in the validation behind it."""

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
            (Signal(1), 1, {"accumulate": 2}),
            (Signal(4, validating=True), 5, SCORED),
            (Signal(4, signal.SIGINT), 4, {}),
            (Signal(4), 4, {}),
            (Signal(3), 4, {}),  # the end of an epoch, which is finished
            (Signal(4), 4, SCORED),  # validated after it
        ],
        quick=3,
    ),
    ids=["accumulation", "in validation", "Ctrl-C", "mid-epoch", "epoch's end", "validation due"],
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
    options = {**options, "data": {"validation": tiny.write_pairs(tmp_path / "pairs.tsv")}}
    best: dict[str, BestCheckpoint] = {}

    def fit(name: str, *callbacks: Callback, resume: str | None = None) -> dict[str, Tensor]:
        best[name] = BestCheckpoint(str(tmp_path / name / "best"))
        callbacks = (best[name], SaveWhenStopped(), *callbacks)
        return run(tmp_path / name, bert, tasks, steps=8, resume=resume, callbacks=callbacks, **options)

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
    assert f"Stopped behind step {stopped}. To go on exactly there:\n  trainer.fit(" in said.out
    check_equal(fit("whole"), fit("again", resume=str(path)))
    assert best["again"].best_model_score == best["whole"].best_model_score
    assert Path(best["again"].best_model_path).name == Path(best["whole"].best_model_path).name


def test_a_run_told_to_stop_in_its_last_step_is_finished(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    for name, step, options in (("steps", 4, {}), ("epochs", 6, {"max_steps": -1, "max_epochs": 2})):
        run(tmp_path / name, bert, tasks, steps=step, callbacks=(SaveWhenStopped(), Signal(step)), **options)
        assert not list((tmp_path / name).glob("resume*"))


def test_the_shell_says_how_to_go_on_from_where_it_was_stopped(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.batch_size", "8"]
    words += ["--data.train", tiny.write_texts(tmp_path / "my texts.txt"), "--data.num_workers", "0"]
    words += [
        "--trainer.accelerator",
        "cpu",
        "--trainer.enable_progress_bar",
        "false",
        "--export.dirpath",
        "model",
    ]
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
    assert "Resuming runs/version_1/resume-step=3.ckpt: step 3" in capfd.readouterr().out
    again = best_checkpoint(tmp_path / "runs" / "version_2", "test")
    check_equal(dict(read_checkpoint(whole).weights), dict(read_checkpoint(again).weights))


# Other ranks

RANK_STEPS = 8
TOLERANCE = 1e-9
"""Of weights in float64: sums over two ranks are rounded otherwise."""


def exact(folder: Path, bert: str, tasks: dict[str, TextTask], **options: Any) -> dict[str, Tensor]:
    """A run in float64 without dropout; seven rows a task don't go evenly into two, nor into the last batches."""
    data = {"batch_size": 7, "drop_last": False}
    fixed: dict[str, Any] = {"precision": "64-true", "dropout": 0.0, "data": data, "steps": RANK_STEPS}
    return run(folder, bert, tasks, **fixed, **options)


def become_rank(number: int, port: int) -> None:
    """Makes this process one of two ranks, as far as Lightning asks."""
    torch.set_num_threads(1)
    place = {
        "LOCAL_RANK": number,
        "NODE_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": 2,
    }
    os.environ |= {name: str(value) for name, value in place.items()}


def start_ranks(function: Any, *words: str) -> None:
    """Runs a function of the rank, a port and some words in two processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.set_forkserver_preload(["contrastive_text.training.module"])
    mp.start_processes(function, args=(port, *words), nprocs=2, start_method="forkserver")


def rank_of_two(number: int, port: int, bert: str, folder: str, resume: str) -> None:
    """One of two ranks: a run from the start, and one from the checkpoint of a process alone."""
    become_rank(number, port)
    tasks = several.write_tasks(Path(folder) / f"data{number}")
    for name, start in (("two", None), ("one then two", resume)):
        weights = exact(
            Path(folder) / name,
            bert,
            tasks,
            resume=start,
            devices=2,
            strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
        )
        torch.save(weights, Path(folder) / f"{name} {number}.pt")


@pytest.mark.slow  # two processes import torch and Lightning
def test_another_number_of_ranks_goes_on_with_the_same_global_batches(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = exact(tmp_path / "one", bert, tasks)
    start_ranks(rank_of_two, bert, str(tmp_path), str(tmp_path / "one" / "step=4.ckpt"))
    resume = str(tmp_path / "two" / "step=4.ckpt")
    reached = {"two then one": exact(tmp_path / "two then one", bert, tasks, resume=resume)}
    for name in ("two", "one then two"):
        each = [torch.load(tmp_path / f"{name} {number}.pt", weights_only=True) for number in range(2)]
        check_equal(*each)
        reached[name] = each[0]
    moved = torch.load(tmp_path / "one" / "step=4.ckpt", weights_only=True)["state_dict"]
    assert max(float((whole[name] - moved[name]).abs().max()) for name in whole) > 1e-5
    for found in reached.values():
        for name, weight in whole.items():
            assert float((found[name] - weight).abs().max()) <= TOLERANCE, name


class LostOnOneRank(EndWhenDiverged):
    """Sees a loss of NaN on the second rank alone."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:
        lost = trainer.global_rank == 1 and trainer.global_step == 3
        super().on_train_batch_end(trainer, pl_module, outputs["loss"] * (math.nan if lost else 1.0), *rest)


def window_on_two_ranks(number: int, port: int, bert: str, folder: str) -> None:
    """One of two ranks: a run validated inside a step, the same resumed, and one that is lost."""
    become_rank(number, port)
    tasks = several.write_tasks(Path(folder) / f"data{number}")
    pairs = tiny.write_pairs(Path(folder) / f"pairs{number}.tsv")

    def fit(name: str, *callbacks: Callback, resume: str | None = None) -> dict[str, Tensor]:
        return run(
            Path(folder) / name,
            bert,
            tasks,
            steps=5,
            mixture=BatchRoundRobin(),
            accumulate=2,
            resume=resume,
            callbacks=(KeepValidated(Path(folder) / name / "validated"), *callbacks),
            data={"validation": pairs},
            devices=2,
            strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=True),
            val_check_interval=3,
            check_val_every_n_epoch=None,
        )

    torch.save(fit("whole"), Path(folder) / f"whole {number}.pt")
    inside = str(Path(folder) / "whole" / "validated" / "1.ckpt")
    torch.save(fit("again", resume=inside), Path(folder) / f"again {number}.pt")
    with pytest.raises(RunError, match=r"^step 3: expected a finite loss, got (nan|none on another rank)"):
        fit("lost", LostOnOneRank())


@pytest.mark.slow  # two processes import torch and Lightning
def test_two_ranks_keep_the_gradient_of_a_begun_step_and_end_together(bert: str, tmp_path: Path) -> None:
    start_ranks(window_on_two_ranks, bert, str(tmp_path))
    each = [torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pt"))]
    assert len(each) == 4
    for other in each[1:]:
        check_equal(each[0], other)


# Killed

STEPS = 60
"""Of a run that is killed: enough to be caught in the middle."""
KILLED: dict[str, dict[str, Any]] = {
    "mid-epoch": {"mixture": "AllTasks", "workers": 0},
    "mid-epoch, 2 workers": {"mixture": "AllTasks", "workers": 2},
    "mixture": {"mixture": "BatchRoundRobin", "workers": 0},
    "mixture, 2 workers": {"mixture": "BatchRoundRobin", "workers": 2},
    "single task": {"mixture": None, "workers": 0},
    "single task, 2 workers": {"mixture": None, "workers": 2},
    "epoch's edge": {"mixture": "AllTasks", "workers": 0, "edge": True},
    "single task, epoch's edge, 2 workers": {"mixture": None, "workers": 2, "edge": True},
}
MIXTURE_PARTS = {"AllTasks": AllTasks, "BatchRoundRobin": BatchRoundRobin}


def long_run(folder: Path, bert: str, data: Path, mixture: str | None, **options: Any) -> dict[str, Tensor]:
    """Sixty steps of a mixture, or of one task."""
    tasks = several.write_tasks(data)
    if mixture is not None:
        return run(folder, bert, tasks, STEPS, mixture=MIXTURE_PARTS[mixture](), **options)
    torch.manual_seed(0)
    module = tiny.module(bert, dropout=0.2, views={"positive": [SwapWords(0.3)], "anchor": [FeatureCutoff(0.2)]})
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    stop = SaveWhenStopped()
    trainer = tiny.trainer(
        folder, max_steps=STEPS, enable_checkpointing=True, callbacks=[stop, keep], plugins=[AtomicCheckpointIO()]
    )
    texts = tiny.data(tiny.write_texts(data / "texts.txt"), num_workers=options.get("workers", 0))
    trainer.fit(module, texts, ckpt_path=options.get("resume"), weights_only=True)
    return {name: weight.clone() for name, weight in module.state_dict().items()}


LONG_RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_resume
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
folder, bert, data, mixture, workers = sys.argv[2:]
callbacks = {} if mixture == "None" else {"callbacks": (SaveWhenStopped(),)}
mixture = None if mixture == "None" else mixture
test_resume.long_run(Path(folder), bert, Path(data), mixture, workers=int(workers), **callbacks)
"""


def start_run(
    folder: Path, bert: str, data: Path, mixture: str | None, workers: int, count: int = 6
) -> subprocess.Popen[bytes]:
    """Starts a long run in a session of its own and waits until it has saved so many steps."""
    words = [str(Path(__file__).parent), str(folder), bert, str(data), str(mixture), str(workers)]
    process = subprocess.Popen([sys.executable, "-c", LONG_RUN, *words], start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("step=*.ckpt"))) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


@pytest.fixture(scope="module")
def uninterrupted(bert: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, dict[str, Tensor]]:
    """Mixture -> the last weights of the run that nobody stops."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {
        mixture: long_run(folder / str(mixture), bert, folder / "data", mixture)
        for mixture in (*MIXTURE_PARTS, None)
    }


def steps_of(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("=")[2]) for path in folder.glob("step=*.ckpt"))


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_is_taken_up_where_its_last_checkpoint_is(
    name: str, bert: str, uninterrupted: dict[str | None, dict[str, Tensor]], tmp_path: Path
) -> None:
    mixture, workers = KILLED[name]["mixture"], KILLED[name]["workers"]
    folder, data = tmp_path / "killed", tmp_path / "data"
    draws = random.Random(name)
    process = start_run(folder, bert, data, mixture, workers, count=draws.randint(4, 30))
    time.sleep(draws.uniform(0.0, 0.1))
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = steps_of(folder)
    assert 4 <= len(steps) < STEPS, "killed too early or too late"
    epoch = {"AllTasks": 3, "BatchRoundRobin": 9, None: 5}[mixture]
    last = steps[-1] if not KILLED[name].get("edge") else steps[-1] // epoch * epoch
    again = {"resume": str(folder / f"step={last}.ckpt"), "workers": workers}
    check_equal(uninterrupted[mixture], long_run(tmp_path / "again", bert, data, mixture, **again))
    assert not list(folder.glob(".*"))
    print(f"{name}: killed behind step {steps[-1]}, resumed from {last}")


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["the process", "all its processes"])
@pytest.mark.parametrize(("mixture", "workers"), [("AllTasks", 0), ("BatchRoundRobin", 2), (None, 2)])
def test_a_run_that_is_sent_sigterm_is_taken_up_behind_its_step(
    whom: str,
    mixture: str | None,
    workers: int,
    bert: str,
    uninterrupted: dict[str | None, dict[str, Tensor]],
    tmp_path: Path,
) -> None:
    folder, data = tmp_path / "stopped", tmp_path / "data"
    process = start_run(folder, bert, data, mixture, workers)
    if whom == "the process":
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGTERM)  # as a scheduler does: the workers too
    assert process.wait(timeout=60) == 143
    (path,) = folder.glob("resume*.ckpt")
    steps = steps_of(folder)
    assert path.name == f"resume-step={steps[-1]}.ckpt"
    assert steps[-1] < STEPS
    check_equal(
        uninterrupted[mixture],
        long_run(tmp_path / "again", bert, data, mixture, resume=str(path), workers=workers),
    )
