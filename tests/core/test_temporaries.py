"""What killed processes leave is removed, and nothing else."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from contrastive_text.core import temporaries
from contrastive_text.core.disk import replacing
from contrastive_text.core.temporaries import remove_abandoned


def test_only_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with replacing(tmp_path / "a"):
        own = next(tmp_path.glob(".contrastive-text.*"))
        left = tmp_path / own.name.replace(f".{os.getpid()}.", f".{dead.pid}.")
        left.write_text("half")
        (tmp_path / ".contrastive-text.notes").write_text("a user's")
        assert remove_abandoned(tmp_path) == [left]
        assert own.exists()
    assert remove_abandoned(tmp_path / "none") == []


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, host, old = ended.pid, platform.node(), time.time() - 2 * 3600
    space = temporaries._process_space()
    stale = [
        f".contrastive-text.{host}.{space}.{dead}.0.tmp",
        f".contrastive-text.{host}.{space}.{os.getpid()}.999999.tmp",  # of a process before that had our number
        ".contrastive-text.elsewhere.0.1.0.tmp",
        f".contrastive-text.{host}.{space}.{os.getppid()}.1.tmp",
    ]
    kept = [
        f".contrastive-text.{host}.{space + 1}.{dead}.0.tmp",  # of a container whose processes can't be seen
        ".contrastive-text.elsewhere.0.7.0.tmp",  # another machine may be writing it
        f".contrastive-text.{host}.{space}.{os.getppid()}.0.tmp",  # of a living process
        ".contrastive-text.tmp",
        ".notes.tmp",
        "a.ckpt",
    ]
    for name in stale + kept:
        (tmp_path / name).write_text("x")
    for name in stale[2:] + kept[3:]:
        os.utime(tmp_path / name, (old, old))
    folder = tmp_path / f".contrastive-text.{host}.{space}.{dead}.3.tmp"
    (folder / "1_Pooling").mkdir(parents=True)
    with replacing(tmp_path / "b.ckpt") as file:
        file.write(b"being written")
        removed = remove_abandoned(tmp_path)
        assert sorted(path.name for path in removed) == sorted([*stale, folder.name])
        assert len(list(tmp_path.iterdir())) == len(kept) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "b.ckpt"])


def test_a_temporary_names_its_process_and_not_its_target(tmp_path: Path) -> None:
    with replacing(tmp_path / "hpc_ckpt_1.ckpt"):
        (temporary,) = tmp_path.iterdir()
        assert temporary.name.startswith(
            f".contrastive-text.{platform.node()}.{temporaries._process_space()}.{os.getpid()}."
        )
        assert "hpc_ckpt" not in temporary.name  # Lightning takes every number after that for a version
