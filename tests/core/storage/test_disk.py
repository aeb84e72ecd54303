"""Files and folders are whole or not there, whenever a process ends; locks end with their holder."""

import errno
import os
import platform
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrastive_text.core.errors import DiskError
from contrastive_text.core.storage import disk
from contrastive_text.core.storage.disk import atomic_file, atomic_folder, hold_lock, remove_abandoned


def write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def write_model(folder: Path, content: str) -> None:
    with atomic_folder(folder, last="key", first="list", stale=["*.bin", "sub/old"]) as made:
        (made / "sub").mkdir()
        for name in ("list", "a", "sub/b", "key"):
            (made / name).write_text(content)


def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), atomic_file(tmp_path / "a") as file:
        file.write(b"half")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("untouched")
    (tmp_path / "a").symlink_to(tmp_path / "theirs")
    write(tmp_path / "a", b"ours")
    assert (tmp_path / "theirs").read_text() == "untouched"
    assert not (tmp_path / "a").is_symlink()


def test_a_temporary_names_its_process_and_not_its_target_and_cannot_be_foretold(tmp_path: Path) -> None:
    names, process = set(), f"{platform.node()}.{disk._process_space()}.{os.getpid()}"
    for _ in range(3):
        with atomic_file(tmp_path / "hpc_ckpt_1.ckpt"):
            (temporary,) = tmp_path.glob(f".contrastive-text.{process}.*")
            assert "hpc_ckpt" not in temporary.name  # Lightning takes every number after that for a version
            names.add(temporary.name)
    assert len(names) == 3


FULL = os.strerror(errno.ENOSPC)


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (OSError(errno.ENOSPC, FULL), DiskError, "a: expected room for it, got No space .*unchanged"),
        (OSError(errno.EIO, "I/O"), DiskError, "a: expected a writable disk, got I/O; repair it"),
        (OSError(errno.EROFS, "read"), DiskError, "a: expected a writable disk, got read; repair it"),
        (RuntimeError(f"Error: {FULL} (os error {errno.ENOSPC})"), DiskError, "a: expected room for it"),
        (RuntimeError("No such file (os error 2)"), RuntimeError, "os error 2"),
        (FileNotFoundError(errno.ENOENT, "none", "/elsewhere/b"), FileNotFoundError, "elsewhere/b"),
    ],
    ids=repr,
)
def test_an_error_of_the_disk_names_the_file_and_another_passes(
    tmp_path: Path, error: Exception, raised: type[Exception], words: str
) -> None:
    with pytest.raises(raised, match=words) as caught, atomic_file(tmp_path / "a"):
        raise error
    assert getattr(caught.value, "errno", None) in (getattr(error, "errno", None), errno.ENOSPC)


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="expected a place that can be written to"):
        write(tmp_path / "none" / "a", b"")


