"""A file of texts becomes a file of vectors, which resumes with the same bytes after a kill."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from vectors_on_disk import MANY, SMALL, attempt, beside, embedded, stopped

from contrastive_text.core.storage.disk import lock_output
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference import embedding_run as embedding
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import quantize, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Shard


@pytest.mark.parametrize("encoding", rest_slow([
    SMALL,
    Encoding(block_size=50, normalize_embeddings=True, truncate_dim=5),
    Encoding(block_size=50, precision="ubinary"),
    Encoding(block_size=50, precision="binary", truncate_dim=12),
], quick=2))  # fmt: skip
def test_a_file_holds_what_encode_gives_block_by_block(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, encoding: Encoding
) -> None:
    embedded(model, texts, tmp_path / "v.npy", encoding)
    expected = [
        model.encode(
            MANY[start : start + 50],
            batch_size=encoding.batch_size,
            normalize_embeddings=encoding.normalize_embeddings,
            truncate_dim=encoding.truncate_dim,
            precision=encoding.precision,
        )
        for start in range(0, len(MANY), 50)
    ]
    assert np.array_equal(np.load(tmp_path / "v.npy"), np.concatenate(expected))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.npy", "v.npy.json"]


@pytest.mark.parametrize("given", [True, False], ids=["ranges", "calibrated"])
def test_a_byte_has_the_ranges_that_lie_beside_it(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrastive_text.inference.embedding_run.CALIBRATION", 120)
    vectors = np.concatenate([model.encode(MANY[at : at + 50], batch_size=16) for at in range(0, 240, 50)])
    ranges = np.array([[-3.0] * 16, [3.0] * 16], np.float32) if given else None
    encoding = Encoding(block_size=50, batch_size=16, precision="int8", ranges=ranges)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", encoding)
    run.finish()
    used = np.load(run.ranges_path)
    expected = ranges if given else value_ranges(model.encode(MANY[:120], batch_size=16)).numpy()
    assert np.array_equal(used, expected)
    assert np.array_equal(np.load(tmp_path / "v.npy"), quantize(torch.as_tensor(vectors), "int8", used).numpy())


def test_other_options_another_model_and_changed_texts_are_refused_and_restart_begins_anew(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.npy"
    stopped(model, texts, out, monkeypatch)
    fewer = replace(SMALL, precision="ubinary", block_size=49, truncate_dim=8)
    said = "block_size 50 instead of 49, truncate_dim None instead of 8, precision float32"
    with pytest.raises(ValueError, match=f"v.npy.unfinished: expected vectors of these .*{said}.*--restart"):
        EmbeddingRun(model, texts, out, fewer)
    with pytest.warns(UserWarning, match="names no pooler"):
        other = SentenceEncoder.from_pretrained(tiny.save_bert(tmp_path / "other", seed=1))
    with pytest.raises(ValueError, match="got another model; use"):
        EmbeddingRun(other, texts, out, SMALL)
    run = EmbeddingRun(model, texts, out, fewer, restart=True)
    assert run.done == 0
    run.finish()
    assert out.read_bytes() == embedded(model, texts, tmp_path / "w.npy", fewer)
    stopped(model, texts, tmp_path / "x.npy", monkeypatch)
    tiny.write_texts(texts.path, (*MANY[:-1], "another last one"))
    with pytest.raises(ValueError, match="got other texts; use"):
        EmbeddingRun(model, TextStream(texts.path), tmp_path / "x.npy", SMALL)


@pytest.mark.slow
def test_vectors_without_ranges_leave_no_older_ranges_beside_them(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    EmbeddingRun(model, texts, tmp_path / "v.npy", Encoding(block_size=50, precision="int8")).finish()
    EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, restart=True).finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.npy", "v.npy.json"]


@pytest.mark.parametrize(
    ("changed", "shard"),
    [(MANY[:-1], None), ((*MANY, "one more"), None), ((*MANY[:-1], "another last one"), Shard(1, 3))],
    ids=["one text less", "one more", "another last one"],
)
def test_texts_that_change_while_they_are_encoded_give_no_output(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, changed: tuple[str, ...], shard: Shard | None
) -> None:
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, shard=shard)
    tiny.write_texts(texts.path, changed)
    with pytest.raises(
        ValueError, match="expected the same texts as at the start of the run, got a changed file"
    ):
        run.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


@pytest.mark.slow
def test_a_full_disk_keeps_the_blocks_before_and_the_next_run_goes_on(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = iter([*[None] * 6, OSError(28, "No space left on device")])

    def fails_at_last(_: int) -> None:
        if (error := next(written)) is not None:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails_at_last)
        with pytest.raises(OSError, match=r"No space left on device; make room .* resumes after the first 100"):
            embedded(model, texts, tmp_path / "v.npy")
    assert embedded(model, texts, tmp_path / "v.npy") == embedded(model, texts, tmp_path / "w.npy")


def test_a_lack_of_room_is_told_before_much_is_encoded_and_another_failure_by_its_name(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(embedding.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
        with pytest.raises(
            OSError, match=r"expected room for 240 vectors, got 0\.0 GB free of 0\.0 GB; make room"
        ):
            embedded(model, texts, tmp_path / "v.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(
        OSError, match=r"a disk that stores 240 .* got Input/output error; fix .* after the first 0$"
    ):
        run.finish()
    assert run.done == 0  # the block is there, but no record says so


def test_cut_texts_are_counted_over_all_runs(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = " ".join(tiny.TEXTS[:6])
    texts = TextStream(
        tiny.write_texts(tmp_path / "t.txt", tuple(long if i % 50 == 0 else t for i, t in enumerate(MANY)))
    )
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    assert run.truncated == 2
    run.finish()
    assert run.truncated == 5


# After a kill


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "every"), [(".npy", 4), *rest_slow([(".npy", 1), (".tsv", 1)], quick=0)], ids=str
)
def test_after_two_kills_vectors_are_older_or_whole_and_belong_to_their_record(
    model: SentenceEncoder, tmp_path: Path, suffix: str, every: int
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
    number, died, resumed = 1, True, 0
    while died:
        out = tmp_path / str(number) / f"v{suffix}"
        out.parent.mkdir()
        for path in kept:
            shutil.copy(path, out.parent)
        died = attempt(EmbeddingRun(model, texts, out, new_run), "any", number)
        assert not out.exists() or beside(out) in (older, new)
        again = EmbeddingRun(model, texts, out, new_run)
        resumed += again.done > 0
        assert attempt(again, "fsync", 1 if again.done else 3)  # a first block comes after the ranges
        assert not out.exists() or beside(out) in (older, new)
        EmbeddingRun(model, texts, out, new_run).finish()
        assert beside(out) == new
        assert len(list(out.parent.iterdir())) == 3
        number += every
    assert number - every >= {".npy": 30, ".tsv": 33}[suffix]  # more than there are calls
    assert resumed > 2


@pytest.mark.slow
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
    with lock_output(out):
        for restart in (False, True):
            with pytest.raises(ValueError, match=r"v\.npy: .* got a process that writes it; wait"):
                EmbeddingRun(model, texts, out, SMALL, restart=restart).finish()
    assert embedded(model, texts, out) == embedded(model, texts, tmp_path / "w.npy")
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.slow
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
    with pytest.raises(ValueError, match=r"unfinished: expected the vectors of its record, .* \(a link\)"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, restart=True).finish()
    assert (tmp_path / "theirs").read_bytes() == before


def test_a_part_that_is_killed_is_taken_up_again_with_the_same_bytes(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    def part(name: str) -> EmbeddingRun:
        ranges = np.float32([[-3] * 5, [3] * 5])
        encoding = Encoding(block_size=20, precision="int8", truncate_dim=5, ranges=ranges)
        return EmbeddingRun(model, texts, tmp_path / name, encoding, shard=Shard(2, 3))

    assert part("whole.npy").finish() == (80, 5)
    assert attempt(part("v.npy"), "fsync", 6)  # the ranges and a first block come before
    run = part("v.npy")
    assert (run.done, run.count) == (20, 80)
    run.finish()
    names = [tmp_path / f"{name}-00002-of-00003.npy" for name in ("whole", "v")]
    assert names[0].read_bytes() == names[1].read_bytes()
