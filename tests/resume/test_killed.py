"""A run that is killed or sent SIGTERM, at any time, is taken up where its last checkpoint is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import several
from resume.runs import check_same, run
from torch import Tensor

from contrastive_text.data import AllTasks, BatchRoundRobin, Mixture
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own


STEPS = 60
"""Of a run that is killed: enough to be caught in the middle."""
KILLED: dict[str, dict[str, Any]] = {
    "mixture": {"mixture": "BatchRoundRobin", "workers": 0},
    "single task, 2 workers": {"mixture": None, "workers": 2},
    "computed orders, 2 workers": {"mixture": "AllTasks, computed", "workers": 2},
    "epoch's edge": {"mixture": "AllTasks", "workers": 0, "edge": True},
}
MIXTURES: dict[str | None, Callable[[], Mixture] | None] = {
    "AllTasks": AllTasks,
    "AllTasks, computed": AllTasks,
    "BatchRoundRobin": BatchRoundRobin,
    None: None,
}


def long_run(folder: Path, bert: str, data: Path, mixture: str | None, **options: Any) -> dict[str, Tensor]:
    """Sixty steps of a mixture, or of one task; ends with its step when it is told to."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    make = MIXTURES[mixture]
    if make is not None:
        # Two of the tasks have more rows, and one fewer.
        options |= {"computed_above": 20 if "computed" in str(mixture) else None, "mixture": make()}
    tasks = None if make is None else several.write_tasks(data)
    return run(folder, bert, tasks, STEPS, callbacks=(SaveWhenStopped(),), **options)


LONG_RUN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from resume.test_killed import long_run
folder, bert, data, mixture, workers = sys.argv[2:]
long_run(Path(folder), bert, Path(data), None if mixture == "None" else mixture, workers=int(workers))
"""


def start_run(
    folder: Path, bert: str, data: Path, mixture: str | None, workers: int, count: int = 6
) -> subprocess.Popen[bytes]:
    """Starts a long run in a session of its own and waits until it has saved so many steps."""
    words = [str(Path(__file__).parents[1]), str(folder), bert, str(data), str(mixture), str(workers)]
    process = subprocess.Popen([sys.executable, "-c", LONG_RUN, *words], start_new_session=True)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("step=*.ckpt"))) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return process


@pytest.fixture(scope="module")
def uninterrupted(bert: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, dict[str, Tensor]]:
    """Mixture -> the last weights of the run that nobody stops."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {mixture: long_run(folder / str(mixture), bert, folder / "data", mixture) for mixture in MIXTURES}


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
    epoch = {"BatchRoundRobin": 9, None: 5}.get(mixture, 3)
    last = steps[-1] if not KILLED[name].get("edge") else steps[-1] // epoch * epoch
    again = {"resume": str(folder / f"step={last}.ckpt"), "workers": workers}
    check_same(uninterrupted[mixture], long_run(tmp_path / "again", bert, data, mixture, **again))
    assert not list(folder.glob(".*"))
    print(f"{name}: killed after step {steps[-1]}, resumed from {last}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whom", "mixture", "workers"), [("the process", None, 2), ("all its processes", "BatchRoundRobin", 2)]
)
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
    check_same(
        uninterrupted[mixture],
        long_run(tmp_path / "again", bert, data, mixture, resume=str(path), workers=workers),
    )
