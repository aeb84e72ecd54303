"""A run that is stopped and taken up again ends with the same weights, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import several
import tiny
import torch
from covering import rest_slow
from pytorch_lightning.callbacks import BaseFinetuning, Callback, ModelCheckpoint
from resume.runs import check_equal, check_same, flat, run
from torch import Tensor

from contrastive_text.core.machine import current_setting
from contrastive_text.data import AllTasks, BatchRoundRobin, EpochRoundRobin, TextTask
from contrastive_text.encoders import LoRA
from contrastive_text.losses import InfoNCE, KLDivergence, ListNet
from contrastive_text.objectives import Contrastive, Duplicates, RankDistillation, Siblings
from contrastive_text.pairings import Given
from contrastive_text.training import ConstantSchedule, PCGrad, TorchOptimizer, TorchSchedule, Uncertainty
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.module import ContrastiveModule

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own


Whole = tuple[Path, dict[str, Tensor]]


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 4])
def test_inside_an_epoch_and_at_its_edge(
    step: int, whole: Whole, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    folder, weights = whole
    check_equal(weights, run(tmp_path, bert, tasks, steps=8, resume=str(folder / f"step={step}.ckpt")))


@pytest.mark.slow
def test_a_run_that_goes_on_under_another_setting_is_told_so(
    whole: Whole, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    folder, weights = whole
    path = tmp_path / "step=7.ckpt"
    saved = torch.load(folder / path.name, weights_only=True)
    assert saved["setting"] == current_setting()
    torch.save({**saved, "setting": saved["setting"] | {"threads": "17"}}, path)
    said = "the run goes on under another setting, so its last bits may differ: threads 17 then, "
    with pytest.warns(UserWarning, match=said) as warned:
        check_equal(weights, run(tmp_path / "again", bert, tasks, steps=8, resume=str(path)))
    assert len([each for each in warned if "another setting" in str(each.message)]) == 1
    ContrastiveModule.load_from_checkpoint(path)  # nothing goes on, so nothing is said
    del saved["setting"]  # of an older version
    torch.save(saved, path)
    check_equal(weights, run(tmp_path / "older", bert, tasks, steps=8, resume=str(path)))


RESUMED: dict[str, Callable[[], dict[str, Any]]] = {
    "PCGrad, accumulated": lambda: {
        "parts": {"combine": PCGrad()}, "mixture": BatchRoundRobin(), "accumulate": 2,
    },
    "uncertainty": lambda: {"parts": {"combine": Uncertainty()}},
    "tasks by their size": lambda: {"mixture": AllTasks(temperature=1.0)},
    "an optimizer and a schedule of torch": lambda: {
        "parts": {
            "optimizer": TorchOptimizer("SGD", lr=0.1, weight_decay=0.01, options={"momentum": 0.9}),
            "schedule": TorchSchedule("OneCycleLR", options={"max_lr": 0.1, "total_steps": 5}),
        },
    },
    "adapters, in chunks": lambda: {"parts": {"adapters": LoRA(rank=4, dropout=0.2), "chunk_tokens": 40}},
    "adapters in float64, accumulated": lambda: {
        "parts": {"adapters": LoRA(rank=4, dropout=0.2)}, "precision": "64-true", "accumulate": 2,
    },
    "float64": lambda: {"precision": "64-true"},
}  # fmt: skip


@pytest.mark.parametrize("name", rest_slow(RESUMED))
def test_whatever_is_trained_a_resumed_run_ends_with_the_same_bits(
    name: str, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=5, **RESUMED[name]())
    resume = str(tmp_path / "whole" / "step=2.ckpt")
    check_equal(whole, run(tmp_path / "again", bert, tasks, steps=5, resume=resume, **RESUMED[name]()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"limit_train_batches": 2, "computed_above": 4}, {}],
    ids=["limited epochs, computed orders", "whole epochs"],
)
def test_runs_by_epochs_are_taken_up_at_every_step(
    options: dict[str, Any], bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    """Their schedule asks for the number of steps, for which the loader is made before its place is read."""
    options = {**options, "max_steps": -1, "max_epochs": 2}
    epoch = options.get("limit_train_batches", 3)
    steps = 2 * epoch

    def by_epochs(folder: Path, resume: str | None = None) -> dict[str, Tensor]:
        ends = ModelCheckpoint(folder, filename="end of {epoch}", save_top_k=-1, every_n_epochs=1)
        stop = (SaveWhenStopped(), ends)
        fewer = several.fewer(tasks)  # in each epoch rows come again, or others than before
        return run(folder, bert, fewer, steps=steps, resume=resume, callbacks=stop, **options)

    whole = by_epochs(tmp_path / "whole")
    for name in ("step=1", f"step={epoch}", "end of epoch=0", f"step={epoch + 1}"):
        resume = str(tmp_path / "whole" / f"{name}.ckpt")
        check_equal(whole, by_epochs(tmp_path / "again" / name, resume=resume))


@pytest.mark.parametrize("chunk_tokens", [None, pytest.param(60, marks=pytest.mark.slow)])
def test_a_run_over_teacher_scores_and_drawn_hard_negatives(
    chunk_tokens: int | None, bert: str, tmp_path: Path
) -> None:
    train = tiny.write_scored(tmp_path / "scored.jsonl")

    def scored_run(folder: Path, resume: str | None = None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        parts = {
            "hard": Contrastive(InfoNCE(), columns=[Duplicates(), Siblings()]),
            "scores": RankDistillation(KLDivergence(0.1, 1.0)),
            "batch": RankDistillation(ListNet(0.1, 1.0), among="batch"),
        }
        module = tiny.module(bert, 0.2, objectives=parts, chunk_tokens=chunk_tokens)
        keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        trainer = tiny.trainer(folder, enable_checkpointing=True, callbacks=[keep], max_steps=3)
        data = tiny.data(train, pairing=Given(negatives=2))
        trainer.fit(module, data, ckpt_path=resume, weights_only=True)
        return dict(flat(module.state_dict()))

    whole = scored_run(tmp_path / "whole")
    check_same(whole, scored_run(tmp_path / "again", resume=str(tmp_path / "whole" / "step=1.ckpt")))


class SaveAfterwards(Callback):
    """Saves by hand, after the run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        trainer.save_checkpoint(self.path)


