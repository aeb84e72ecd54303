"""A run that is stopped and taken up again ends with the same weights, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import several
import tiny
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor

from contrastive_text.data import AllTasks, BatchRoundRobin, EpochRoundRobin, Fusion, Mixture, TextTask
from contrastive_text.training import Combine, PCGrad, Uncertainty
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
) -> dict[str, Tensor]:
    """Trains with dropout and drawing views, keeping every step; gives the last weights."""
    module = several.module(
        bert,
        dropout=0.2,
        combine=combine,
        views={"sst": {"anchor": [SwapWords(0.3)], "positive": [FeatureCutoff(0.2)]}},
    )
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder,
        max_steps=steps,
        enable_checkpointing=True,
        callbacks=[keep],
        gradient_clip_val=1.0,
        accumulate_grad_batches=accumulate,
    )
    trainer.fit(module, several.data(tasks, mixture, num_workers=workers), ckpt_path=resume, weights_only=True)
    assert trainer.global_step == steps
    return {name: weight.clone() for name, weight in module.state_dict().items()}


def check_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


@pytest.mark.parametrize("name", MIXTURES)
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


@pytest.mark.parametrize("combine", [PCGrad(), Uncertainty()], ids=["pcgrad", "uncertainty"])
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


def test_workers_that_fetch_ahead_change_nothing(bert: str, tasks: dict[str, TextTask], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", bert, tasks, steps=8)
    resume = str(tmp_path / "whole" / "step=5.ckpt")
    check_equal(whole, run(tmp_path / "again", bert, tasks, steps=8, resume=resume, workers=2))


def test_under_accumulation_whole_steps_are_resumed(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    mixture = BatchRoundRobin()
    whole = run(tmp_path / "whole", bert, tasks, steps=4, mixture=mixture, accumulate=3)
    resume = str(tmp_path / "whole" / "step=2.ckpt")
    again = run(tmp_path / "again", bert, tasks, steps=4, mixture=mixture, accumulate=3, resume=resume)
    check_equal(whole, again)


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


STEPS = 60
"""Of a run that is killed: enough to be caught in the middle."""


@pytest.mark.slow
@pytest.mark.parametrize("mixture", ["AllTasks", "BatchRoundRobin"])
def test_a_killed_run_is_taken_up_where_its_last_checkpoint_is(
    mixture: str, bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import several, test_resume
from contrastive_text.data import AllTasks, BatchRoundRobin
tasks = several.write_tasks(Path({str(tmp_path / "data")!r}))
test_resume.run(Path(sys.argv[1]), {bert!r}, tasks, steps={STEPS}, mixture={mixture}())
"""
    folder = tmp_path / "killed"
    process = subprocess.Popen([sys.executable, "-c", script, str(folder)], env=os.environ)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("step=*.ckpt"))) < 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    steps = sorted(int(path.stem.partition("=")[2]) for path in folder.glob("step=*.ckpt"))
    assert 8 <= len(steps) < STEPS, "killed too early or too late"
    last = steps[-2]  # the last one may be cut short
    part = {"AllTasks": AllTasks, "BatchRoundRobin": BatchRoundRobin}[mixture]
    whole = run(tmp_path / "whole", bert, tasks, steps=STEPS, mixture=part())
    resume = str(folder / f"step={last}.ckpt")
    check_equal(whole, run(tmp_path / "again", bert, tasks, steps=STEPS, mixture=part(), resume=resume))
