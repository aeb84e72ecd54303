"""Checkpoints are whole or not there, whatever happens while one is written; damage is always noticed."""

from __future__ import annotations

import errno
import os
import platform
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import tiny
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from contrastive_text.core.storage import disk
from contrastive_text.core.storage.checkpoints import verify_checkpoint
from contrastive_text.training import AtomicCheckpointIO
from contrastive_text.training.callbacks import BestCheckpoint
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
