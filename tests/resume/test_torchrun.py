"""Two nodes of torchrun: a killed rank is started again, and the run goes on to the same bits."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import tiny
import torch
from processes import free_ports, start_all
from resume.runs import check_same

from contrastive_text.cli import run as shell
from contrastive_text.core.storage.checkpoints import read_checkpoint
from contrastive_text.training import run_folder

pytestmark = pytest.mark.slow

KILLED = """
import os
import signal

from pytorch_lightning.callbacks import Callback


class Killed(Callback):
    def on_train_batch_start(self, trainer, *rest):
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if first and trainer.global_rank == 1 and trainer.global_step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def fit_words(folder: str, nodes: int, devices: int) -> list[str]:
    """Returns a fit of ten steps on two processes, with a checkpoint after each."""
    return [
        *("fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", "bert", "--data.train", "texts.txt"),
        *("--data.batch_size", "4", "--data.num_workers", "0", "--trainer.accelerator", "cpu"),
        *(
            "--trainer.enable_progress_bar",
            "false",
            "--trainer.log_every_n_steps",
            "1",
            "--resumable.minutes",
            "0",
        ),
        *("--trainer.strategy", "ddp", "--trainer.num_nodes", str(nodes), "--trainer.devices", str(devices)),
        *("--trainer.callbacks", "killing.Killed", "--folder", folder),
    ]


def become_node(number: int, port: int, nodes: int) -> None:
    """Makes this process one of two ranks, of one machine or of two, as far as Lightning asks."""
    warnings.filterwarnings("ignore")  # forked before those of the tests hold
    torch.set_num_threads(1)
    local, node = (0, number) if nodes == 2 else (number, 0)
    os.environ |= {"LOCAL_RANK": str(local), "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "WORLD_SIZE": "2"}


def unbroken(number: int, port: int, folder: str) -> None:
    """One of two ranks that nobody kills."""
    become_node(number, port, nodes=1)
    os.chdir(folder)
    sys.path.append(folder)
    assert shell(fit_words("unbroken", nodes=1, devices=2)) == 0


@pytest.fixture(scope="module")
def place(bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder, texts, a part that kills the second rank in its seventh step, and a whole run."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "bert").symlink_to(bert)
    (folder / "killing.py").write_text(KILLED)
    tiny.write_texts(folder / "texts.txt")
    start_all(unbroken, 2, *free_ports(1), str(folder))
    return folder


def of_run(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = (folder / "checkpoints").glob("*.ckpt")
    checkpoint = read_checkpoint(path)
    assert checkpoint.step == 10
    return dict(checkpoint.weights)


def test_a_killed_rank_is_restarted_and_the_run_goes_on(place: Path) -> None:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--max-restarts", "1"]
    command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "a run"]
    command += ["--rdzv-endpoint", f"127.0.0.1:{port}", "-m", "contrastive_text"]
    command += fit_words("killed", nodes=2, devices=1)
    agents = [
        subprocess.Popen(
            command,
            cwd=place,
            env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = "".join(agent.communicate(timeout=600)[0] for agent in agents)
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "exitcode: -9" in said
    assert "Resuming killed from killed/resume-step=6.ckpt: step 6" in said
    check_same(of_run(place / "unbroken"), of_run(place / "killed"))
    assert (place / "killed" / "metrics.csv").read_bytes() == (place / "unbroken" / "metrics.csv").read_bytes()
    assert sorted(path.name for path in place.glob("killed/*")) == sorted(
        path.name for path in place.glob("unbroken/*")
    )


def on_own_disks(number: int, port: int, folder: str) -> None:
    """One of two ranks whose working directories are apart, as on machines that share no disk."""
    become_node(number, port, nodes=2)
    run_folder.PATIENCE = 0.0
    own = Path(folder, str(number))
    os.chdir(own)
    sys.path.append(folder)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert shell(fit_words("mine", nodes=2, devices=1)) == 2
        if number == 0:  # as if the run had begun there
            (own / "mine").rename(own / "seen")
            (own.parent / "begun").rename(own / "mine")
        assert shell(fit_words("mine", nodes=2, devices=1)) == 2
    (own / "said").write_text(said.getvalue())


def test_machines_that_do_not_share_the_folder_are_told(place: Path) -> None:
    shutil.copytree(place / "unbroken", place / "begun")
    (place / "begun" / "finished").unlink()
    for number in ("0", "1"):
        (place / number).mkdir()
        for name in ("bert", "texts.txt"):
            (place / number / name).symlink_to(place / name)
    start_all(on_own_disks, 2, *free_ports(1), str(place))
    first, second = ((place / number / "said").read_text() for number in ("0", "1"))
    assert "process 1 on " in second
    assert "expected to see what the first process writes to " in second
    assert "expected to resume from step=10.ckpt of " in second
    assert "as the first process does, got no checkpoint; several machines need one file system" in second
    assert first.count("this machine has no error, but another machine has") == 2
