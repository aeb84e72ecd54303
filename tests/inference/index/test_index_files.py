"""An index loses nothing to a kill or a full disk, and refuses damaged and foreign files."""

from __future__ import annotations

import json
import os
import posix
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from covering import rest_slow

from contrastive_text.core.errors import DiskError
from contrastive_text.inference import index_files
from contrastive_text.inference.index import Index
from contrastive_text.inference.index_documents import Document
from contrastive_text.inference.index_files import DATABASE, IndexFolder
from contrastive_text.inference.index_writer import first_to_merge, remove_documents, writing
from contrastive_text.inference.sentence_encoder import SentenceEncoder

TEXTS = list(tiny.TEXTS)


def files_of(index: Index) -> list[str]:
    return sorted(file.name for file in index.folder.iterdir())


def damage_database(folder: Path) -> None:
    content = bytearray((folder / DATABASE).read_bytes())
    content[4096:8192] = bytes(4096)
    (folder / DATABASE).write_bytes(content)


def run_sql(*lines: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        database = sqlite3.connect(folder / DATABASE)
        for line in lines:
            database.execute(line)
        database.commit()
        database.close()

    return change


def forge_segment(folder: Path) -> None:
    """Replaces vectors by a pickle with a matching digest, as a stranger may."""
    np.save(folder / "vectors-0.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    digest = index_files.FileDigest.of(folder / "vectors-0.npy")
    record = json.dumps({"vectors": digest.to_json()})
    run_sql(f"UPDATE segments SET record = '{record}'")(folder)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no database": (lambda folder: (folder / DATABASE).unlink(), "expected the folder of an index"),
    "an empty database": (lambda folder: (folder / DATABASE).write_bytes(b""), "got other tables than"),
    "words": (lambda folder: (folder / DATABASE).write_bytes(b"words" * 2000), "file is not a database"),
    "zeros in the database": (damage_database, "expected the database of an index, got"),
    "a short database": (lambda folder: os.truncate(folder / DATABASE, 9000), "the database of an index, got"),
    "no segment": (lambda folder: (folder / "vectors-0.npy").unlink(), "expected an unchanged file, got no file"),
    "a changed byte": (
        lambda folder: (folder / "vectors-0.npy").write_bytes(
            (folder / "vectors-0.npy").read_bytes()[:-1] + b"\x01"
        ),
        r"vectors-0\.npy: expected an unchanged file, got changed bytes",
    ),
    "a pickle": (forge_segment, r"vectors-0\.npy: expected an array, got .* Python objects"),
    "a trigger": (
        run_sql("CREATE TRIGGER t AFTER INSERT ON documents BEGIN DELETE FROM documents; END"),
        "got other tables than this version",
    ),
    "a view": (
        run_sql("ALTER TABLE documents RENAME TO d", "CREATE VIEW documents AS SELECT * FROM d"),
        "tables",
    ),
    "another format": (run_sql("UPDATE facts SET content = replace(content, '1', '2')"), "format: expected"),
    "no facts": (run_sql("DELETE FROM facts"), "got 0 rows of its facts"),
    "words as facts": (run_sql("UPDATE facts SET content = 'a'"), "got no JSON"),
    "words as counters": (run_sql("UPDATE counters SET version = 'a'"), "counters that are no numbers"),
    "other rows": (run_sql("UPDATE segments SET rows = zeroblob(48)"), r"float32 of \(2, 16\), got"),
    "a segment of words": (
        run_sql("UPDATE segments SET record = x'00'"),
        "names to values, got null",
    ),
}


@pytest.mark.parametrize("name", rest_slow(DAMAGE, quick=9))
def test_a_damaged_or_foreign_folder_is_refused(index: Index, model: SentenceEncoder, name: str) -> None:
    change, said = DAMAGE[name]
    index.close()
    change(index.folder)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        Index.open(index.folder, model)


FOUND: dict[str, tuple[str, str]] = {
    "no document": ("DELETE FROM documents WHERE number = 7", "expected a document for each vector"),
    "bytes as a text": ("UPDATE documents SET text = x'00'", "of another form"),
    "words as metadata": ("UPDATE documents SET metadata = 'a'", "expected metadata as a JSON mapping"),
    "deep metadata": (f"UPDATE documents SET metadata = '{'[' * 10**5}'", "expected metadata as a JSON mapping"),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_foreign_document_is_refused_when_it_is_found(index: Index, model: SentenceEncoder, name: str) -> None:
    line, said = FOUND[name]
    index.close()
    run_sql(line)(index.folder)
    with pytest.raises(ValueError, match=said):
        Index.open(index.folder, model).search(TEXTS[7], top_k=40)


@pytest.mark.parametrize("place", ["segment", "database"])
def test_a_full_disk_changes_nothing(index: Index, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    before = files_of(index)
    if place == "segment":

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
    else:
        connect = index_files.connect

        def small(path: Path) -> sqlite3.Connection:
            database = connect(path)
            database.execute("PRAGMA max_page_count = 1")
            return database

        monkeypatch.setattr("contrastive_text.inference.index_writer.connect", small)
    with pytest.raises(DiskError, match=r"expected room for it, got .*; make room"):
        index.add(["a long bird " * 1000])
    monkeypatch.undo()
    assert files_of(index) == before and len(index) == 40
    assert index.add(["a bird"]) == ["40"]


def test_files_of_a_killed_writer_are_removed_by_the_next(index: Index) -> None:
    for name in ("vectors-7.npy", "vectors-7.faiss", "build.npy", "build.npy.unfinished"):
        (index.folder / name).write_bytes(b"x")
    index.add(["a bird"])
    assert files_of(index) == [DATABASE, "vectors-0.npy", "vectors-1.npy"]


CALLS = ("write", "pwrite64", "fsync", "fdatasync", "rename", "unlink")


def change_index(folder: Path) -> None:
    """Adds 30 documents, which are merged with the earlier ones, and removes 30."""
    files = IndexFolder(folder)
    with writing(files) as writer:
        documents = [Document(f"new {number}", "a bird") for number in range(30)]
        writer.add(documents, [np.ones((30, 16), np.float32)])
        writer.merge(files.state())
    remove_documents(files, [f"{number}" for number in range(20)])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace kills the process at a system call")
@pytest.mark.parametrize("call", CALLS)
def test_a_process_that_is_killed_at_any_write_loses_nothing(
    model: SentenceEncoder, tmp_path: Path, call: str
) -> None:
    Index.create(tmp_path / "index", model).add(TEXTS[:20])
    states = {20: 0, 50: 0, 30: 0}
    for number in range(1, 300):
        folder = tmp_path / f"{call}-{number}"
        shutil.copytree(tmp_path / "index", folder)
        if not killed(lambda folder=folder: change_index(folder), call, number):
            break
        index = Index.open(folder, model)
        states[len(index)] += 1
        hits = index.search(TEXTS[3], top_k=100)[0]
        assert [hit.id for hit in sorted(hits, key=lambda hit: index.ids.index(hit.id))] == index.ids
        assert index.add(["one more"])
        segments = len(list(folder.glob("vectors-*.npy")))
        assert segments == index.info()["segments"]
        assert not [name for name in files_of(index) if "journal" in name or name.endswith(".tmp")]
    assert number > 1 and sum(states.values()) == number - 1
    assert len(Index.open(folder, model)) == 30


def killed(work: Callable[[], None], call: str, number: int) -> bool:
    """Runs a function in a fork that is killed when it enters a system call for the n-th time."""
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.read(ready, 1)
            os.fsync = posix.fsync  # tests skip it
            work()
            status = 0
        finally:
            os._exit(status)
    inject = f"inject={call}:signal=KILL:when={number}"
    words = ["strace", "-p", str(child), "-e", f"trace={call}", "-e", inject, "-o", os.devnull]
    tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    attached = "attached" in tracer.stderr.readline()
    os.write(go, b"x")
    _, status = os.waitpid(child, 0)
    tracer.wait()
    tracer.stderr.close()
    os.close(ready)
    os.close(go)
    if not attached:
        pytest.skip("strace may not attach to a process here")
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def test_segments_are_merged_when_later_ones_are_as_large() -> None:
    sizes: list[int] = []
    copied = 0
    for _ in range(1000):
        sizes.append(1)
        start = first_to_merge(sizes, [0] * len(sizes))
        if start is not None:
            copied += sum(sizes[start:])
            sizes = [*sizes[:start], sum(sizes[start:])]
        assert len(sizes) <= 10
    assert sum(sizes) == 1000 and copied <= 1000 * 10
