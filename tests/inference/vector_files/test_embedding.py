"""A file of texts becomes a file of vectors, of the model and the options that it was begun with."""

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
from vectors_on_disk import (
    MANY,
    SMALL,
    attempt,
    beside,
    embedded,
    stopped,
)

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import quantize, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    EmbeddingRun,
    unfinished,
)


@pytest.mark.parametrize("encoding", [
    SMALL,
    Encoding(block_size=50, normalize_embeddings=True, truncate_dim=5),
    Encoding(block_size=50, precision="ubinary"),
    Encoding(block_size=50, precision="binary", truncate_dim=12),
])  # fmt: skip
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
    monkeypatch.setattr("contrastive_text.inference.vector_files.embedding.CALIBRATION", 120)
    vectors = np.concatenate([model.encode(MANY[at : at + 50], batch_size=16) for at in range(0, 240, 50)])
    ranges = np.array([[-3.0] * 16, [3.0] * 16], np.float32) if given else None
    encoding = Encoding(block_size=50, batch_size=16, precision="int8", ranges=ranges)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", encoding)
    run.finish()
    used = np.load(run.ranges_path)
    expected = ranges if given else value_ranges(model.encode(MANY[:120], batch_size=16)).numpy()
    assert np.array_equal(used, expected)
    assert np.array_equal(np.load(tmp_path / "v.npy"), quantize(torch.as_tensor(vectors), "int8", used).numpy())


def test_ranges_without_a_byte_are_refused(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ranges: expected int8 or uint8 for them, got float32"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", Encoding(ranges=np.zeros((2, 16))))


def test_a_name_too_long_is_told(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    with pytest.raises(
        OSError, match="expected a name that can be written to, got File name too long; name another"
    ):
        EmbeddingRun(model, texts, tmp_path / f"{'v' * 245}.npy", SMALL)


def test_ranges_stay_with_their_vectors(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    out, byte = tmp_path / "v.npy", Encoding(block_size=50, precision="int8")
    EmbeddingRun(model, texts, out, byte).finish()
    before = beside(out)
    with pytest.raises(ValueError, match=r"expected smallest and largest value of 16 features, \(2, 16\)"):
        EmbeddingRun(model, texts, out, replace(byte, ranges=np.zeros((2, 15))))
    wide = replace(byte, ranges=np.float32([[-9] * 16, [9] * 16]))
    assert attempt(EmbeddingRun(model, texts, out, wide), "fsync", 5)
    assert beside(out) == before
    EmbeddingRun(model, texts, out, SMALL, restart=True).finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.npy", "v.npy.json"]


def test_ranges_are_those_of_the_features_that_are_kept(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    ranges = np.float32([[-3] * 5, [3] * 5])
    encoding = Encoding(block_size=240, precision="int8", truncate_dim=5, ranges=ranges)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", encoding)
    assert run.finish() == (240, 5)


@pytest.mark.parametrize(
    ("encoding", "said"),
    rest_slow(
        [
            (Encoding(block_size=49, batch_size=16), "block_size 50 instead of 49"),
            (
                Encoding(block_size=50, batch_size=17, truncate_dim=3),
                "batch_size 16 instead of 17, truncate_dim None",
            ),
            (
                Encoding(block_size=50, batch_size=16, normalize_embeddings=True),
                "normalize_embeddings False instead of",
            ),
            (Encoding(block_size=50, batch_size=16, precision="ubinary"), "precision float32 instead of ubinary"),
        ]
    ),
)
def test_other_options_are_refused_and_restart_begins_anew(
    model: SentenceEncoder,
    texts: TextStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: Encoding,
    said: str,
) -> None:
    out = tmp_path / "v.npy"
    stopped(model, texts, out, monkeypatch)
    with pytest.raises(ValueError, match=f"v.npy.unfinished: expected vectors of these .*{said}.*--restart"):
        EmbeddingRun(model, texts, out, encoding)
    run = EmbeddingRun(model, texts, out, encoding, restart=True)
    assert run.done == 0
    run.finish()
    assert out.read_bytes() == embedded(model, texts, tmp_path / "w.npy", encoding)


def test_another_model_and_changed_texts_are_refused(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.npy"
    stopped(model, texts, out, monkeypatch)
    with pytest.warns(UserWarning, match="names no pooler"):
        other = SentenceEncoder.from_pretrained(tiny.save_bert(tmp_path / "other", seed=1))
    with pytest.raises(ValueError, match="got another model; give"):
        EmbeddingRun(other, texts, out, SMALL)
    tiny.write_texts(texts.path, (*MANY[:-1], "another last one"))
    with pytest.raises(ValueError, match="got other texts; give"):
        EmbeddingRun(model, TextStream(texts.path), out, SMALL)


@pytest.mark.parametrize("changed", [MANY[:-1], (*MANY, "one more"), (*MANY[:-1], "another last one")])
def test_texts_that_change_while_they_are_encoded_give_no_output(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, changed: tuple[str, ...]
) -> None:
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    tiny.write_texts(texts.path, changed)
    with pytest.raises(ValueError, match="expected the texts that were there at the start, got others"):
        run.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_a_disk_that_would_be_full_is_told_of_before_much_is_encoded(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(OSError, match=r"expected room for 240 vectors, got 0\.0 GB free of 0\.0 GB; make room"):
        embedded(model, texts, tmp_path / "v.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_a_full_disk_keeps_the_blocks_before_and_the_next_run_goes_on(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = iter([*[None] * 6, OSError(28, "No space left on device")])

    def fails_at_last(_: int) -> None:
        if (error := next(written)) is not None:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails_at_last)
        with pytest.raises(OSError, match=r"No space left on device; make room .* goes on after the first 100"):
            embedded(model, texts, tmp_path / "v.npy")
    assert embedded(model, texts, tmp_path / "v.npy") == embedded(model, texts, tmp_path / "w.npy")


def test_another_failure_of_the_disk_is_not_called_a_lack_of_room(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(
        OSError, match=r"a disk that takes 240 .* got Input/output error; put .* after the first 0$"
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


# The index
