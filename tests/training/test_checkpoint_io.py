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
from contrastive_text.core.storage.checkpoints import archive_digest, check_resumable, verify_checkpoint
from contrastive_text.training import AtomicCheckpointIO
from contrastive_text.training.callbacks import BestCheckpoint
from contrastive_text.training.checkpoint_io import copy_checkpoint

WEIGHT = torch.arange(300.0)
CONTENT = {"state_dict": {"weight": WEIGHT, "index": torch.arange(5)}, "epoch": 3, "part": {"a": "b"}}


def equal(loaded: dict[str, Any]) -> bool:
    weights = {
        name: torch.equal(weight, CONTENT["state_dict"][name])
        for name, weight in loaded.pop("state_dict").items()
    }
    return weights == {"weight": True, "index": True} and loaded == {"epoch": 3, "part": {"a": "b"}}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint(CONTENT, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What is read


def test_a_checkpoint_is_read_by_us_by_torch_and_by_lightning_alone(saved: Path) -> None:
    assert names(saved.parent) == ["a.ckpt"]
    verify_checkpoint(str(saved))
    assert equal(AtomicCheckpointIO().load_checkpoint(str(saved)))
    assert equal(TorchCheckpointIO().load_checkpoint(str(saved), weights_only=True))
    assert equal(torch.load(saved, weights_only=True, mmap=True))


def test_what_is_no_plain_data_is_read_only_when_it_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    AtomicCheckpointIO().save_checkpoint({**CONTENT, "part": random.Random(0)}, path)
    for weights_only in (None, True):
        with pytest.raises(ValueError, match=r"a\.ckpt: expected .* plain data, .* with weights_only=False"):
            AtomicCheckpointIO().load_checkpoint(path, weights_only=weights_only)
    assert AtomicCheckpointIO().load_checkpoint(path, weights_only=False)["epoch"] == 3


def parts(content: bytes) -> dict[str, range]:
    """Places of the tensors, of the pickle, of the names in headers, and of the archive's directory."""
    pickle, directory = content.find(b"\x80\x02"), content.find(b"PK\x01\x02")
    tensor = content.find(WEIGHT.numpy().tobytes())
    return {
        "tensor": range(tensor, tensor + 1200, 203),
        "pickle": range(pickle, content.find(b"PK", pickle), 21),
        "header": range(4, 60, 7),
        "directory": range(directory, len(content), 7),
    }


def loads_equal(path: Path) -> bool:
    """Returns whether torch reads equal bits from a file and a mapped file; an error counts as equal."""
    for mmap in (False, True):
        try:
            read = torch.load(path, weights_only=True, mmap=mmap)
        except (RuntimeError, ValueError):  # a byte of the directory that only torch reads
            continue
        if not equal(read):
            return False
    return True


@pytest.mark.parametrize("part", ["tensor", "pickle", "header", "directory"])
def test_a_flipped_bit_is_refused_or_loads_bit_equal(saved: Path, part: str) -> None:
    content, refused = saved.read_bytes(), 0
    for place in parts(content)[part]:
        changed = bytearray(content)
        changed[place] ^= 0x40
        saved.write_bytes(changed)
        try:
            verify_checkpoint(saved)
        except ValueError as error:
            assert f"{saved}: expected a whole checkpoint" in str(error)
            refused += 1
            if part == "tensor":  # the reason for the check: torch itself reads it without a word
                assert not loads_equal(saved)
                with pytest.raises(ValueError, match=r"got damaged bytes in .*data/0"):
                    AtomicCheckpointIO().load_checkpoint(saved)
        else:
            assert part in ("header", "directory"), place
            assert loads_equal(saved), place
    assert refused


def test_cuts_at_any_length_and_bytes_too_many_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    size = len(content)
    cuts = [content[:length] for length in [*range(0, size - 130, 97), *range(size - 130, size, 3)]]
    for damaged in (*cuts, content + b"\0", content + b"x", content + content, b"shopping list\n" * 100):
        saved.write_bytes(damaged)
        try:
            verify_checkpoint(saved)
        except ValueError as error:
            assert f"{saved}: expected a whole checkpoint" in str(error)
            assert "; it was cut short or changed" in str(error)
        else:
            assert loads_equal(saved)


def test_checksums_tell_checkpoints_of_one_size_apart(tmp_path: Path) -> None:
    for name, weight in (("a", 1.0), ("b", 2.0), ("same", 1.0)):
        torch.save({"state_dict": {"weight": torch.full((9,), weight)}}, tmp_path / "c.ckpt")
        (tmp_path / "c.ckpt").rename(tmp_path / name)
    assert (tmp_path / "a").stat().st_size == (tmp_path / "b").stat().st_size
    assert archive_digest(tmp_path / "a") == archive_digest(tmp_path / "same") != archive_digest(tmp_path / "b")
    (tmp_path / "none").write_bytes(b"no archive")
    assert archive_digest(tmp_path / "none") == b""


@pytest.mark.parametrize("name", ["nothing.ckpt", "."])
def test_no_file_and_a_folder_are_refused_with_the_option(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected a file, found none at .*; check --ckpt_path"):
        verify_checkpoint(tmp_path / name)


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"optimizer_states": None, "lr_schedulers": None}, "optimizer_states, lr_schedulers"),
        ({"optimizer_states": []}, "optimizer_states"),
        ({"optimizer_states": "state"}, "optimizer_states"),
        ({"loops": {}}, "loops"),
        ({"loops": {"fit_loop": {}}}, "loops"),
    ],
    ids=str,
)
def test_no_run_goes_on_from_a_checkpoint_without_its_state(changes: dict[str, Any], lacks: str) -> None:
    whole = {"state_dict": {}, "optimizer_states": [{}], "lr_schedulers": [], "loops": {"fit_loop": {"a": 1}}}
    check_resumable(whole, "a.ckpt")
    said = rf"^a\.ckpt: expected a checkpoint .*, got one without {lacks}; .* --init_from$"
    kept = {name: value for name, value in {**whole, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        check_resumable(kept, "a.ckpt")


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


def make_disk_full(patch: pytest.MonkeyPatch, room: int) -> None:
    opened = os.fdopen
    patch.setattr(os, "fdopen", lambda *arguments: Full(opened(*arguments), room))


@pytest.mark.parametrize("room", [0, 600])
def test_a_full_disk_leaves_the_older_checkpoint_and_says_so(
    room: int, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()
    make_disk_full(monkeypatch, room)
    with pytest.raises(OSError, match=r"a\.ckpt: expected room for a checkpoint, got No space left") as raised:
        AtomicCheckpointIO().save_checkpoint({**CONTENT, "epoch": 4}, saved)
    assert raised.value.errno == errno.ENOSPC
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
    copied = target.read_bytes()
    assert copied == saved.read_bytes()
    with monkeypatch.context() as patch:
        make_disk_full(patch, 100)
        with pytest.raises(OSError, match="No space left"):
            copy_checkpoint(saved, target)
    assert target.read_bytes() == copied
    saved.write_bytes(copied[:-1])
    with pytest.raises(ValueError, match="expected a whole checkpoint"):
        copy_checkpoint(saved, target)
    assert names(target.parent) == ["b.ckpt"]


# What is removed


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_saving_loading_and_starting_a_run_sweep_the_folder(
    saved: Path, bert: str, texts: str, tmp_path: Path
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = saved.parent / f".contrastive-text.{platform.node()}.{disk._process_space()}.{ended.pid}.0.tmp"

    def start() -> None:
        trainer = tiny.trainer(tmp_path, callbacks=[BestCheckpoint(str(saved.parent))], enable_checkpointing=True)
        trainer.fit(tiny.module(bert), tiny.data(texts))

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
    for path in (link, str(saved), str(saved)):
        AtomicCheckpointIO().remove_checkpoint(path)
        assert saved.exists() == (path == link)
    assert not link.is_symlink() and names(saved.parent) == []


def test_what_lies_in_a_store_is_left_to_lightning() -> None:
    io = AtomicCheckpointIO()
    io.save_checkpoint(CONTENT, "memory://runs/a.ckpt")
    assert equal(io.load_checkpoint("memory://runs/a.ckpt", weights_only=True))
    io.remove_checkpoint("memory://runs/a.ckpt")
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint("memory://runs/a.ckpt", weights_only=True)