@pytest.mark.parametrize(
    ("ends", "options"),
    rest_slow(
        [
            ((1, 3), {"accumulate": 2}),  # steps; an epoch has three batches
            ((4, 7), {"accumulate": 2}),
            ((3, 7), {}),
            ((1, 3), {"by_epochs": 3}),  # epochs
            ((1, 3), {"by_epochs": 2, "limit_train_batches": 2}),
        ],
        quick=0,
    ),
    ids=["inside an epoch", "accumulated", "an epoch's edge", "by epochs", "by limited epochs"],
)
def test_a_longer_run_goes_on_where_a_shorter_one_ended(
    ends: tuple[int, int], options: dict[str, Any], bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    """Wherever it was saved: after its last step, at the end of its last epoch, and by hand."""
    epoch = options.get("by_epochs")
    more = {name: value for name, value in options.items() if name != "by_epochs"}

    def to(end: int, name: str, resume: str | None = None) -> dict[str, Tensor]:
        folder = tmp_path / name
        callbacks = (
            ModelCheckpoint(folder, filename="end", save_top_k=-1, every_n_epochs=1),
            SaveAfterwards(folder / "by hand.ckpt"),
        )
        bound = {"max_steps": -1, "max_epochs": end} if epoch else {}
        steps, parts = end * (epoch or 1), {"schedule": ConstantSchedule()}
        return run(folder, bert, tasks, steps, resume=resume, callbacks=callbacks, parts=parts, **bound, **more)

    shorter, last = ends
    whole = to(last, "whole")
    to(shorter, "shorter")
    for saved in (f"step={shorter * (epoch or 1)}", "end", "by hand"):
        check_equal(whole, to(last, f"after {saved}", resume=str(tmp_path / "shorter" / f"{saved}.ckpt")))


@pytest.mark.slow
def test_a_run_resumed_at_an_epoch_s_edge_is_resumed_again(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    """Lightning counted the epoch after the edge as none, so that the second time its rows came again."""
    whole = run(tmp_path / "0", bert, tasks, steps=5)
    for step in (3, 4):
        resume = str(tmp_path / str(step - 3) / f"step={step}.ckpt")
        check_equal(whole, run(tmp_path / str(step - 2), bert, tasks, steps=5, resume=resume))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes")
def test_another_number_of_workers_changes_nothing(
    whole: Whole, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    folder, weights = whole
    for step, workers in ((5, 2), (6, 3), (7, 0)):  # each goes on from the one before
        resume = str(folder / f"step={step}.ckpt")
        folder = tmp_path / str(workers)
        check_equal(weights, run(folder, bert, tasks, steps=8, resume=resume, workers=workers))


class UnfreezeLater(BaseFinetuning):
    """Trains the encoder from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.encoder)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: torch.optim.Optimizer) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.encoder, optimizer)


@pytest.mark.slow
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
    # After it Lightning's callback itself leaves frozen in a resumed run what it has unfrozen.
    check_equal(whole, fit("again", resume=str(tmp_path / "whole" / "step=2.ckpt")))


@pytest.mark.slow
def test_other_data_in_mid_epoch_are_refused(bert: str, tasks: dict[str, TextTask], tmp_path: Path) -> None:
    run(tmp_path / "turns", bert, tasks, steps=4, mixture=BatchRoundRobin())
    resume = str(tmp_path / "turns" / "step=4.ckpt")
    with pytest.raises(ValueError, match=r"the 9 batches an epoch of the checkpoint, .* got 9 or other batches"):
        other = EpochRoundRobin(downsample=True)  # as many steps in another order
        run(tmp_path / "again", bert, tasks, steps=6, mixture=other, resume=resume)