def test_a_folder_takes_its_place_with_one_permission_and_without_stale_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for name in ("x.bin", "notes.txt", "sub/old"):
        (folder / name).write_text("older")
    with atomic_folder(folder, first="list", last="key", stale=["*.bin", "sub/old"]) as made:
        for name in ("list", "key", "weights"):
            (made / name).write_text("1")
        (made / "key").chmod(0o600)
    assert sorted(path.name for path in folder.iterdir()) == ["key", "list", "notes.txt", "weights"]
    modes = {stat.S_IMODE((folder / name).stat().st_mode) for name in ("key", "weights")}
    assert modes == {stat.S_IMODE((folder / "notes.txt").stat().st_mode)}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_stale_is_removed_through_a_linked_folder(tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "model"
    theirs.mkdir()
    folder.mkdir()
    (theirs / "old").write_text("another's")
    (folder / "linked").symlink_to(theirs)
    with atomic_folder(folder, first="list", last="key", stale=["linked/old", "none/old"]) as made:
        for name in ("list", "key"):
            (made / name).write_text("1")
    assert (theirs / "old").read_text() == "another's"


def test_a_relative_place_and_a_linked_one_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "sub" / "old").write_text("older")
    (tmp_path / "link").symlink_to("model")
    write_model(Path("model"), "new")
    write_model(Path("link"), "newer")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "model" / "key").read_text() == "newer"
    assert sorted(path.name for path in (tmp_path / "model" / "sub").iterdir()) == ["b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]


def test_nothing_is_written_through_a_linked_folder(tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "model"
    theirs.mkdir()
    folder.mkdir()
    (folder / "sub").symlink_to(theirs)
    write_model(folder, "new")
    assert not list(theirs.iterdir())
    assert (folder / "sub" / "b").read_text() == "new"


def test_a_folder_in_the_place_of_a_file_is_told_before_anything_moves(tmp_path: Path) -> None:
    write_model(tmp_path / "model", "old")
    (tmp_path / "model" / "a").unlink()
    (tmp_path / "model" / "a").mkdir()
    with pytest.raises(DiskError, match="a: expected a file or nothing, got a folder; move it away"):
        write_model(tmp_path / "model", "new")
    assert {(tmp_path / "model" / name).read_text() for name in ("list", "sub/b", "key")} == {"old"}


def test_a_folder_on_a_disk_of_its_own_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is a mounted volume: nothing moves into it from outside."""
    folder, move = tmp_path / "model", os.replace
    folder.mkdir()

    def on_one_disk(source: Path, target: Path) -> None:
        if source.is_relative_to(folder) != target.is_relative_to(folder):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))
        move(source, target)

    monkeypatch.setattr(os, "replace", on_one_disk)
    write_model(folder, "new")
    assert (folder / "sub" / "b").read_text() == "new"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "key", "list", "sub"]


def test_where_nothing_may_be_written_beside_a_folder_it_is_written_to_and_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: Path, *given: Any, **named: Any) -> Any:
            if Path(path).parent == tmp_path and Path(path) != folder:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *given, **named)

        return run

    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    monkeypatch.setattr(os, "open", refusing(os.open))
    monkeypatch.setattr(Path, "mkdir", refusing(Path.mkdir))
    with hold_lock(folder) as mine, hold_lock(folder) as again:
        assert (mine, again) == (True, False)
        write_model(folder, "new")
    assert sorted(path.name for path in folder.iterdir()) == ["a", "key", "list", "sub"]


def test_the_next_save_removes_what_a_killed_one_left_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "old")
    kill_at(3, monkeypatch, lambda: write_model(tmp_path, "new"))
    disk._used_names.clear()  # as in another process
    left = [path.name for path in tmp_path.glob(disk.TEMPORARIES)]
    write_model(tmp_path, "newer")
    assert (len(left), list(tmp_path.glob(disk.TEMPORARIES))) == (1, [])


def test_of_two_saves_at_once_the_files_are_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move, folder = os.replace, tmp_path / "model"

    def slowly(source: Path, target: Path) -> None:
        move(source, target)
        if threading.current_thread() is first:
            begun.set()
            time.sleep(0.05)  # gives the other save the time to move all its files

    begun = threading.Event()
    first = threading.Thread(target=write_model, args=(folder, "first"))
    monkeypatch.setattr(os, "replace", slowly)
    first.start()
    begun.wait(10)
    write_model(folder, "second")
    first.join()
    assert {(folder / name).read_text() for name in ("list", "a", "sub/b", "key")} == {"second"}
    assert sorted(path.name for path in folder.iterdir()) == ["a", "key", "list", "sub"]


class Killed(BaseException):
    pass


def test_a_kill_at_any_step_leaves_no_key_over_files_of_two_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every flush, rename and unlink in turn: with the key there, all files are of one save."""
    mixtures = 0
    for stop in range(200):
        folder = tmp_path / str(stop)
        write_model(folder, "old")
        (folder / "stale.bin").write_text("old")
        done = kill_at(stop, monkeypatch, lambda folder=folder: write_model(folder, "new"))
        found = {
            name: (folder / name).read_text()
            for name in ("list", "a", "sub/b", "key")
            if (folder / name).exists()
        }
        if "key" in found and found != dict.fromkeys(found, "old") | {"list": "new"}:
            assert len(set(found.values())) == 1
        elif found["list"] == "old":  # the list is there before anything of what it names has changed
            assert set(found.values()) == {"old"}
            assert len(found) == 4
        else:
            mixtures += 1
        if done:
            assert (folder / "key").read_text() == "new"
            assert not (folder / "stale.bin").exists()
            break
    else:
        pytest.fail("the save has no end")
    assert mixtures


def kill_at(stop: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> bool:
    """Runs work that is killed at a number of its steps on the disk; tells whether it came to its end."""
    steps = 0

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            nonlocal steps
            if steps == stop:
                raise Killed
            steps += 1
            return call(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "unlink"):
            patch.setattr(os, name, counted(getattr(os, name)))
        patch.setattr(Path, "unlink", counted(Path.unlink))
        patch.setattr(disk.shutil, "rmtree", lambda *_, **__: None)
        try:
            work()
        except Killed:
            return False
    return True


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom contrastive_text.core.storage.disk import hold_lock\n"
        "with hold_lock(pathlib.Path(sys.argv[1])) as mine:\n    print(mine)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "a")]
    with hold_lock(tmp_path / "a") as mine:
        assert mine
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "True\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fcntl = pytest.importorskip("fcntl", reason="a lock of Windows")

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with hold_lock(tmp_path / "a") as mine:
        assert mine
    assert not list(tmp_path.iterdir())


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, host, old = ended.pid, platform.node(), time.time() - 2 * 3600
    space = disk._process_space()
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
    with atomic_file(tmp_path / "b.ckpt") as file:
        file.write(b"being written")
        removed = remove_abandoned(tmp_path)
        assert sorted(path.name for path in removed) == sorted([*stale, folder.name])
        assert len(list(tmp_path.iterdir())) == len(kept) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "b.ckpt"])
    assert remove_abandoned(tmp_path / "none") == []
