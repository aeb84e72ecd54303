"""Checkpoints are whole or not there, whatever happens while one is written; damage is always noticed."""

from __future__ import annotations

import errno
import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import tiny
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from contrastive_text.cli import run as shell
from contrastive_text.core.storage import disk
from contrastive_text.core.storage.checkpoints import read_checkpoint, verify_checkpoint
from contrastive_text.training import AtomicCheckpointIO
from contrastive_text.training.callbacks import BestCheckpoint, ExportModel
from contrastive_text.training.checkpoint_io import copy_checkpoint

CONTENT = {"state_dict": {"weight": torch.arange(40.0)}, "epoch": 3}
HOST = platform.node()


def equal(loaded: dict[str, Any], expected: dict[str, Any] = CONTENT) -> bool:
    same = torch.equal(loaded["state_dict"]["weight"], expected["state_dict"]["weight"])
    return same and loaded["epoch"] == expected["epoch"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint(CONTENT, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What is written


def test_a_checkpoint_is_read_by_us_by_torch_and_by_lightning_alone(saved: Path) -> None:
    assert names(saved.parent) == ["a.ckpt"]
    assert equal(AtomicCheckpointIO().load_checkpoint(str(saved)))
    assert equal(TorchCheckpointIO().load_checkpoint(str(saved), weights_only=True))
    for mmap in (False, True):
        assert equal(torch.load(saved, weights_only=True, mmap=mmap))


def test_the_shell_writes_checkpoints_that_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")
    left = (
        tmp_path
        / "runs"
        / "version_0"
        / "checkpoints"
        / f".contrastive-text.{HOST}.{disk._process_space()}.{dead()}.0.tmp"
    )
    left.parent.mkdir(parents=True)
    left.write_text("half a checkpoint")
    words = ["fit", "--model.encoder.model_name_or_path", tiny.save_bert(tmp_path / "bert")]
    words += ["--data.train", tiny.write_texts(tmp_path / "texts.txt"), "--recipe", "simcse"]
    words += ["--data.batch_size", "8", "--data.num_workers", "0", "--trainer.max_steps", "1"]
    words += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    assert shell(words) == 0
    (checkpoint,) = (tmp_path / "runs" / "version_1" / "checkpoints").iterdir()
    assert read_checkpoint(checkpoint).step == 1
    assert not left.exists()
    assert [name for name in names(checkpoint.parents[1]) if name.startswith(".")] == []


# What is read


def test_what_is_no_plain_data_is_read_only_when_it_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint({**CONTENT, "part": random.Random(0)}, path)
    for weights_only in (None, True):
        with pytest.raises(
            ValueError, match=r"a\.ckpt: expected .* plain data, .* load it with weights_only=False"
        ):
            AtomicCheckpointIO().load_checkpoint(path, weights_only=weights_only)
    assert equal(AtomicCheckpointIO().load_checkpoint(path, weights_only=False))


# A save that fails


class Full:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


@pytest.mark.parametrize("room", [0, 100, 600, 1500])
def test_a_full_disk_leaves_the_older_checkpoint_and_says_so(
    room: int, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    opened = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *arguments: Full(opened(*arguments), room))
    with pytest.raises(OSError, match=r"a\.ckpt: expected room for a checkpoint, got No space left") as raised:
        AtomicCheckpointIO().save_checkpoint({**CONTENT, "epoch": 4}, saved)
    assert raised.value.errno == errno.ENOSPC
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["a.ckpt"]


class Unwritable:
    """A part that can't be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not this one")


@pytest.mark.parametrize("failing", ["part", "fsync", "replace"])
def test_whatever_fails_the_older_checkpoint_stays_and_nothing_else(
    failing: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*arguments: object) -> None:  # noqa: ARG001  # those of the real ones
        raise RuntimeError("not this one")

    if failing != "part":
        monkeypatch.setattr(os, failing, fail)
    content = {**CONTENT, "part": Unwritable()} if failing == "part" else CONTENT
    with pytest.raises(RuntimeError, match="not this one"):
        AtomicCheckpointIO().save_checkpoint(content, saved)
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["a.ckpt"]


def test_the_file_is_on_the_disk_before_it_takes_its_name_and_the_name_after(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(opened: int) -> None:
        place = os.readlink(f"/proc/self/fd/{opened}") if sys.platform == "linux" else ""
        done.append(f"fsync {Path(place).suffix}")
        fsync(opened)

    def moved(source: Path, target: Path) -> None:
        done.append(f"replace {target.name}")
        verify_checkpoint(source)  # all of it is written
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", moved)
    AtomicCheckpointIO().save_checkpoint(CONTENT, saved)
    assert done == ["fsync .tmp", "replace a.ckpt", "fsync "]


def test_a_copy_is_whole_or_not_there(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "other" / "b.ckpt"
    copy_checkpoint(saved, target)
    assert target.read_bytes() == saved.read_bytes()
    copied = target.read_bytes()
    with monkeypatch.context() as patch:
        opened = os.fdopen
        patch.setattr(os, "fdopen", lambda *arguments: Full(opened(*arguments), 100))
        with pytest.raises(OSError, match="No space left"):
            copy_checkpoint(saved, target)
    assert target.read_bytes() == copied
    saved.write_bytes(saved.read_bytes()[:-1])
    with pytest.raises(ValueError, match="expected a whole checkpoint"):
        copy_checkpoint(saved, target)
    assert names(target.parent) == ["b.ckpt"]


# What is removed


def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_saving_loading_and_starting_a_run_sweep_the_folder(saved: Path, tmp_path: Path) -> None:
    left = saved.parent / f".contrastive-text.{HOST}.{disk._process_space()}.{dead()}.0.tmp"

    def start() -> None:
        trainer = tiny.trainer(tmp_path, callbacks=[BestCheckpoint(str(saved.parent))], enable_checkpointing=True)
        bert = tiny.save_bert(tmp_path / "bert")
        trainer.fit(tiny.module(bert), tiny.data(tiny.write_texts(tmp_path / "texts.txt")))

    for act in (
        lambda: AtomicCheckpointIO().save_checkpoint(CONTENT, saved),
        lambda: AtomicCheckpointIO().load_checkpoint(saved),
        start,
    ):
        left.write_text("half a checkpoint")
        act()
        assert not left.exists()


def test_removing_takes_the_link_alone_and_does_not_mind_absence(saved: Path, tmp_path: Path) -> None:
    link = tmp_path / "last.ckpt"
    link.symlink_to(saved)
    AtomicCheckpointIO().remove_checkpoint(link)
    assert not link.is_symlink()
    AtomicCheckpointIO().remove_checkpoint(str(saved))
    AtomicCheckpointIO().remove_checkpoint(str(saved))
    assert names(saved.parent) == []


def test_what_lies_in_a_store_is_left_to_lightning() -> None:
    io = AtomicCheckpointIO()
    io.save_checkpoint(CONTENT, "memory://runs/a.ckpt")
    assert equal(io.load_checkpoint("memory://runs/a.ckpt", weights_only=True))
    io.remove_checkpoint("memory://runs/a.ckpt")
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint("memory://runs/a.ckpt", weights_only=True)


def test_a_model_folder_is_known_as_one_only_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert, texts = tiny.save_bert(tmp_path / "bert"), tiny.write_texts(tmp_path / "texts.txt")
    model = tmp_path / "run" / "model"

    def fit() -> None:
        tiny.trainer(tmp_path, callbacks=[ExportModel(str(model))]).fit(tiny.module(bert), tiny.data(texts))

    replace = os.replace
    moved: list[str] = []

    def fail_at_last(source: Path, target: Path) -> None:
        if Path(target).name == "modules.json" and Path(target).is_relative_to(model):
            raise RuntimeError("killed")
        moved.append(Path(target).name)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail_at_last)
        with pytest.raises(RuntimeError, match="killed"):
            fit()
    assert "model.safetensors" in moved
    assert not (model / "modules.json").exists()
    assert names(model.parent) == ["model"]
    (model / "README.md").write_text("mine")
    fit()
    assert (model / "modules.json").is_file()
    assert (model / "1_Pooling" / "config.json").is_file()
    assert (model / "README.md").read_text() == "mine"
    assert names(model.parent) == ["model"]


# A process that is killed while it saves

SAVING = """
import sys, torch
from pathlib import Path
from contrastive_text.training import AtomicCheckpointIO
io, folder, step = AtomicCheckpointIO(), Path(sys.argv[1]), int(sys.argv[2])
weight = torch.full((8_000_000,), 1.0)
print("saving", flush=True)
former = None
while True:
    step += 1
    path = folder / f"step={step}.ckpt"
    io.save_checkpoint({"state_dict": {"weight": weight * step}, "epoch": step}, path)
    if former is not None:
        io.remove_checkpoint(former)
    former = path
"""


def save_folders(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shm = Path("/dev/shm")
    if shm.is_dir() and os.access(shm, os.W_OK) and shm.stat().st_dev != tmp_path.stat().st_dev:
        yield shm


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "another file system"])
def test_a_process_killed_while_it_saves_leaves_a_whole_checkpoint(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folders = list(save_folders(tmp_path))
    if place != "here" and len(folders) < 2:
        pytest.skip("/dev/shm isn't there, or is no file system of its own")
    folder = folders[0 if place == "here" else 1] / f"kills_{os.getpid()}"
    folder.mkdir()
    request.addfinalizer(lambda: [path.unlink() for path in folder.iterdir()] and folder.rmdir())
    times, inside, last = random.Random(0), 0, 0
    for _ in range(5):
        words = [sys.executable, "-c", SAVING, str(folder), str(last)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            while not (found := list(folder.glob("*.ckpt"))) and process.poll() is None:
                time.sleep(0.001)
            time.sleep(times.uniform(0.0, 0.4))
            process.send_signal(signal.SIGKILL)
        temporaries = list(folder.glob(".*"))
        inside += bool(temporaries)
        found = sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
        assert found
        for path in found:  # the one before may not have been removed yet
            verify_checkpoint(path)
        latest = AtomicCheckpointIO().load_checkpoint(found[-1])  # as a run does that goes on
        last = latest["epoch"]
        assert found[-1].name == f"step={last}.ckpt"
        assert torch.equal(latest["state_dict"]["weight"], torch.full((8_000_000,), float(last)))
        assert not list(folder.glob(".*"))
        for path in found[:-1]:
            path.unlink()
    print(f"{place}: 5 kills, {inside} of them inside a save, {last} checkpoints")
    assert inside >= 1
