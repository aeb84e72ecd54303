"""Files and folders are whole or not there, whenever a process ends; locks end with their holder."""

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrastive_text.core import disk, temporaries
from contrastive_text.core.disk import held, replacing, replacing_folder
from contrastive_text.core.errors import DiskError


def write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def write_model(folder: Path, content: str) -> None:
    with replacing_folder(folder, last="key", first="list", stale=["*.bin", "sub/old"]) as made:
        (made / "sub").mkdir()
        for name in ("list", "a", "sub/b", "key"):
            (made / name).write_text(content)


def test_a_failed_write_leaves_the_older_file_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a") as file:
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


def test_the_name_of_a_temporary_cannot_be_foretold(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "a"):
            names |= {path.name for path in tmp_path.glob(".contrastive-text.*")}
    assert len(names) == 3


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="a: expected room for it") as caught, replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_disk_that_fails_is_not_called_full(tmp_path: Path, number: int) -> None:
    with (
        pytest.raises(DiskError, match=r"a: expected a disk that takes it, .* put that right"),
        replacing(tmp_path / "a"),
    ):
        raise OSError(number, os.strerror(number))


def test_an_error_of_another_file_passes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), replacing(tmp_path / "a"):
        Path("/elsewhere/b").read_bytes()


def test_a_full_disk_is_told_where_another_library_has_the_word(tmp_path: Path) -> None:
    words = f"Error while serializing: I/O error: No space left on device (os error {errno.ENOSPC})"
    with pytest.raises(DiskError, match="a: expected room for it"), replacing(tmp_path / "a"):
        raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="os error 2"), replacing(tmp_path / "a"):
        raise RuntimeError("No such file or directory (os error 2)")


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="expected a place that can be written to"):
        write(tmp_path / "none" / "a", b"")


def test_a_folder_takes_its_place_with_one_permission_and_without_stale_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    for name in ("x.bin", "notes.txt", "sub/old"):
        (folder / name).write_text("older")
    with replacing_folder(folder, last="key", stale=["*.bin", "sub/old"]) as made:
        (made / "key").write_text("1")
        (made / "key").chmod(0o600)
        (made / "weights").write_text("2")
    assert sorted(path.name for path in folder.iterdir()) == ["key", "notes.txt", "weights"]
    modes = {stat.S_IMODE((folder / name).stat().st_mode) for name in ("key", "weights")}
    assert modes == {stat.S_IMODE((folder / "notes.txt").stat().st_mode)}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_stale_is_removed_through_a_linked_folder(tmp_path: Path) -> None:
    theirs, folder = tmp_path / "theirs", tmp_path / "model"
    theirs.mkdir()
    folder.mkdir()
    (theirs / "old").write_text("another's")
    (folder / "linked").symlink_to(theirs)
    with replacing_folder(folder, last="key", stale=["linked/old", "none/old"]) as made:
        (made / "key").write_text("1")
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
    with held(folder) as mine, held(folder) as again:
        assert (mine, again) == (True, False)
        write_model(folder, "new")
    assert sorted(path.name for path in folder.iterdir()) == ["a", "key", "list", "sub"]


def test_the_next_save_removes_what_a_killed_one_left_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "old")
    kill_at(3, monkeypatch, lambda: write_model(tmp_path, "new"))
    temporaries._in_use.clear()  # as in another process
    left = [path.name for path in tmp_path.glob(temporaries.TEMPORARIES)]
    write_model(tmp_path, "newer")
    assert (len(left), list(tmp_path.glob(temporaries.TEMPORARIES))) == (1, [])


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
        patch.setattr(temporaries.shutil, "rmtree", lambda *_, **__: None)
        try:
            work()
        except Killed:
            return False
    return True


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys, pathlib\nfrom contrastive_text.core.disk import held\n"
             "with held(pathlib.Path(sys.argv[1])) as mine:\n    print(mine)", str(tmp_path / "a")]  # fmt: skip
    with held(tmp_path / "a") as mine:
        assert mine
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "False\n"
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "True\n"
    assert not list(tmp_path.iterdir())


def test_where_an_open_file_cannot_be_removed_a_lock_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, close = [], os.close

    def closed(descriptor: int) -> None:
        steps.append("close")
        close(descriptor)

    def removed(path: Path, **_: bool) -> None:
        steps.append("unlink")
        raise PermissionError(errno.EACCES, "another process has it open", str(path))

    with held(tmp_path / "a"), monkeypatch.context() as patch:
        patch.setattr(disk, "_WINDOWS", True)
        patch.setattr(os, "close", closed)
        patch.setattr(Path, "unlink", removed)
        with held(tmp_path / "b"):
            steps.clear()
        assert steps == ["close", "unlink"]
