"""Files of vectors: whole or not at all, the same bytes after a kill, refused when damaged."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from covering import rest_slow
from vectors_on_disk import (
    DAMAGES,
    MANY,
    SMALL,
    Killed,
    attempt,
    beside,
    changed_bytes,
    embedded,
    killed_at,
    stopped,
)

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    EmbeddingRun,
    UnfinishedVectors,
)


def test_appended_blocks_are_the_bytes_of_one_array(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    file = io.BytesIO()
    np.save(file, vectors)
    for size in (1, 4, 10):
        growing = UnfinishedVectors(tmp_path / "v.npy", {}, count=10)
        for start in range(0, 10, size):
            growing.append(vectors[start : start + size], truncated=0)
        assert growing.finish() == (10, 3)
        assert (tmp_path / "v.npy").read_bytes() == file.getvalue()


KILLS = {"fsync": (1, 2, 3, 13, 17), "replace": (1, 2, 6, 7), "unlink": (1, 2, 3)}
"""Calls at which a run of five blocks dies: of the first blocks, of their records, and of all that ends it."""


@pytest.mark.parametrize("suffix", rest_slow([".npy", ".tsv"]))
def test_whenever_it_is_killed_the_output_is_whole_or_not_there_and_the_next_run_gives_the_same_bytes(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, suffix: str
) -> None:
    expected = embedded(model, texts, tmp_path / f"expected{suffix}")
    died, went_on = 0, 0
    for step, number in [(step, number) for step, numbers in KILLS.items() for number in numbers]:
        folder = tmp_path / f"{step}{number}"
        folder.mkdir()
        out = folder / f"v{suffix}"
        run = EmbeddingRun(model, texts, out, SMALL)
        with pytest.MonkeyPatch.context() as patched:
            killed_at(step, number, patched)
            try:
                run.finish()
            except Killed:
                died += 1
        assert not out.exists() or out.read_bytes() == expected
        again = EmbeddingRun(model, texts, out, SMALL)
        went_on += again.done > 0
        again.finish()
        assert out.read_bytes() == expected
        assert sorted(path.name for path in folder.iterdir()) == [out.name, f"{out.name}.json"]
    assert died == 12
    assert went_on >= 5


def test_an_older_output_stays_until_the_new_one_is_whole(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.npy"
    out.write_bytes(b"older")
    killed_at("fsync", 5, monkeypatch)
    with pytest.raises(Killed):
        embedded(model, texts, out)
    assert out.read_bytes() == b"older"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", rest_slow([".npy", ".tsv"]))
def test_no_two_kills_make_vectors_of_nothing_or_part_vectors_from_their_record(
    model: SentenceEncoder, tmp_path: Path, suffix: str
) -> None:
    texts = TextStream(tiny.write_texts(tmp_path / "few.txt", MANY[:6]))
    older_ranges, ranges = (np.float32([[-end] * 16, [end] * 16]) for end in (1, 3))
    older_run = Encoding(block_size=3, normalize_embeddings=True, precision="int8", ranges=older_ranges)
    new_run = Encoding(block_size=3, precision="int8", ranges=ranges)
    EmbeddingRun(model, texts, tmp_path / f"v{suffix}", older_run).finish()
    older = beside(tmp_path / f"v{suffix}")
    kept = [path for path in tmp_path.iterdir() if path.name.startswith("v.")]
    (tmp_path / "new").mkdir()
    EmbeddingRun(model, texts, tmp_path / "new" / f"v{suffix}", new_run).finish()
    new = beside(tmp_path / "new" / f"v{suffix}")
    assert len(older) == len(new) == 3
    number, died = 0, True
    while died:
        number += 1
        out = tmp_path / str(number) / f"v{suffix}"
        out.parent.mkdir()
        for path in kept:
            shutil.copy(path, out.parent)
        died = attempt(EmbeddingRun(model, texts, out, new_run), "any", number)
        assert not out.exists() or beside(out) in (older, new)
        again = EmbeddingRun(model, texts, out, new_run)
        assert attempt(again, "fsync", 1 if again.done else 3)  # a first block comes after the ranges
        assert not out.exists() or beside(out) in (older, new)
        EmbeddingRun(model, texts, out, new_run).finish()
        assert beside(out) == new
        assert len(list(out.parent.iterdir())) == 3
    assert number == {".npy": 26, ".tsv": 29}[suffix]  # one more than there are calls


def test_a_record_without_vectors_counts_for_nothing(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    expected = embedded(model, texts, tmp_path / "expected.npy")
    out, left = tmp_path / "v.npy", tmp_path / "v.npy.unfinished.json"
    shutil.copy(tmp_path / "expected.npy.json", left)  # as where the vectors were deleted by hand
    assert attempt(EmbeddingRun(model, texts, out, SMALL), "fsync", 1)
    assert EmbeddingRun(model, texts, out, SMALL).done == 0
    assert embedded(model, texts, out) == expected


def test_one_run_at_a_time_writes_a_file(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    run = EmbeddingRun(model, texts, out, SMALL)
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"v\.npy: .* got another process that is writing it; let"):
            EmbeddingRun(model, texts, out, SMALL, restart=restart)
    EmbeddingRun(model, texts, tmp_path / "w.npy", SMALL).finish()
    run.finish()
    assert embedded(model, texts, out) == (tmp_path / "w.npy").read_bytes()
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_unfinished_file_is_refused(
    model: SentenceEncoder,
    texts: TextStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> None:
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    kept = tmp_path / "v.npy.unfinished"
    with kept.open("rb+") as file:
        file.truncate(128 + 100 * 16 * 4)  # nobody vouches for what is after
    damage(kept)
    with pytest.raises(ValueError, match=r"expected 100 vectors as they were written, got .*begin anew"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)


def test_what_lies_behind_the_last_saved_block_of_an_unfinished_file_does_not_count(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    with (tmp_path / "v.npy.unfinished").open("rb+") as file:
        file.seek(128 + 100 * 16 * 4)
        file.write(b"half a block")
    assert embedded(model, texts, tmp_path / "v.npy") == embedded(model, texts, tmp_path / "w.npy")


def test_an_unfinished_file_that_is_a_link_is_not_written_through(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    kept = tmp_path / "v.npy.unfinished"
    kept.rename(tmp_path / "theirs")
    kept.symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(ValueError, match="unfinished: a link"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, restart=True).finish()
    assert (tmp_path / "theirs").read_bytes() == before


@pytest.mark.slow
def test_every_changed_byte_of_an_unfinished_output_is_found(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, byte = tmp_path / "v.npy", Encoding(block_size=50, batch_size=16, precision="int8")
    with monkeypatch.context() as patched:
        killed_at("fsync", 9, patched)  # the ranges are two more
        with pytest.raises(Killed):
            embedded(model, texts, out, byte)
    run = EmbeddingRun(model, texts, out, byte)
    assert run.done == 100
    run._vectors.close()
    files = [tmp_path / f"v.npy.unfinished{suffix}" for suffix in ("", ".json", ".ranges.npy")]
    sizes = [128 + 100 * 16, *(path.stat().st_size for path in files[1:])]
    for file in changed_bytes(files, sizes):
        with pytest.raises(ValueError, match=f"{file.name}: .*; begin anew"):
            EmbeddingRun(model, texts, out, byte)
    assert EmbeddingRun(model, texts, out, byte).done == 100
